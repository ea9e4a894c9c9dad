"""From texts to numbers that are spread evenly, the same in every process and on every machine.

Rule of this file: Python's own `hash` of a text differs from process to process, so balancers beside each other could
not agree by it.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Final
from zlib import crc32

BITS: Final = 64
MASK: Final = (1 << BITS) - 1
UNIT: Final = 0.5**BITS
"""What such a number times it is lies in 0..1."""

_GOLDEN: Final = 0x9E3779B97F4A7C15
"""2^64 over the golden ratio: its multiples lie evenly whatever is multiplied (Knuth, TAOCP 3, 6.4)."""


def of_key(key: str) -> int:
    """64 bits, of which the upper ones are the better ones.

    On the path of every request, so it is the quickest that spreads: CRC-32, a quarter of BLAKE2's time, and a
    multiplication because the CRCs of texts that differ in a few digits lie more evenly than chance would have them.
    """
    return crc32(key.encode("utf-8", "surrogateescape")) * _GOLDEN & MASK


def of_name(name: str) -> int:
    """64 bits, for what is worked out when endpoints change."""
    return int.from_bytes(blake2b(_bytes(name), digest_size=8).digest(), "big")


def several(name: str, number: int) -> list[int]:
    """So many numbers of 64 bits; of more, the first are the same."""
    found: list[int] = []
    for block in range(0, number, 8):
        digest = blake2b(_bytes(name), salt=(block // 8).to_bytes(8, "big")).digest()
        found += [int.from_bytes(digest[at : at + 8], "big") for at in range(0, 64, 8)]
    return found[:number]


def mixed(number: int) -> int:
    """Every bit depends on every other (the finalizer of SplitMix64, Steele, Lea and Flood 2014)."""
    number = (number ^ (number >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    number = (number ^ (number >> 27)) * 0x94D049BB133111EB & MASK
    return number ^ (number >> 31)


def _bytes(name: str) -> bytes:
    return name.encode("utf-8", "surrogateescape")
