"""Cached answer for one name: whether it is fresh, stale, failed or unknown.

A fresh answer is used; a stale one is also used while a lookup is in progress or fails (serve-stale, RFC 8767). A
failure is cached, too, so that a name that does not resolve is not looked up for every request (negative caching, RFC
2308). Pure: no I/O, no clock.
"""

from __future__ import annotations

from enum import Enum

from balancer.config.schema.names import NamesConfig


class CacheState(Enum):
    """State of a cached name when its addresses are requested."""

    FRESH = "fresh"
    STALE = "stale"  # usable, to be refreshed
    FAILED = "failed"  # cached failure, too early for a new lookup
    UNKNOWN = "unknown"  # needs a lookup before use


class CachedName:
    """Cache entry of one name. `hosts`: addresses of the last answer; `fault`: reason of the last lookup's failure,
    None if it succeeded."""

    def __init__(self) -> None:
        self.hosts: tuple[str, ...] = ()
        self.fault: str | None = None
        self.answered_at: float | None = None
        self._fresh_until = 0.0
        self._due_at = float("-inf")

    def answered(self, hosts: tuple[str, ...], ttl: float, config: NamesConfig, now: float) -> None:
        """Store an answer with its TTL in seconds."""
        self.hosts, self.fault, self.answered_at = hosts, None, now
        self._fresh_until = self._due_at = now + min(max(ttl, config.min_ttl), config.max_ttl)

    def failed(self, fault: str, config: NamesConfig, now: float) -> None:
        """Store a failed lookup; the addresses of the last answer are kept."""
        self.fault = fault
        self._due_at = now + config.negative_ttl

    def worth(self, config: NamesConfig, now: float) -> CacheState:
        """State of the entry at `now`."""
        if self.hosts and now < self._fresh_until:
            return CacheState.FRESH
        if self.hosts and now < self._fresh_until + config.max_stale:
            return CacheState.STALE
        return CacheState.FAILED if self.fault is not None and not self.is_due(now) else CacheState.UNKNOWN

    def is_due(self, now: float) -> bool:
        """Whether a new lookup should start."""
        return now >= self._due_at

    def age(self, now: float) -> float | None:
        """Seconds since the last answer; None if there was none."""
        return None if self.answered_at is None else now - self.answered_at
