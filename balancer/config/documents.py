"""Read TOML and JSON files with limits on size, depth, digits and time."""

from __future__ import annotations

import errno
import json
import os
import re
import stat
import sys
import tomllib
from math import log2
from pathlib import Path
from select import POLLIN, poll
from time import monotonic
from typing import Any, Final

MAX_FILE_BYTES: Final = 16 << 20
"""Size limit of a file in bytes: some hundred thousand endpoints."""

MAX_DEPTH: Final = 32
"""Limit of nested tables and lists."""

LONGEST_WAIT: Final = 10.0
"""Limit in seconds for reading a pipe, as nothing may ever write to it."""

TOO_DEEP: Final = f"more than {MAX_DEPTH} tables or lists inside each other"

MOST_DIGITS: Final = sys.int_info.default_max_str_digits
"""Limit of decimal digits, beyond which Python refuses to read or write a whole number."""

MOST_BITS: Final = int(MOST_DIGITS * log2(10))

TOO_LONG: Final = f"a whole number has more than {MOST_DIGITS} digits"

DIGITS: Final = re.compile(r"[0-9_]+").finditer

SYNTAX: Final = re.compile(
    r"(?s)(?P<text>.*?)(?: \(at line |: line )(?P<line>\d+),? column (?P<column>\d+)(?:\)| \(char \d+\))",
)
"""Messages of `tomllib` and `json`, which end in the position."""


def read_text(path: Path, *, is_plain: bool = False) -> str:
    """Return the text of the file, without a byte order mark. With `is_plain` a pipe or a device is refused. Raises
    OSError, and ValueError with a message of one line.
    """
    file = os.open(
        path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
    )  # opening a pipe waits for its writer otherwise
    try:
        if is_plain and not stat.S_ISREG(os.fstat(file).st_mode):
            raise ValueError("not a file")
        data = _read(file)
    finally:
        os.close(file)
    if len(data) > MAX_FILE_BYTES:
        raise ValueError(f"longer than {MAX_FILE_BYTES >> 20} MiB")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = data[: error.start].split(b"\n")
        position = f"at line {len(before)}, column {len(before[-1]) + 1}"
        raise ValueError(f"not UTF-8, byte 0x{data[error.start]:02x} ({position})") from None


def _read(file: int) -> bytes:
    """Return what the file holds, at most MAX_FILE_BYTES + 1 bytes. Raises OSError, also after LONGEST_WAIT."""
    end = monotonic() + LONGEST_WAIT
    ready = poll()
    ready.register(file, POLLIN)
    data = bytearray()
    while len(data) <= MAX_FILE_BYTES:
        if not ready.poll(max(0.0, end - monotonic()) * 1000):
            raise OSError(errno.ETIMEDOUT, f"its end is not reached within {LONGEST_WAIT:g} s")
        part = os.read(file, MAX_FILE_BYTES + 1 - len(data))
        if not part:
            break
        data += part
    return bytes(data)


def parsed(text: str, *, is_json: bool = False) -> Any:
    """Return the document in the text. Raises ValueError."""
    try:
        document = json.loads(text) if is_json else tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        lines = text.split("\n")
        end = f"at line {len(lines)}, column {len(lines[-1]) + 1}"
        raise ValueError(str(error).replace("at end of document", end)) from None
    except RecursionError:
        raise ValueError(TOO_DEEP) from None
    except ValueError as error:
        if "digits" not in str(error):
            raise
        runs = (run.start() for run in DIGITS(text) if len(run[0].replace("_", "")) > MOST_DIGITS)
        start = next(runs, 0)
        before = text[:start].split("\n")
        raise ValueError(f"{TOO_LONG} (at line {len(before)}, column {len(before[-1]) + 1})") from None
    check_limits(document)
    return document


def with_line(path: Path, language: str, error: ValueError) -> str:
    """Return one line for a syntax error: file, line, and what the parser says."""
    found = SYNTAX.fullmatch(str(error))
    if found is None:
        return f"{path}: not {language}: {error}"
    return f"{path}:{found['line']}: not {language}: {found['text']} (column {found['column']})"


def check_limits(document: Any) -> None:
    """Check depth and digits; iterative, as recursion would hit Python's limit. Raises ValueError."""
    level: list[Any] = [[document]]
    for _ in range(MAX_DEPTH + 2):
        if not level:
            return
        inner = [
            child
            for node in level
            for child in (node.values() if isinstance(node, dict) else node)
            if isinstance(child, dict | list | int)
        ]
        if any(isinstance(child, int) and child.bit_length() > MOST_BITS for child in inner):
            raise ValueError(TOO_LONG)  # in hexadecimal: of decimal digits, the parser knows the line
        level = [child for child in inner if isinstance(child, dict | list)]
    raise ValueError(TOO_DEEP)
