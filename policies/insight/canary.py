"""Canary policy: a candidate gets a share of the requests, to be compared with the live policy before it replaces it.

Both see every outcome, and each counts the outcomes of its own requests. Both send to the same endpoints, so each is
affected by the other: a candidate that avoids a slow endpoint leaves it to the live policy. The comparison shows the
difference in placement, never how the candidate would do alone; for that, alternate them (`docs/live.md`).
"""

from __future__ import annotations

from hashlib import blake2b
from random import Random
from typing import Final

from policies.endpoint.available import Available
from policies.endpoint.state import EndpointState
from policies.facts import Outcome, OutcomeKind, RequestFacts
from policies.insight.explanation import WrappingPolicy, combine_hooks
from policies.policy import Policy
from policies.stats.load import Histogram

_OK: Final = OutcomeKind.OK

CANARY: Final = "canary"
"""Reason: the canary picks. Its own reasons follow."""


class Arm:
    """Live or candidate policy with its counts. `latency` is of its successes, from the pick to the last byte."""

    def __init__(self, role: str, name: str, policy: Policy) -> None:
        self.role = role
        self.name = name
        self.policy = policy
        self.picks = 0
        self.latency = Histogram()
        self.outcomes = dict.fromkeys(OutcomeKind, 0)

    def record(self, outcome: Outcome, picked_at: float) -> None:
        self.outcomes[outcome.kind] += 1
        if outcome.kind is _OK:
            self.latency.record(outcome.ended_at - picked_at)


class Canary(WrappingPolicy):
    """`live` picks, except for a `share` (0..1) of the requests, for which `candidate` does.

    With `by_key` requests with the same key, or without a key the same path, always use the same policy; else it is
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
        self._random = rng.random
        self._last: Arm | None = None
        self._inner = (live[1], candidate[1])
        combine_hooks(self, self._inner)

    @property
    def arms(self) -> tuple[Arm, Arm]:
        return self.live, self.candidate

    def pick(self, facts: RequestFacts, available: Available, now: float) -> EndpointState:
        """Delegate to the live policy or to the candidate, by the canary's share."""
        is_canary = (_fraction(facts) if self.by_key else self._random()) < self.share
        self._last = arm = self.candidate if is_canary else self.live
        arm.picks += 1
        if is_canary and self._trace is not None:
            self._trace.note(CANARY)
        return arm.policy.pick(facts, available, now)

    def take(self) -> Arm | None:
        """Return the arm of the last pick, once; None if the last pick was not made here."""
        arm, self._last = self._last, None
        return arm


def _fraction(facts: RequestFacts) -> float:
    """Return a number in 0..1 from the request's key or path, evenly distributed and equal in every process."""
    text = facts.key if facts.key is not None else facts.path
    digest = blake2b(text.encode("utf-8", "surrogateescape"), digest_size=8, person=b"canary").digest()
    return int.from_bytes(digest, "big") * 0.5**64
