"""What is known of one name, and for how long it serves.

Rule of this file: no I/O and no clock. An answer serves while it is fresh, and a while longer while nobody knows better
(stale-while-revalidate, RFC 8767); a failure serves, too, so that a name which does not resolve is not asked for with
every request (RFC 2308). Whoever refreshes asks `is_due`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Worth(Enum):
    """What an asker gets now."""

    FRESH = "fresh"
    STALE = "stale"  # it serves, and is being looked up again
    FAILED = "failed"  # no answer, and it is too early to ask again
    UNKNOWN = "unknown"  # who asks has to wait


@dataclass(frozen=True, slots=True)
class NameRules:
    """Seconds. An answer is fresh for its TTL, but for `shortest` at least and `longest` at most, then stale for
    `stale`; after a failure nobody asks for `negative`."""

    shortest: float = 1.0
    longest: float = 300.0
    stale: float = 86_400.0
    negative: float = 5.0


class KnownName:
    """One name. `hosts` are its addresses by the last answer, `fault` is why there was none the last time."""

    def __init__(self) -> None:
        self.hosts: tuple[str, ...] = ()
        self.fault: str | None = None
        self.answered_at: float | None = None
        self._fresh_until = 0.0
        self._due_at = float("-inf")

    def answered(self, hosts: tuple[str, ...], ttl: float, rules: NameRules, now: float) -> None:
        """There is an answer that holds for `ttl` seconds."""
        self.hosts, self.fault, self.answered_at = hosts, None, now
        self._fresh_until = self._due_at = now + min(max(ttl, rules.shortest), rules.longest)

    def failed(self, fault: str, rules: NameRules, now: float) -> None:
        """There is none; what was known goes on serving."""
        self.fault = fault
        self._due_at = now + rules.negative

    def worth(self, rules: NameRules, now: float) -> Worth:
        """What it is good for now."""
        if self.hosts and now < self._fresh_until:
            return Worth.FRESH
        if self.hosts and now < self._fresh_until + rules.stale:
            return Worth.STALE
        return Worth.FAILED if self.fault is not None and not self.is_due(now) else Worth.UNKNOWN

    def is_due(self, now: float) -> bool:
        """Whether to ask for it again."""
        return now >= self._due_at

    def age(self, now: float) -> float | None:
        """Seconds since the last answer; None: there was none."""
        return None if self.answered_at is None else now - self.answered_at
