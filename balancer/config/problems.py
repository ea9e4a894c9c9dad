"""Messages about invalid values: key, what is allowed, what was given. Pure: no I/O.

A secret is never part of a message: not a value that may be or contain one, and not the credentials in a URL.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date, time
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from balancer.config.keys import Table, annotation_at, dotted, has_secret, suggestion
from balancer.config.positions import Place

MOST_PROBLEMS: Final = 20
"""Most problems that are reported at once."""

KEY: Final = re.compile(r"([a-z][a-z0-9_]*(?:\.[A-Za-z0-9_-]+)*): ")
"""Key that a validator's message begins with; it may have the name of a cluster or of a field."""

BEFORE_CREDENTIALS: Final = re.compile(
    r"//(?!host(?:\[?:port|,| or )|/?path, got )|got '(?![a-z]+://)"
).search
"""Where the user and password of a URL, which may lack its scheme, can begin; `//host` and `///path` are what a message
allows."""

TABLES: Final = ("model_type", "model_attributes_type", "dict_type")

LISTS: Final = ("tuple_type", "list_type")

REASON: Final = re.compile(r", (?:got|unable to) .*")
"""End of pydantic's message, which says less than the value that follows."""

MAX_CHARACTERS: Final = 60
"""Most characters of a key or a value in a message."""


class ConfigError(Exception):
    """Invalid configuration. Each of `problems` is one line with the key and its allowed values. Exit code 2."""

    exit_code = 2

    def __init__(self, *problems: str) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


@contextmanager
def in_cluster(name: str) -> Iterator[None]:
    """Prefix the keys in a `ConfigError` by those of a named cluster; without a name they stay."""
    try:
        yield
    except ConfigError as error:
        if not name:
            raise
        raise ConfigError(*(f"clusters.{name}.{problem}" for problem in error.problems)) from None


@contextmanager
def in_file(key: str, path: Path) -> Iterator[None]:
    """Report an error in reading the file that a key names as a `ConfigError`."""
    try:
        yield
    except OSError as error:
        raise ConfigError(f"{key}: cannot read {path}: {error.strerror}") from None
    except ValueError as error:
        raise ConfigError(f"{key}: {path}: {error}") from None


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong with the value at `place`."""

    place: Place
    message: str

    def __str__(self) -> str:
        return f"{shown(dotted(self.place))}: {self.message}" if self.place else self.message


def line_for(problem: Problem, source: Callable[[Place], str | None], file: Path | None = None) -> str:
    """Return the line for a problem, with the source of the value before it, or the file for a missing value."""
    name = source(problem.place) or file
    return f"{name}: {problem}" if name else str(problem)


def config_error(lines: list[str]) -> ConfigError:
    """Return the error for these lines, of which the first ones are kept."""
    more = len(lines) - MOST_PROBLEMS
    return ConfigError(*lines[:MOST_PROBLEMS], *([f"{more} more"] if more > 0 else []))


def first_problem(error: ValidationError, table: Table) -> str:
    """Return one line for the first of pydantic's errors."""
    return str(next(problems_of(error, table)))


def problems_of(error: ValidationError, table: Table) -> Iterator[Problem]:
    """Yield the problems of a document that is not a valid `table`."""
    errors = error.errors(include_url=False)
    places = [_place(found) for found in errors]
    for at, (place, found) in enumerate(zip(places, errors, strict=True)):
        # pydantic counts only the valid items of a list
        is_sequel = found["type"] == "too_short" and any(
            each != place and each[: len(place)] == place for each in places
        )
        if not is_sequel:
            # searching what may be meant takes a millisecond for each key
            yield from_message(_message(found, place, table, is_searched=at < MOST_PROBLEMS), place)


def _place(found: Any) -> Place:
    """Return the location of an error without pydantic's names of types, which have brackets."""
    location = found["loc"]
    unknown = len(location) - 1 if found["type"] == "extra_forbidden" else -1
    return tuple(
        part for at, part in enumerate(location) if at == unknown or isinstance(part, int) or "[" not in part
    )


def from_message(message: str, place: Place = ()) -> Problem:
    """Return the problem for a message that may begin with a key, relative to `place`."""
    key = KEY.match(message)
    if key is None:
        return Problem(place, message)
    names = (int(name) if name.isdigit() else name for name in key[1].split("."))
    return Problem((*place, *names), message[key.end() :])


def without_credentials(text: str) -> str:
    """Return the text with the user and password of URLs replaced, up to the last `@`: a password may contain any."""
    before, sign, after = text.rpartition("@")
    begin = BEFORE_CREDENTIALS(before)
    return text if begin is None else f"{before[: begin.end()]}…{sign}{after}"


def shown(text: str) -> str:
    """Return the text as a message shows it: without credentials, and cut."""
    text = without_credentials(text)
    return text if len(text) <= MAX_CHARACTERS else f"{text[: MAX_CHARACTERS - 3]}..."


def _message(found: Any, place: Place, table: Table, *, is_searched: bool) -> str:
    kind = found["type"]
    if kind == "missing":
        return "is required"
    if kind == "extra_forbidden":
        return f"is not a known key{suggestion(table, place) if is_searched else ''}"
    if kind == "value_error":
        return without_credentials(str(found["msg"]).removeprefix("Value error, "))
    if kind in TABLES:
        wanted = "must be a table"
    elif kind in LISTS:
        wanted = "must be a list"
    elif kind == "too_short" and has_secret(annotation_at(table, place)):
        wanted = f"must have {found['ctx']['min_length']} characters or more"
    else:
        words = REASON.sub("", found["msg"])
        wanted = f"{words[:1].lower()}{words[1:]}"
    given = found["input"]
    if kind in (*TABLES, *LISTS) and isinstance(given, str) and given.lstrip().startswith(("[", "{")):
        wanted += ", and this text is not JSON"
    return wanted + _given(given, annotation_at(table, place))


def _given(value: Any, annotation: Any) -> str:
    if annotation is None or has_secret(annotation):
        return ""
    if isinstance(value, dict | list | tuple):
        return f", got a {'table' if isinstance(value, dict) else 'list'}"
    return f", {shown(f'got {_as_toml(value)}')}"


def _as_toml(value: Any) -> str:
    if isinstance(value, bool | None):
        return json.dumps(value)
    return value.isoformat() if isinstance(value, date | time) else repr(value)
