"""64-bit hashes of strings, equal in every process and on every machine.

Do not use `hash()` here: it differs from process to process, so that balancers could not agree on a placement.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Final
from zlib import crc32

BITS: Final = 64
MASK: Final = (1 << BITS) - 1
UNIT: Final = 0.5**BITS
"""Factor that maps a 64-bit number to 0..1."""

_GOLDEN: Final = 0x9E3779B97F4A7C15
"""2^64 over the golden ratio: its multiples are evenly spread whatever is multiplied (Knuth, TAOCP 3, 6.4)."""


def of_key(key: str) -> int:
    """Return a fast 64-bit hash of a request key; the upper bits are the better mixed ones.

    On the path of every request, so it is the fastest that spreads well: CRC-32, a quarter of BLAKE2's time, then a
    multiplication, because the CRCs of strings that differ in a few digits are spread more evenly than random ones.
    """
    return crc32(key.encode("utf-8", "surrogateescape")) * _GOLDEN & MASK


def of_name(name: str) -> int:
    """Return a 64-bit BLAKE2 hash of `name`, for tables that are built when endpoints change."""
    return int.from_bytes(blake2b(_bytes(name), digest_size=8).digest(), "big")


def several(name: str, number: int) -> list[int]:
    """Return `number` 64-bit hashes of `name`; a longer list begins with the shorter one."""
    found: list[int] = []
    for block in range(0, number, 8):
        digest = blake2b(_bytes(name), salt=(block // 8).to_bytes(8, "big")).digest()
        found += [int.from_bytes(digest[at : at + 8], "big") for at in range(0, 64, 8)]
    return found[:number]


def mixed(number: int) -> int:
    """Mix all bits of a 64-bit number by the finalizer of SplitMix64 (Steele, Lea and Flood 2014)."""
    number = (number ^ (number >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    number = (number ^ (number >> 27)) * 0x94D049BB133111EB & MASK
    return number ^ (number >> 31)


def _bytes(name: str) -> bytes:
    return name.encode("utf-8", "surrogateescape")
