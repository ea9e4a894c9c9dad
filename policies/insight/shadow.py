"""Shadow policies: pick for every request, without effect, for comparison with the live policy.

A shadow sees what the live policy sees, at the same time: the same facts, endpoints and outcomes. It does not see the
outcomes of its own picks, so it shows how it would begin to differ, not the result. Its exceptions are counted and fail
no request; a slow one delays every request, since it runs before the request is sent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from random import Random
from typing import Any, Final

from policies.endpoint.available import Available
from policies.endpoint.state import EndpointState
from policies.errors import BrokenPolicy, Overloaded, raised, shown
from policies.facts import RequestFacts
from policies.insight.explanation import WrappingPolicy, combine_hooks
from policies.policy import Policy

FAULT_LIMIT = 100
"""Faults after which a shadow is no longer called: it would cost time and give no information."""


REJECTED: Final = "(rejected)"
"""Counted in place of an endpoint where a shadow would have rejected the request."""


class Shadow:
    """A shadow policy and its counts: `agreed` of `seen` picks were the live policy's; `picks` counts its own."""

    def __init__(self, name: str, policy: Policy) -> None:
        self.name = name
        self.policy = policy
        self.seen = self.agreed = self.faults = 0
        self.last_fault: str | None = None
        self.picks: Counter[str] = Counter()
        self.beside: Counter[str] = Counter()  # picks of the live policy for the same requests

    @property
    def is_asked(self) -> bool:
        """Whether it is still called: it has not failed too often."""
        return self.faults < FAULT_LIMIT

    def call(self, hook: Callable[..., Any], *arguments: Any) -> Any:
        """Call a method of the policy, unless it has failed too often; None if it raises, which is counted."""
        try:
            return hook(*arguments) if self.is_asked else None
        except KeyboardInterrupt:
            raise
        except BaseException as fault:
            self.faults += 1
            self.last_fault = raised(fault)
            return None

    def see(self, live: EndpointState, facts: RequestFacts, available: Available, now: float) -> None:
        """Let the shadow pick for a request for which the live policy has picked `live`."""

        def pick() -> str:
            try:
                state = self.policy.pick(facts, available, now)
            except Overloaded:
                return REJECTED
            if state.is_selectable and (not facts.tried or state in available):
                return state.id
            raise BrokenPolicy(f"picked {shown(state)}, which was not on offer")

        name: str | None = self.call(pick)
        if name is not None:
            self.seen += 1
            self.agreed += name == live.id
            self.picks[name] += 1
            self.beside[live.id] += 1

    @property
    def ratios(self) -> dict[str, float]:
        """The shadow beside the live policy, as `ratios_of` has it."""
        return ratios_of(self.seen, self.agreed, self.picks, self.beside)


def ratios_of(
    seen: int, agreed: int, picks: Mapping[str, int], beside: Mapping[str, int]
) -> dict[str, float]:
    """Compare the `picks` of a shadow with those of the live policy for the same requests.

    `agreement`: share of the picks on which both agree; `by_chance`: agreement expected if both drew at random from
    their own shares, independently; `skew`: share of the traffic that the shadow would move to other endpoints, the
    total variation distance of shares.
    """
    names, whole = picks.keys() | beside.keys(), max(1, seen)
    pairs = [(picks.get(name, 0), beside.get(name, 0)) for name in names]
    return {
        "agreement": agreed / whole,
        "by_chance": sum(own * live for own, live in pairs) / whole**2,
        "skew": sum(abs(own - live) for own, live in pairs) / 2 / whole,
    }


class Shadowed(WrappingPolicy):
    """Policy that delegates to `live` and lets `shadows` pick for comparison."""

    def __init__(self, live: Policy, shadows: Sequence[Shadow]) -> None:
        self.live = live
        self._inner = (live,)  # shadows add no reasons to an explanation
        self.shadows = tuple(shadows)
        combine_hooks(self, (live, *map(Guarded, shadows)))

    def pick(self, facts: RequestFacts, available: Available, now: float) -> EndpointState:
        """Delegate to the live policy, then let the shadows pick."""
        state = self.live.pick(facts, available, now)
        for shadow in self.shadows:
            shadow.see(state, facts, available, now)
        return state


SHADOWED: Final = (
    "observe", "observe_probe", "assigned", "first_token", "hear_prompts", "members_changed", "tick"
)  # fmt: skip
"""Hooks that a shadow has, too. `probes` is left out: probes cost workers time."""


class Guarded:
    """The hooks of a shadow, with exceptions counted as its faults."""

    def __init__(self, shadow: Shadow) -> None:
        self.reads_prompts = bool(getattr(shadow.policy, "reads_prompts", False))
        for name in SHADOWED:
            if hasattr(shadow.policy, name):
                setattr(self, name, partial(shadow.call, getattr(shadow.policy, name)))


def randomness(rng: Random) -> Random:
    """Return a separate generator for a shadow, so that it does not change what the live policy draws."""
    return Random(rng.getrandbits(64))
