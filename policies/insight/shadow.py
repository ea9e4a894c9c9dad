"""Policies that are asked where they would send a request, and never send one.

Rule of this file: a shadow sees what the live policy sees, at the same instant: the same facts, endpoints and outcomes.
It cannot see what its own picks would have led to, so it tells how it would begin to differ, not how it would end. One
that raises is counted, and costs no request; one that is slow makes every request slower, since it is asked on the way.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from random import Random
from typing import Any

from policies.insight.combined_hooks import hooks_of, take_on
from policies.insight.explanation import Around
from policies.policy import Policy
from policies.routing.available import Available
from policies.routing.endpoint_state import EndpointState
from policies.routing.facts import RequestFacts

TOO_OFTEN = 100
"""Faults after which a shadow is asked no more: it would cost time and tell nothing."""


class Shadow:
    """One of them. Of the `seen` picks it `agreed` on so many with the live policy; `picks` are its own."""

    def __init__(self, name: str, policy: Policy) -> None:
        self.name = name
        self.policy = policy
        self.seen = self.agreed = self.faults = 0
        self.last_fault: str | None = None
        self.picks: Counter[str] = Counter()
        self.beside: Counter[str] = Counter()  # the live policy's of the same requests

    @property
    def is_asked(self) -> bool:
        """Whether it has not failed too often."""
        return self.faults < TOO_OFTEN

    def see(self, live: EndpointState, facts: RequestFacts, available: Available, now: float) -> None:
        """The live policy has picked `live`."""
        try:
            state = self.policy.pick(facts, available, now)
            name = state.id
        except Exception as fault:
            self.blame(fault)
            return
        self.seen += 1
        self.agreed += state is live
        self.picks[name] += 1
        self.beside[live.id] += 1

    def blame(self, fault: Exception) -> None:
        """It has failed."""
        self.faults += 1
        self.last_fault = f"raised {fault!r}"

    @property
    def agreement(self) -> float:
        """Share (0..1) of the picks on which both agree."""
        return self.agreed / self.seen if self.seen else 0.0

    @property
    def by_chance(self) -> float:
        """What it would be if each drew from its own shares and knew nothing of the other."""
        return sum(self.picks[name] * number for name, number in self.beside.items()) / max(1, self.seen) ** 2

    @property
    def skew(self) -> float:
        """Share (0..1) of the traffic that it would move to other endpoints: the total variation distance of shares."""
        names = self.picks.keys() | self.beside.keys()
        return sum(abs(self.picks[name] - self.beside[name]) for name in names) / 2 / max(1, self.seen)


class Shadowed(Around):
    """A `live` policy with `shadows`."""

    def __init__(self, live: Policy, shadows: Sequence[Shadow]) -> None:
        self.live = live
        self.shadows = tuple(shadows)
        self.keeps_to_regions = bool(getattr(live, "keeps_to_regions", False))
        guarded = [Guarded(shadow) for shadow in shadows]
        take_on(self, (live, *guarded))

    def inside(self) -> Iterable[Policy]:
        """The live one: a shadow's reasons are no reasons."""
        return (self.live,)

    def pick(self, facts: RequestFacts, available: Available, now: float) -> EndpointState:
        """Whom the live policy picks."""
        state = self.live.pick(facts, available, now)
        for shadow in self.shadows:
            if shadow.is_asked:
                shadow.see(state, facts, available, now)
        return state


class Guarded:
    """The hooks of a shadow: what they raise is the shadow's fault. It asks for no probes: those cost workers work."""

    def __init__(self, shadow: Shadow) -> None:
        for name in ("observe", "observe_probe", "members_changed", "tick"):
            for hook in hooks_of([shadow.policy], name):
                setattr(self, name, _guarded(shadow, hook))

    def pick(self, facts: RequestFacts, available: Available, now: float) -> EndpointState:
        """Nobody asks here."""
        raise NotImplementedError


def _guarded(shadow: Shadow, hook: Callable[..., None]) -> Callable[..., None]:
    def call(*arguments: Any) -> None:
        if shadow.is_asked:
            try:
                hook(*arguments)
            except Exception as fault:
                shadow.blame(fault)

    return call


def randomness(rng: Random) -> Random:
    """A shadow's own: what it draws must not change what the live policy draws."""
    return Random(rng.getrandbits(64))
