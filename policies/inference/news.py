"""News of prefixes for other units: what was sent since the last report, bounded in bytes."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Final

from policies.endpoint.state import EndpointState
from policies.prompts import Prefix

MOST_BYTES: Final = 1 << 15
"""Bytes of prefixes in one report, 4,094 blocks, which are half a million tokens. The oldest beyond it are dropped."""

PREFIX_BYTES: Final = 16
BLOCK_HASH_BYTES: Final = 8
MOST_BLOCKS: Final = (MOST_BYTES - PREFIX_BYTES) // BLOCK_HASH_BYTES


class PrefixNews:
    """Prefixes that no report has had yet, oldest first."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[EndpointState, int, list[int]]] = deque()
        self._bytes = 0

    def add(self, state: EndpointState, kind: int, blocks: list[int]) -> None:
        """Add blocks of an endpoint, of one of the kinds of `Prefix`; the list must not change."""
        if not blocks:
            return
        if len(blocks) > MOST_BLOCKS:
            blocks = blocks[:MOST_BLOCKS]
        self._waiting.append((state, kind, blocks))
        self._bytes += PREFIX_BYTES + BLOCK_HASH_BYTES * len(blocks)
        while self._bytes > MOST_BYTES:
            self._bytes -= PREFIX_BYTES + BLOCK_HASH_BYTES * len(self._waiting.popleft()[2])

    def take(self, members: Mapping[int, EndpointState]) -> list[Prefix]:
        """Return the news of these endpoints, by key, and forget all."""
        if not self._waiting:
            return []
        keys = {state: key for key, state in members.items()}
        taken = [Prefix(keys[state], kind, blocks) for state, kind, blocks in self._waiting if state in keys]
        self._waiting.clear()
        self._bytes = 0
        return taken
