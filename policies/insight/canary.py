"""A second policy that gets a share of the requests, so that the two can be compared before one replaces the other.

Rule of this file: both see every outcome, and each counts what became of its own requests. Both send to the same
endpoints, so each lives with what the other does: a candidate that keeps clear of a slow endpoint leaves it to the
rest. What the comparison shows is the difference in placing, never what the candidate would do alone; for that, take
turns (`docs/live.md`).
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from random import Random
from typing import Final

from policies.insight.combined_hooks import take_on
from policies.insight.explanation import Around
from policies.policy import Policy
from policies.routing.available import Available
from policies.routing.endpoint_state import EndpointState
from policies.routing.facts import Outcome, OutcomeKind, RequestFacts
from policies.stats.load import Histogram

_OK: Final = OutcomeKind.OK
_WHOLE: Final = float(1 << 64)

CANARY: Final = "canary"
"""The reason code: the canary picks. Its own reasons follow."""


class Arm:
    """One of the two. `latency` is of its successes, from the pick to the last byte."""

    __slots__ = ("latency", "name", "outcomes", "picks", "policy", "role")

    def __init__(self, role: str, name: str, policy: Policy) -> None:
        self.role = role
        self.name = name
        self.policy = policy
        self.picks = 0
        self.latency = Histogram()
        self.outcomes = dict.fromkeys(OutcomeKind, 0)

    def record(self, outcome: Outcome, picked_at: float) -> None:
        """One of its requests has ended."""
        self.outcomes[outcome.kind] += 1
        if outcome.kind is _OK:
            self.latency.record(outcome.ended_at - picked_at)


class Canary(Around):
    """`live` picks, but for a `share` (0..1) of the requests, for which `candidate` does.

    With `by_key` the same key, or where there is none the same path, always goes to the same of the two; else it is
    drawn for each request.
    """

    def __init__(
        self,
        live: tuple[str, Policy],
        candidate: tuple[str, Policy],
        rng: Random,
        *,
        share: float,
        by_key: bool = False,
    ) -> None:
        self.live = Arm("live", *live)
        self.candidate = Arm("canary", *candidate)
        self.share = share
        self.by_key = by_key
        self.keeps_to_regions = bool(getattr(live[1], "keeps_to_regions", False))
        self._random = rng.random
        self._last: Arm | None = None
        take_on(self, (live[1], candidate[1]))

    @property
    def arms(self) -> tuple[Arm, Arm]:
        """Both, the live one first."""
        return self.live, self.candidate

    def inside(self) -> Iterable[Policy]:
        """Both."""
        return (arm.policy for arm in self.arms)

    def pick(self, facts: RequestFacts, available: Available, now: float) -> EndpointState:
        """Whom the one of them picks whose turn it is."""
        is_canary = (_fraction(facts) if self.by_key else self._random()) < self.share
        self._last = arm = self.candidate if is_canary else self.live
        arm.picks += 1
        if is_canary and self._trace is not None:
            self._trace.note(CANARY)
        return arm.policy.pick(facts, available, now)

    def take(self) -> Arm | None:
        """Who made the last pick; None where it was made without asking here, or was taken before."""
        arm, self._last = self._last, None
        return arm


def _fraction(facts: RequestFacts) -> float:
    """0..1 by what the request is, evenly and the same each time and everywhere."""
    text = facts.key if facts.key is not None else facts.path
    digest = blake2b(text.encode("utf-8", "surrogateescape"), digest_size=8, person=b"canary").digest()
    return int.from_bytes(digest, "big") / _WHOLE
