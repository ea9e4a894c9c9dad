"""Bodies of known hash: request bodies are hashed, response bodies generated from a formula.

Byte i of a generated body is `TILE[i % len(TILE)]`. The tile's length is prime, so a chunk that is lost, repeated or
out of order changes the hash whatever its size.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from functools import lru_cache
from random import Random
from typing import NamedTuple

from aiohttp import StreamReader

TILE = Random("steelyard").randbytes(65521)


class Digest(NamedTuple):
    """SHA-256 of a body, in hexadecimal, and its length in bytes."""

    sha256: str
    length: int


EMPTY = Digest(hashlib.sha256().hexdigest(), 0)


async def digest_of(content: StreamReader) -> Digest:
    """Read a request's body to its end and return its digest, without keeping the body."""
    if content.at_eof():
        return EMPTY
    sha256, length = hashlib.sha256(), 0
    async for chunk in content.iter_any():
        sha256.update(chunk)
        length += len(chunk)
    return Digest(sha256.hexdigest(), length)


def pieces(length: int) -> Iterator[bytes]:
    """Yield the generated body of `length` bytes, a tile at a time."""
    whole, rest = divmod(length, len(TILE))
    for _ in range(whole):
        yield TILE
    if rest:
        yield TILE[:rest]


@lru_cache(maxsize=256)
def digest_of_generated(length: int) -> Digest:
    """Return the digest of the generated body of `length` bytes."""
    sha256 = hashlib.sha256()
    for piece in pieces(length):
        sha256.update(piece)
    return Digest(sha256.hexdigest(), length)
