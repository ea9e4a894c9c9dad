"""The table of keys in docs/configuration.md, written from the schema: `python -m tests.support.configuration_page`."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo

from balancer.config.schema.policy_spec import PolicySpec
from balancer.config.schema.section import Seconds
from tests.support.documentation import KEYS
from tests.support.root import ROOT

PAGE = ROOT / "docs" / "configuration.md"
HEAD = "| key | unit | default | meaning |\n|---|---|---|---|\n"


def default_of(field: FieldInfo) -> str:
    """Return the default as the documents write it."""
    if field.is_required():
        return "required"
    value = field.get_default()
    if value is None:
        return "–"
    value = value.name if isinstance(value, PolicySpec) else list(value) if value == () else value
    return f"`{json.dumps(value)}`"


def derived_unit(field: FieldInfo) -> str:
    """Return the values that the type allows, "" if the description has to name them."""
    annotation: Any = field.annotation
    if get_origin(annotation) in (Union, UnionType):
        annotation = next(part for part in get_args(annotation) if part is not type(None))
    bounds = {type(bound).__name__.lower(): bound for bound in (*field.metadata, *bounds_of(annotation))}
    if annotation is bool:
        return "true or false"
    if annotation is Path:
        return "path"
    if get_origin(annotation) is Literal:
        *others, last = (
            f"`{json.dumps(one)}`" if isinstance(one, str) else str(one) for one in get_args(annotation)
        )
        return f"{', '.join(others)} or {last}"
    if (annotation is float or annotation == Seconds) and "le" in bounds and bounds["le"].le == 86_400:
        return "s"
    if annotation in (int, float) and {"ge", "le"} <= set(bounds):
        return f"{bounds['ge'].ge:g}–{bounds['le'].le:g}"
    return ""


def bounds_of(annotation: Any) -> tuple[Any, ...]:
    """Return the bounds that an annotated type carries."""
    return tuple(
        bound for part in getattr(annotation, "__metadata__", ()) for bound in getattr(part, "metadata", ())
    )


def row_of(key: str, field: FieldInfo) -> str:
    unit, _, meaning = (field.description or "").rpartition(" | ")
    unit = unit or derived_unit(field)
    return f"| `{key}` | {unit} | {default_of(field)} | {meaning} |\n"


def in_order(stated_keys: list[str]) -> list[str]:
    """Return all keys in the order in which the page states them, new ones behind the one before them in the schema."""
    keys = [key for key in stated_keys if key in KEYS]
    for before, key in zip(["", *KEYS], KEYS, strict=False):
        if key not in keys:
            keys.insert(keys.index(before) + 1 if before else 0, key)
    return keys


def table(rows: str) -> str:
    """Return the table of all keys, in the order of `rows`."""
    return HEAD + "".join(
        row_of(key, KEYS[key]) for key in in_order(re.findall(r"^\| `([a-z0-9_.]+)`", rows, re.M))
    )


def stated() -> tuple[str, str, str]:
    """Return the page before its table of keys, the table, and the page after it."""
    before, head, rest = PAGE.read_text(encoding="utf-8").partition(HEAD)
    rows, _, after = rest.partition("\n\n")
    return before, f"{head}{rows}\n", f"\n{after}"


if __name__ == "__main__":
    before, rows, after = stated()
    PAGE.write_text(f"{before}{table(rows)}{after}", encoding="utf-8")
