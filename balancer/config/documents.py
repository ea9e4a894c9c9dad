"""Read TOML and JSON files with limits on size and depth."""

from __future__ import annotations

import json
import re
import stat
import tomllib
from pathlib import Path
from typing import Any, Final

LARGEST: Final = 16 << 20
"""Size limit of a file in bytes: some hundred thousand endpoints."""

DEEPEST: Final = 32
"""Limit of nested tables and lists."""

TOO_DEEP: Final = f"more than {DEEPEST} tables or lists inside each other"


SYNTAX: Final = re.compile(
    r"(?s)(?P<text>.*?)(?: \(at line |: line )(?P<line>\d+),? column (?P<column>\d+)(?:\)| \(char \d+\))",
)
"""Messages of `tomllib` and `json`, which end in the position."""


def read_text(path: Path, *, is_plain: bool = False) -> str:
    """Return the text of the file, without a byte order mark. With `is_plain` a pipe or a device is refused, as reading
    it may block for ever. Raises OSError, and ValueError with a message of one line.
    """
    if is_plain and not stat.S_ISREG(path.stat().st_mode):
        raise ValueError("not a file")
    with path.open("rb") as file:
        data = file.read(LARGEST + 1)
    if len(data) > LARGEST:
        raise ValueError(f"longer than {LARGEST >> 20} MiB")
    return data.decode("utf-8-sig")


def parsed(text: str, *, is_json: bool = False) -> Any:
    """Return the document in the text. Raises ValueError."""
    try:
        document = json.loads(text) if is_json else tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        lines = text.splitlines() or [""]
        end = f"at line {len(lines)}, column {len(lines[-1]) + 1}"
        raise ValueError(str(error).replace("at end of document", end)) from None
    except RecursionError:
        raise ValueError(TOO_DEEP) from None
    if is_deep(document):
        raise ValueError(TOO_DEEP)
    return document


def with_line(path: Path, language: str, error: ValueError) -> str:
    """Return one line for a syntax error: file, line, and what the parser says."""
    found = SYNTAX.fullmatch(str(error))
    if found is None:
        return f"{path}: not {language}: {error}"
    return f"{path}:{found['line']}: not {language}: {found['text']} (column {found['column']})"


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
