"""TOML and JSON files: read whole, but not without bounds, and checked before anything is made of them."""

from __future__ import annotations

import json
import stat
import tomllib
from pathlib import Path
from typing import Any, Final

LARGEST: Final = 16 << 20
"""Bytes of a file: some hundred thousand endpoints."""

DEEPEST: Final = 32
"""Tables and lists inside each other."""

TOO_DEEP: Final = f"more than {DEEPEST} tables or lists inside each other"


def read_document(path: Path, *, is_json: bool = False, is_plain: bool = False) -> Any:
    """What stands in the file. With `is_plain` a pipe or a device, where reading may take for ever, is refused.

    Raises OSError and, with one line, ValueError.
    """
    if is_plain and not stat.S_ISREG(path.stat().st_mode):
        raise ValueError("not a file")
    with path.open("rb") as file:
        data = file.read(LARGEST + 1)
    if len(data) > LARGEST:
        raise ValueError(f"longer than {LARGEST >> 20} MiB")
    text = data.decode("utf-8")
    try:
        document = json.loads(text) if is_json else tomllib.loads(text)
    except RecursionError:
        raise ValueError(TOO_DEEP) from None
    if is_deep(document):
        raise ValueError(TOO_DEEP)
    return document


def is_deep(document: Any) -> bool:
    """Whether it is nested deeper than DEEPEST; level by level, for recursion ends long before a file does."""
    level = [document]
    for _ in range(DEEPEST):
        level = [
            child
            for node in level
            if isinstance(node, dict | list)
            for child in (node.values() if isinstance(node, dict) else node)
            if isinstance(child, dict | list)
        ]
        if not level:
            return False
    return True
