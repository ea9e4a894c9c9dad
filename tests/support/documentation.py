"""The pages, the commands and the keys of the configuration that they document."""

from __future__ import annotations

import importlib
import re
import shlex
from collections.abc import Iterator
from typing import get_args, get_origin

import click
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from balancer.config.loading import Settings
from balancer.config.schema.policy_spec import PolicySpec
from tests.support.root import ROOT

PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")),
    *sorted(ROOT.glob("docs/*.md")),
]


EXAMPLE = ROOT / "examples" / "balancer.toml"


def text_of(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def cells_of(page: str, head: str) -> list[list[str]]:
    """Return the cells of the table of a page whose first line begins with `head`, row by row."""
    _, found, rest = text_of(page).partition(f"\n{head}")
    assert found, f"{page} has no table {head}"
    rows = rest.partition("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]


def block_of(page: str, name: str) -> str:
    """The fenced block of a page after the comment of that name."""
    found = re.search(rf"<!-- {re.escape(name)} -->\n```\w+\n(.*?)```", text_of(page), re.DOTALL)
    assert found, f"{page} has no block '{name}'"
    return found[1]


def group_of(package: str) -> click.Group:
    group = importlib.import_module(f"{package}.__main__").cli
    assert isinstance(group, click.Group)
    return group


def inner_commands(group: click.Group) -> dict[str, click.Command]:
    context = click.Context(group)
    found = {name: group.get_command(context, name) for name in group.list_commands(context)}
    return {name: command for name, command in found.items() if command is not None}


def groups_and_commands(command: click.Command, path: str) -> Iterator[tuple[str, click.Command]]:
    """The command and all commands within it, with what is typed to call them."""
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            yield from groups_and_commands(inner, f"{path} {name}")


def problem_of(line: str) -> str:
    """What the parser of a program of ours has against a line; empty if nothing."""
    words = [word for word in shlex.split(line) if not word.endswith("…")]
    ends = next((at for at, word in enumerate(words) if re.fullmatch(r"[|;&<]+|\d?>+.*", word)), len(words))
    program, *rest = words[:ends]
    return misuse(group_of(program), rest)


def misuse(command: click.Command, words: list[str]) -> str:
    """Options, arguments and choices of `words` that the command does not have."""
    try:
        given, left, _ = command.make_parser(click.Context(command)).parse_args(words)
    except click.UsageError as error:
        return error.format_message()
    for one in command.params:
        values = given.get(one.name or "")
        for value in values if isinstance(values, list | tuple) else [values]:
            choices = one.type.choices if isinstance(one.type, click.Choice) else ()
            names = set(value.split("|")) if isinstance(value, str) and not value.isupper() else set()
            if choices and not names <= {str(choice) for choice in choices}:
                return f"{value} is none of {', '.join(map(str, choices))}"
    if not isinstance(command, click.Group) or not left:
        return f"too many arguments: {left}" if left else ""
    inner = {name: one for name, one in inner_commands(command).items() if name in left[0].split("|")}
    if missing := set(left[0].split("|")) - set(inner):
        return f"no command {', '.join(missing)}"
    return "".join(misuse(one, left[1:]) for one in inner.values())


def keys_of(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """Every key of the configuration as written: `listen`, `timeouts.connect`, `endpoints.id`."""
    for name, field in model.model_fields.items():
        table = next((t for t in (field.annotation, *get_args(field.annotation)) if is_table(t)), None)
        if table is None or get_origin(field.annotation) is dict:  # of tables whose names are free to choose
            yield f"{prefix}{name}", field
        else:
            yield from keys_of(table, f"{prefix}{name}.")


def is_table(annotation: object) -> bool:
    is_model = isinstance(annotation, type) and issubclass(annotation, BaseModel)
    return is_model and annotation is not PolicySpec


KEYS = dict(keys_of(Settings))


PAGE = (ROOT / "docs" / "status.md").read_text(encoding="utf-8")


def documented() -> dict[str, str]:
    """Meanings by field, those of endpoints with `endpoints[].` before them."""
    found: dict[str, str] = {}
    whole, _, endpoints = PAGE.partition("## Endpoints")
    for part, prefix in ((whole, ""), (endpoints, "endpoints[].")):
        for names, meaning in re.findall(r"^\| (`.*?) \| (.*) \|$", part, re.MULTILINE):
            found |= {prefix + name: meaning for name in re.findall(r"`([^`]+)`", names)}
    return found


def paths_of(value: object, path: str = "") -> Iterator[str]:
    """Paths of the values in a document, lists as `[]`; an empty table or list, and null, is itself one."""
    if isinstance(value, dict) and value:
        for name, inner in value.items():
            yield from paths_of(inner, f"{path}.{name}" if path else name)
    elif isinstance(value, list) and value:
        for inner in value:
            yield from paths_of(inner, f"{path}[]")
    else:
        yield path
