"""Read TOML and JSON files with limits on size and depth."""

from __future__ import annotations

import json
import stat
import tomllib
from pathlib import Path
from typing import Any, Final

LARGEST: Final = 16 << 20
"""Size limit of a file in bytes: some hundred thousand endpoints."""

DEEPEST: Final = 32
"""Limit of nested tables and lists."""

TOO_DEEP: Final = f"more than {DEEPEST} tables or lists inside each other"


def read_document(path: Path, *, is_json: bool = False, is_plain: bool = False) -> Any:
    """Return the document in the file. With `is_plain` a pipe or a device is refused, as reading it may block for ever.

    Raises OSError, and ValueError with a message of one line.
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
    """Return whether the document is nested deeper than DEEPEST; iterative, as recursion would hit Python's limit."""
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
