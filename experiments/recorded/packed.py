"""Read text files that may be compressed by gzip, as rotated logs are, which is seen by their first bytes."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from io import BufferedReader, TextIOWrapper

from experiments.errors import BadInputError

GZIP_MAGIC = b"\x1f\x8b"

DAMAGED = "damaged, or compressed in part, which `zcat -f` mends"

LONGEST_LINE = 8 << 20
"""Limit in characters; a balancer writes at most some thousand."""


def unpacked(file: BufferedReader) -> gzip.GzipFile | BufferedReader:
    """Return the content of a file, decompressed."""
    is_compressed = file.peek(len(GZIP_MAGIC)).startswith(GZIP_MAGIC)
    return gzip.GzipFile(fileobj=file) if is_compressed else file


def text_lines(file: BufferedReader, encoding: str) -> Iterator[str]:
    """Yield the lines of a text; other bytes are replaced, and a line beyond `LONGEST_LINE` comes in pieces."""
    with TextIOWrapper(unpacked(file), encoding=encoding, errors="replace") as text:
        for line in iter(partial(text.readline, LONGEST_LINE + 1), ""):
            if line.startswith("\x1f\ufffd\x08"):
                raise ValueError("gzip after plain text")
            yield line


@contextmanager
def reading(name: str) -> Iterator[None]:
    """Raise `BadInputError`, with `name`, for a file that cannot be read or is damaged."""
    try:
        yield
    except (OSError, ValueError, EOFError, zlib.error) as error:  # ValueError: a NUL in the path
        reason = error.strerror if isinstance(error, OSError) and error.strerror else DAMAGED
        raise BadInputError(f"{name} cannot be read: {reason}") from None
