"""How the process's allocator is told to go about its memory.

Rule of this file: a hint that the C library may not have; without it everything works, and costs more.
"""

from __future__ import annotations

import ctypes

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3
"""glibc's malloc.h, M_…"""

KEPT = 64 << 20
"""Bytes that a burst has touched and that are kept for the next one."""


def keep_freed_memory() -> None:
    """Do not give the memory of each large read back to the kernel at once, only to fault it in anew at the next.

    A read of a large body is a quarter of a mebibyte: freed, it would be the top of the heap and trimmed each time.
    Told to keep it, a mebibyte costs a third less time.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # musl, macOS, Windows
        return
    mallopt(_TRIM_THRESHOLD, KEPT)
    mallopt(_TOP_PAD, 1 << 20)
    mallopt(_MMAP_THRESHOLD, KEPT // 2)
