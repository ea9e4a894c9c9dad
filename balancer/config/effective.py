"""The effective configuration as TOML, with the source of each value in a comment. Secrets are left out."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from pydantic import BaseModel, SecretStr, ValidationError

from balancer.config.positions import Place
from balancer.config.schema.named_clusters import OF_CONNECTIONS, ClusterSettings
from balancer.config.schema.policy_spec import PlainPolicy
from policies import registry
from policies.errors import PoliciesError

COLUMN: Final = 48
"""Column at which the comments begin, where lines are shorter."""

BARE: Final = re.compile(r"[A-Za-z0-9_-]+")

Source = Callable[[Place], str | None]


def effective(settings: BaseModel, source: Source) -> Iterator[str]:
    """Yield the lines of a TOML file that has every key. `source` names where a given value comes from."""
    yield from _table(settings, source, (), "", is_given=True)


def _table(table: BaseModel, source: Source, place: Place, path: str, *, is_given: bool) -> Iterator[str]:
    """Yield plain values first, because TOML takes them for keys of the last table that was opened."""
    later: list[tuple[str, BaseModel, Place, str, bool]] = []  # tables with their headers
    own = {name: getattr(table, name) for name in type(table).model_fields}
    for name, value in {**own, **_policy_options(table)}.items():
        here, is_set = (*place, name), is_given and name in table.model_fields_set
        if place[:1] == ("clusters",) and name in OF_CONNECTIONS.get(str(place[-1]), ()):
            continue  # with_inherited refuses it in a named cluster
        inner = f"{path}{_key(name)}"
        items = [*value.items()] if isinstance(value, dict) else []
        if isinstance(value, BaseModel):
            later.append((f"[{inner}]", value, here, inner, is_set))
        elif isinstance(value, tuple) and value and isinstance(value[0], BaseModel):
            later += [(f"[[{inner}]]", each, (*here, at), inner, is_set) for at, each in enumerate(value)]
        elif items and all(isinstance(each, BaseModel) for _, each in items):
            later += [
                (f"[{inner}.{_key(key)}]", each, (*here, key), f"{inner}.{_key(key)}", is_set)
                for key, each in items
            ]
        else:
            origin = (source(here) or "default") if is_set else _unset_source(table, name, value)
            line = _line(_key(name), value, origin)
            yield line if is_set or not _is_refused(table, name, value) else f"# {line}"
    for header, each, there, path_in, is_set in later:
        yield ""
        yield header
        yield from _table(each, source, there, f"{path_in}.", is_given=is_set)


def _is_refused(table: BaseModel, name: str, value: Any) -> bool:
    """Return whether a default may not be given beside the keys that are, such as a certificate without its use."""
    given = {key: getattr(table, key) for key in table.model_fields_set}
    return _is_valid(table, given) and not _is_valid(table, given | {name: value})


def _is_valid(table: BaseModel, given: dict[str, Any]) -> bool:
    try:
        type(table).model_validate(given)
    except ValidationError:
        return False
    return True


def set_by_kind(cluster: ClusterSettings) -> Iterator[str]:
    """Yield the keys that `kind` has given other defaults, as lines of TOML."""
    for table, values in cluster.kind_defaults.items():
        section = getattr(cluster, table) if table else cluster
        for name in values:
            if name in section.model_fields_set:
                continue
            value = getattr(section, name)
            text = quoted(value.name) if isinstance(value, PlainPolicy) else toml(value)
            yield f"{table}.{name} = {text}" if table else f"{name} = {text}"


def _unset_source(table: BaseModel, name: str, value: Any) -> str:
    field = type(table).model_fields.get(name)
    return "default" if field is None or field.get_default() == value else "derived"


def _policy_options(table: BaseModel) -> dict[str, Any]:
    """Return the options of a policy, given or default."""
    if not isinstance(table, PlainPolicy):
        return {}
    try:
        known = registry.options_of(registry.find(table.name))
    except PoliciesError:
        known = {}
    names = {factory: name for name, factory in registry.TABLE.items()}
    defaults = {
        name: names.get(option.default, option.default) if callable(option.default) else option.default
        for name, option in known.items()
    }
    return defaults | table.options


def _line(key: str, value: Any, origin: str) -> str:
    parts = [*value.values()] if isinstance(value, Mapping) else [value]
    if any(isinstance(part, SecretStr) for part in parts):
        return _with_comment(f"# {key} = (secret)", origin)
    text = toml(value)
    if text is None:
        return _with_comment(f"# {key} =", f"{origin}: none")
    return _with_comment(f"{key} = {text}", origin)


def _with_comment(text: str, comment: str) -> str:
    return f"{text:<{COLUMN}} # {comment}"


def toml(value: Any) -> str | None:
    """Return the value as TOML writes it; None for what TOML cannot write."""
    if value is None or callable(value):
        return None
    if isinstance(value, bool | int | float):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return f"[{', '.join(filter(None, map(toml, value)))}]"
    if value == {}:
        return "{}"
    if isinstance(value, Mapping):
        texts = {name: toml(each) for name, each in value.items()}
        inner = ", ".join(f"{quoted(name)} = {text}" for name, text in texts.items() if text)
        return f"{{ {inner} }}" if inner else "{}"
    return quoted(str(value))


def _key(name: str) -> str:
    """Return a key as TOML writes it."""
    return name if BARE.fullmatch(name) else quoted(name)


def quoted(text: str) -> str:
    """Return a TOML basic string. JSON's escapes are TOML's, but JSON does not escape DEL."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
