"""Tables of the documentation that are written from the code: `python -m tests.support.tables`.

A test compares them with the code. `TABLES` names the pages and the heads by which the tables are found.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from inspect import Parameter
from operator import mul
from pathlib import Path
from textwrap import wrap
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo

from balancer.config.keys import dotted, keys_of, table_at
from balancer.config.schema.listeners import ListenerConfig
from balancer.config.schema.named_clusters import ClusterSettings
from balancer.config.schema.policy_spec import PolicySpec
from balancer.config.schema.section import Seconds
from experiments.report.entry_tables import COLUMNS
from experiments.scenario.balancer_keys import MEANINGLESS, SIMULATED
from experiments.scenario.event_kinds import KINDS, latest
from experiments.scenario.inference import Inference
from experiments.scenario.mechanisms import Mechanisms
from policies import registry
from tests.support.documentation import EXAMPLE, KEYS, cells_of
from tests.support.root import ROOT
from workers.app import FAULTS as WORK_FAULTS
from workers.faults import Faults
from workers.inference.app import FAULTS as INFERENCE_FAULTS

OVERLAPPING = {mul: "the product", max: "the greatest", latest: "the last in the file"}
"""What overlapping events make of their values, by the function in `EventKind.changes`."""

MOST_NAMED = 4
"""Maximum number of policies that the table of reasons names one by one."""

SOURCES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts): path.read_text(encoding="utf-8")
    for path in sorted((ROOT / "policies").rglob("*.py"))
}
"""Text of each module of `policies`."""

REASON = re.compile(r'^([A-Z_]+)(?:: Final)? = "([a-z-]+)"\n"""Reason: (.*?)"""$', re.M | re.S)
STATED = [(module, *found) for module, text in SOURCES.items() for found in REASON.findall(text)]
"""Each reason of picks: module, constant, code and meaning."""


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
    return f"| `{key}` | {unit} | {default_of(field)} | {meaning} |"


def in_order(stated_keys: list[str]) -> list[str]:
    """Return all keys in the order in which the page states them, new ones behind the one before them in the schema."""
    keys = [key for key in stated_keys if key in KEYS]
    for before, key in zip(["", *KEYS], KEYS, strict=False):
        if key not in keys:
            keys.insert(keys.index(before) + 1 if before else 0, key)
    return keys


def keys(present: str) -> Iterator[str]:
    """Yield the rows of all keys of the configuration, in the order of those present."""
    for key in in_order(re.findall(r"^\| `([a-z0-9_.]+)`", present, re.M)):
        yield row_of(key, KEYS[key])


def shown(lines: Iterable[str]) -> dict[str, tuple[int, Any]]:
    """Return key -> number of its line and its value, of every key in a TOML text, commented out or not."""
    found: dict[str, tuple[int, Any]] = {}
    table = ""
    for number, line in enumerate(lines):
        if header := re.fullmatch(r"(?:# )?\[+([a-z0-9_.]+)\]+", line):
            table = f"{header[1]}."
        elif key := re.match(r"(?:# )?([a-z_]+) = ", line):
            value = tomllib.loads(line.removeprefix("# "))[key[1]]
            found.setdefault(f"{table}{key[1]}", (number, value))
    return found


def lines_of(key: str) -> list[str]:
    """Return the lines of a key in the example: its default, or else the first of its `examples`, and its meaning: in a
    table behind it where that fits."""
    field, (table, _, name) = KEYS[key], key.rpartition(".")
    value = default_of(field).strip("`")
    meaning = re.sub(r"; see \[.*\]\(.*\)|`", "", (field.description or "").rpartition(" | ")[2])
    if value in ("–", "required"):
        assert field.examples, f"{key} has no default: give Field(examples=[…])"
        meaning += "; default: none" if value == "–" and "default" not in meaning.lower() else ""
        value = json.dumps(field.examples[0])
    behind = f"{f'# {name} = {value}':38} # {meaning}"
    if table and len(behind) <= 120:
        return [behind]
    above = wrap(f"# {meaning[0].upper()}{meaning[1:]}.", 118, subsequent_indent="# ")
    return [*([] if table else [""]), *above, f"# {name} = {value}"]


def completed(text: str) -> str:
    """Return the example of a configuration with the missing keys, each behind the one before it in the schema."""
    lines = text.splitlines()
    for before, key in zip(["", *KEYS], KEYS, strict=False):
        present, table = shown(lines), key.rpartition(".")[0]
        if key not in present:
            headers = [f"[{table}]", f"# [{table}]", f"[[{table}]]", f"# [[{table}]]"]
            is_optional = f"# [[{table.partition('.')[0]}]]" in lines
            if before.rpartition(".")[0] == table:
                at = present[before][0] + 1 if before else lines.index("")
            elif found := [at for at, line in enumerate(lines, 1) if line in headers]:
                at = found[0]
            else:
                at = present[before][0] + 1 if is_optional else len(lines)
                new = [headers[1]] if is_optional else ["", headers[0]]
                lines[at:at] = new
                at += len(new)
            lines[at:at] = lines_of(key)
    return "".join(f"{line}\n" for line in lines)


def listener_keys(_: str) -> Iterator[str]:
    """Yield a row for each key of a listener."""
    return (row_of(key, field) for key, field in ListenerConfig.model_fields.items())


def families(_: str) -> Iterator[str]:
    """Yield a row for each family of policies."""
    return (f"| {listed(family)} | {phrase} |" for phrase, family in registry.FAMILIES.items())


def situations(_: str) -> Iterator[str]:
    """Yield the rows of the README by which a policy is chosen: those of docs/policies.md."""
    for cells in cells_of("docs/policies.md", "| your workers and requests |"):
        yield f"| {' | '.join(cells)} |".replace("](", "](docs/")


def options(_: str) -> Iterator[str]:
    """Yield a row for each option of a policy, the name of the policy in the first one."""
    plain = [name for name, factory in registry.TABLE.items() if not registry.options_of(factory)]
    yield f"| {listed(plain)} | | | | no options |"
    for name, factory in registry.TABLE.items():
        meanings, bounds, first = registry.meanings_of(factory), registry.bounds_of(factory), f"`{name}`"
        for option in registry.options_of(factory).values():
            bound = " and ".join(map(str, bounds.get(option.name, ())))
            what = option_default(option), bound, meanings[option.name]
            row = " | ".join(map(str, (first, f"`{option.name}`", *what)))
            yield f"| {row} |".replace("|  |", "| |")
            first = ""


def option_default(option: Parameter) -> str:
    """Return the default of an option of a policy; an inner policy is written by its name."""
    if option.default is option.empty:
        return "required"
    names = {factory: name for name, factory in registry.TABLE.items()}
    return f"`{json.dumps(names[option.default] if callable(option.default) else option.default)}`"


def reasons(_: str) -> Iterator[str]:
    """Yield a row for each reason code of a pick: what the constants of `policies` state as `Reason: …`."""
    noted = {name: reasons_of(factory) for name, factory in registry.TABLE.items()}
    by_any = []
    for stated in STATED:
        users = [name for name, its in noted.items() if stated in its]
        by = "several" if len(users) > MOST_NAMED else listed(users) or "any"
        row = f"| `{stated[2]}` | {by} | {' '.join(stated[3].split()).removesuffix('.')} |"
        if users:
            yield row
        else:
            by_any.append(row)
    yield from by_any


def reasons_of(factory: registry.Factory) -> list[tuple[str, ...]]:
    """Return the reasons that the classes and functions of a policy mention, as STATED has them."""
    parts = parts_of(factory)
    return [one for one in STATED if any(part.notes(*one[:2]) for part in parts)]


@dataclass(frozen=True)
class Part:
    """A class or function of a policy."""

    module: str
    words: frozenset[str]

    def notes(self, module: str, constant: str) -> bool:
        """Return whether it mentions a constant of a module."""
        imported = rf"^from {module} import .*\b{constant}\b"
        return constant in self.words and (
            module == self.module or re.search(imported, SOURCES[self.module], re.M) is not None
        )


def parts_of(factory: registry.Factory) -> list[Part]:
    """Return the classes and functions of `policies` that a policy is made of."""
    found, left = {}, [getattr(factory, "__name__", "")]
    while left:
        part = PARTS.get(name := left.pop())
        if part is not None and name not in found:
            found[name] = part
            left += part.words
    return list(found.values())


def events(_: str) -> Iterator[str]:
    """Yield a row for each kind of event of scenarios."""
    for name, kind in KINDS.items():
        value = kind.value
        default = "" if value is None or value.default is None else f", {value.default:g}"
        together = "; ".join(OVERLAPPING[how] for how in kind.changes.values() if callable(how)) or "–"
        yield f"| `{name}` | {kind.effect} | {'–' if value is None else value.meaning}{default} | {together} |"


def inference_keys(_: str) -> Iterator[str]:
    """Yield a row for each key of `[inference]` of scenarios."""
    for name, field in Inference.model_fields.items():
        default = "–" if field.default is None else field.default
        yield f"| `{name}` | {default} | {field.description} |"


def columns_of_summary(_: str) -> Iterator[str]:
    """Yield a row for each column of summary.csv; those that are a key in JSON name it."""
    for column in COLUMNS:
        key = f"`entries[].{column.value}` " if isinstance(column.value, str) else ""
        yield f"| `{column.name}` | {column.meaning} | {key}|"


def simulated_keys(_: str) -> Iterator[str]:
    """Yield a row for each table of `[balancer]` of scenarios: the keys that a simulated run does not refuse."""
    tables: dict[str, list[str]] = {}
    for place in keys_of(Mechanisms):
        if table_at(Mechanisms, place) is None:
            tables.setdefault(str(place[0]), []).append(dotted(place))
    for table, keys in tables.items():
        found = [[key.rpartition(".")[2] for key in keys if key in kind] for kind in (SIMULATED, MEANINGLESS)]
        yield f"| `{table}` | {' | '.join(map(listed, found))} |".replace("|  ", "| ")


def faults(_: str) -> Iterator[str]:
    """Yield a row for each fault of workers."""
    for name, field in Faults.model_fields.items():
        has = ("yes" if name in its else "no" for its in (WORK_FAULTS, INFERENCE_FAULTS))
        yield f"| `{name}` | {default_of(field)} | {' | '.join(has)} | {field.description} |"


def listed(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


PARTS = {
    name: Part(module, frozenset(re.findall(r"\w+", source)))
    for module, text in SOURCES.items()
    if module.split(".")[1] in ("algorithms", "inference", "selection", "steelyard")
    for name, source in re.findall(r"^(?:class|def) (\w+)(.*(?:\n(?:[ )].*)?$)*)", text, re.M)
}

TABLES: dict[str, dict[str, Callable[[str], Iterable[str]]]] = {
    "README.md": {"| your workers and requests | start with |": situations},
    "docs/policies.md": {"| policy | where a request goes |": families},
    "docs/configuration.md": {
        "| key | unit | default | meaning |": keys,
        "| keys of `[clusters.NAME]` |": lambda _: [f"| {listed(ClusterSettings.model_fields)} |"],
        "| key of `[listeners.NAME]` | unit | default | meaning |": listener_keys,
        "| policy | option | default | allowed | meaning |": options,
    },
    "docs/results.md": {"| column | meaning | key of summary.json |": columns_of_summary},
    "docs/scenarios.md": {
        "| kind | effect while it lasts | value | of overlapping ones on a worker |": events,
        "| key of `[inference]` | default | meaning |": inference_keys,
    },
    "docs/simulator.md": {"| table or key | simulated | accepted, without effect |": simulated_keys},
    "docs/workers.md": {"| fault | default | `/work` | inference server | meaning |": faults},
    "docs/policies-keyed.md": {"| reason | from | meaning, and scores |": reasons},
}
"""Page -> head of a table -> its rows, given those that are there."""


def rewritten(page: str) -> str:
    """Return the text of a page with its generated tables as they should be."""
    text = (ROOT / page).read_text(encoding="utf-8")
    for head, rows in TABLES[page].items():
        before, begin, rest = text.partition(f"{head}\n|{'---|' * (head.count('|') - 1)}\n")
        present, end, after = ("", "\n", rest) if rest.startswith("\n") else rest.partition("\n\n")
        assert begin, f"{page} has no table {head}"
        text = "".join((before, begin, "\n".join(rows(present)), end, after))
    return text


if __name__ == "__main__":
    from tests.balancer.http.http_rows import page as http

    EXAMPLE.write_text(completed(EXAMPLE.read_text(encoding="utf-8")), encoding="utf-8")
    http.PAGE.write_text(http.replaced(http.PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    for page in TABLES:
        (ROOT / page).write_text(rewritten(page), encoding="utf-8")
