"""TOML files of people: read whole, but not without bounds, and checked before anything is made of them."""

from __future__ import annotations

import tomllib
from importlib.resources.abc import Traversable
from typing import Any

from experiments.errors import BadInputError

LARGEST = 1 << 20
"""Bytes of a file. The largest that comes with the package has some thousand."""

DEEPEST = 32
"""Tables and lists inside each other."""


def read_toml(source: Traversable, name: str) -> dict[str, Any]:
    """The document in `source`, called `name` in messages. Raises BadInputError."""
    try:
        with source.open("rb") as file:
            data = file.read(LARGEST + 1)
        if len(data) > LARGEST:
            raise BadInputError(f"{name}: is longer than {LARGEST >> 10} KiB")
        document = tomllib.loads(data.decode("utf-8"))
    except OSError as error:
        raise BadInputError(f"{name}: cannot be read: {error.strerror}") from None
    except RecursionError:
        raise too_deep(name) from None
    except (
        ValueError
    ) as error:  # of TOML, of UTF-8, of a number with thousands of digits, of a NUL in the path
        raise BadInputError(f"{name}: not TOML: {error}") from None
    if is_deep(document):
        raise too_deep(name)
    return document


def too_deep(name: str) -> BadInputError:
    return BadInputError(f"{name}: more than {DEEPEST} tables or lists inside each other")


def is_deep(document: Any) -> bool:
    """Whether it is nested deeper than DEEPEST; level by level, for recursion ends long before a file does."""
    level = [document]
    for _ in range(DEEPEST):
        level = [
            child
            for node in level
            for child in (node.values() if isinstance(node, dict) else node)
            if isinstance(child, dict | list)
        ]
        if not level:
            return False
    return True
