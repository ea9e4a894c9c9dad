"""Explanations: why a request was sent to its endpoint.

Nothing here may cost a request time while no trace is active. A policy has an attribute `trace`, None until the router
activates it; if set, the policy adds a note for each choice it makes, with a reason code, the candidates, and their
scores. A choice in steps, such as a region and then one of its endpoints, has several notes. A policy that adds none is
explained as PICKED.

Scores are the values that were compared, so their order is the policy's: usually the least wins. Scores that are costs
in seconds may come with their parts by name. Notes must change nothing: a seeded run is the same with them.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import wraps
from math import inf, isfinite, isnan
from typing import Any, Final, NamedTuple

from policies.endpoint.state import EndpointState
from policies.facts import Endpoint, RequestFacts
from policies.stats.latency import FORGET_AFTER

Parts = Mapping[str, float]
"""Parts of a cost in seconds, by name."""

NAMED: Final = 4
"""Candidates whose parts a text names; JSON has those of all."""

LEAST: Final = 1e-5
"""Seconds below which a text leaves out a part or a difference."""

LEAST_SHARE: Final = 0.02
"""The same, as a share of the sum, or of the difference of two."""


class Cost(NamedTuple):
    """Cost of one candidate in seconds, with its parts."""

    name: str
    seconds: float
    parts: Parts

    def __str__(self) -> str:
        """Return the sum in milliseconds: `us-1: 90 distance + 20 service - 10 margin = 100 ms`."""
        least = max(LEAST, LEAST_SHARE * abs(self.seconds))
        terms = " ".join(
            f"{'-' if part < 0.0 else '+'} {milliseconds(abs(part))} {name}"
            for name, part in self.parts.items()
            if not abs(part) < least
        )
        equals = f"{terms.removeprefix('+ ')} = " if terms else ""
        return f"{self.name}: {equals}{milliseconds(self.seconds)} ms"

    def compared(self, other: Cost) -> str:
        """Return what makes the other dearer or cheaper, the largest part first; empty if a cost is not a number."""
        difference = other.seconds - self.seconds
        if isnan(difference):
            return ""
        if abs(difference) < LEAST:
            return f"{other.name} costs the same"
        sign, more, less = (1.0, "more", "less") if difference > 0.0 else (-1.0, "less", "more")
        changes = [
            (sign * (other.parts.get(name, 0.0) - self.parts.get(name, 0.0)), name)
            for name in dict.fromkeys((*self.parts, *other.parts))
        ]
        changes.sort(key=lambda change: -abs(change[0]))
        least = max(LEAST, LEAST_SHARE * abs(difference))
        causes = ", ".join(f"{milliseconds(change)} {name}" for change, name in changes if change >= least)
        against = ", ".join(
            f"{milliseconds(-change)} {less} {name}" for change, name in changes if change <= -least
        )
        told = ", but ".join(filter(None, (causes, against)))
        return f"{other.name} costs {milliseconds(abs(difference))} ms {more}{told and f': {told}'}"


def in_words(costs: list[Cost]) -> list[str]:
    """Return the sums of the first, and the number and the least cost of the others."""
    shown, others = [str(cost) for cost in costs[:NAMED]], costs[NAMED:]
    if others:
        shown.append(f"{len(others)} more from {milliseconds(others[0].seconds)} ms")
    return shown


def milliseconds(seconds: float) -> str:
    """Return milliseconds as whole ones from 10 on, else with two digits."""
    number = seconds * 1e3
    return f"{number:.2g}" if abs(number) < 9.95 else f"{number:.0f}"


PICKED: Final = "picked"
"""Reason: the policy records no notes of its own."""

ONLY_ONE: Final = "only-one"
"""Reason: no other endpoint was available."""

PANIC: Final = "panic"
"""Reason: the endpoint is unhealthy, and was eligible because of panic."""

BACKUP: Final = "backup"
"""Reason: the endpoint has a priority above 0, and those before it cannot carry all requests."""

LOOK: Final = "look"
"""Reason: a trial of an endpoint that has failed lately, without its failure penalty."""

RAISED: Final = "fallback-raised"
"""Reason: the policy raised an error. The fallback's reasons follow."""

NOT_SELECTABLE: Final = "fallback-not-on-offer"
"""Reason: the policy picked an endpoint that was not selectable. The fallback's reasons follow."""

TOO_SLOW: Final = "fallback-too-slow"
"""Reason: the policy exceeded its time budget. The fallback's reasons follow."""

OTHER: Final = "other"
"""Reason: only counted, for those beyond the first 100 different ones, as of a policy that writes numbers into them."""

MOST_REASONS: Final = 100
"""Different reasons that are counted each."""

Candidate = EndpointState | Endpoint | str
"""An endpoint, or the name of a region."""


class Step(NamedTuple):
    """Step of an explanation: its reason code, the candidates, and the score of each with its parts, or none."""

    reason: str
    candidates: tuple[Candidate, ...] = ()
    scores: tuple[float, ...] = ()
    parts: tuple[Parts, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return names and plain numbers for JSON; a score or part that is not finite is None."""
        scores: list[float | None] = [score if isfinite(score) else None for score in self.scores]
        scores += [None] * (len(self.candidates) - len(scores))
        pairs = zip(self.candidates, scores, strict=False)
        found: list[dict[str, Any]] = [{"id": _name(candidate), "score": score} for candidate, score in pairs]
        for candidate, parts in zip(found, self.parts, strict=False):
            if parts:
                rounded = {name: round(part, 9) if isfinite(part) else None for name, part in parts.items()}
                candidate["parts"] = rounded
        return {"reason": self.reason, "candidates": found}

    def costs(self, picked: EndpointState | None = None) -> list[Cost]:
        """Return the costs whose parts are known, that of the picked endpoint before the others in their order."""
        found = [
            (candidate is not picked, inf if isnan(score) else score, at)
            for at, (candidate, score) in enumerate(zip(self.candidates, self.scores, strict=False))
            if at < len(self.parts) and self.parts[at]
        ]
        return [
            Cost(_name(self.candidates[at]), self.scores[at], self.parts[at]) for _, _, at in sorted(found)
        ]

    def __str__(self) -> str:
        if costs := in_words(self.costs()):
            return f"{self.reason}({'; '.join(costs)})"
        if not self.candidates:
            return self.reason
        scores = [f"={score:.4g}" for score in self.scores]
        scores += [""] * (len(self.candidates) - len(scores))
        pairs = zip(self.candidates, scores, strict=False)
        return f"{self.reason}({' '.join(_name(candidate) + score for candidate, score in pairs)})"


class Explanation:
    """Why one request was sent to `picked`, at `now` in seconds, when `offered` endpoints were available."""

    def __init__(self, facts: RequestFacts, offered: int, now: float) -> None:
        self.facts = facts
        self.offered = offered
        self.now = now
        self.picked: EndpointState | None = None
        self.steps: list[Step] = []

    @property
    def reasons(self) -> tuple[str, ...]:
        """Reason codes in the order of the choices."""
        return tuple(step.reason for step in self.steps)

    def as_dict(self) -> dict[str, Any]:
        """Return a dictionary for JSON. A key may be a secret of the client, so only its presence is included."""
        facts = self.facts
        return {
            "at": self.now,
            "picked": self.picked.id if self.picked is not None else None,
            "offered": self.offered,
            "region": facts.region,
            "has_key": facts.key is not None,
            "attempt": facts.attempt,
            "tried": sorted(facts.tried),
            "steps": [step.as_dict() for step in self.steps],
            "comparison": self.comparison,
        }

    @property
    def comparison(self) -> str:
        """Difference to the cheapest other endpoint by parts: `eu-2 costs 14 ms more: 12 wait, 2 failure`; empty
        where the parts are not known."""
        for step in reversed(self.steps):
            costs = step.costs(self.picked)
            if len(costs) > 1 and self.picked in step.candidates:
                return costs[0].compared(costs[1])
        return ""

    @property
    def text(self) -> str:
        """Lines: each step, or each endpoint whose parts are known, the picked one first; the comparison."""
        lines = list[str]()
        for step in self.steps:
            costs = in_words(step.costs(self.picked))
            lines += [f"{step.reason}:", *(f"  {cost}" for cost in costs)] if costs else [str(step)]
        return "\n".join([*lines, self.comparison] if self.comparison else lines)

    def __str__(self) -> str:
        """Return one line: `spilled-over(emea=0.46 us=0.41) less-loaded(us-0=3 us-1=2) -> us-1`, and the comparison."""
        name = self.picked.id if self.picked is not None else "none"
        return "; ".join(filter(None, (f"{' '.join(map(str, self.steps))} -> {name}", self.comparison)))


class Trace:
    """Records the notes of the router and its policies while explanations are on.

    `last` is the explanation of the latest pick, `recent` holds the latest `keep` of them, oldest first. `counts`
    has the number of notes per reason, for at most `MOST_REASONS` and `OTHER`; a pick may have several, so they add up
    to more than `picks`. Counts that are given go on.
    """

    def __init__(self, keep: int = 1, counts: Counter[str] | None = None) -> None:
        self.counts: Counter[str] = Counter() if counts is None else counts
        self.picks = 0
        self.last: Explanation | None = None
        self.recent: deque[Explanation] = deque(maxlen=keep)

    def begin(self, facts: RequestFacts, offered: int, now: float) -> None:
        """Begin the explanation of a pick among `offered` available endpoints."""
        self.picks += 1
        self.last = Explanation(facts, offered, now)
        self.recent.append(self.last)

    def note(
        self,
        reason: str,
        candidates: Iterable[Candidate] = (),
        scores: Iterable[float] = (),
        parts: Iterable[Parts] = (),
    ) -> None:
        """Add a choice among `candidates` by `scores`, and the parts of each score in seconds. All are copied.

        What cannot be shown later raises TypeError or ValueError here, as a fault of the policy."""
        copied = tuple({str(name): float(part) for name, part in each.items()} for each in parts)
        step = Step(reason, tuple(candidates), tuple(map(float, scores)), copied)
        if not (isinstance(reason, str) and all(isinstance(each, Candidate) for each in step.candidates)):
            raise TypeError("a note takes a text as its reason, and endpoints or regions as candidates")
        reason.encode()  # raises for half a surrogate pair
        self.counts[reason if reason in self.counts or len(self.counts) < MOST_REASONS else OTHER] += 1
        if self.last is not None:
            self.last.steps.append(step)

    def end(self, state: EndpointState, now: float) -> None:
        """End the explanation, and add the notes that do not depend on the policy: panic and trial."""
        last = self.last
        if last is None:
            return
        last.picked = state
        if not last.steps:
            self.note(PICKED, (state,))
        if state.is_eligible and not state.is_healthy and PANIC not in last.reasons:
            self.note(PANIC, (state,))
        if state.endpoint.priority:
            self.note(BACKUP, (state,))
        if is_trial(state, now) and LOOK not in last.reasons:
            self.note(LOOK, (state,))


def is_trial(state: EndpointState, now: float) -> bool:
    """Whether one more request would be a trial of an endpoint that has failed lately."""
    latency = state.latency
    is_remembered = latency.failures > 0.0 and now - latency.measured_at < FORGET_AFTER
    return is_remembered and state.failure_penalty(now) == 0.0


def set_trace(policy: object, trace: Trace | None) -> None:
    """Set the trace of a policy, if it supports explanations."""
    if hasattr(policy, "trace"):
        policy.trace = trace


class WrappingPolicy:
    """Base of policies that wrap others: those whose reasons belong in the explanation share its trace."""

    _trace: Trace | None = None
    _inner: Collection[object] = ()

    @property
    def trace(self) -> Trace | None:
        return self._trace

    @trace.setter
    def trace(self, trace: Trace | None) -> None:
        self._trace = trace
        for policy in self._inner:
            set_trace(policy, trace)


def _name(candidate: Candidate) -> str:
    return candidate if isinstance(candidate, str) else candidate.id


Hook = Callable[..., Any]


def combine_hooks(chorus: object, policies: Sequence[object]) -> None:
    """Give `chorus` every hook that one of `policies` has, what one of them reads, and whether the first one keeps to
    regions."""
    if getattr(policies[0], "keeps_to_regions", False):
        setattr(chorus, "keeps_to_regions", True)  # noqa: B010 - no attribute of an object
    if any(getattr(policy, "reads_prompts", False) for policy in policies):
        setattr(chorus, "reads_prompts", True)  # noqa: B010 - no attribute of an object
    for name, combined in HOOKS.items():
        hooks = [getattr(policy, name) for policy in policies if hasattr(policy, name)]
        if hooks:
            setattr(chorus, name, hooks[0] if len(hooks) == 1 else combined(hooks))


def _all_with_own_lists(hooks: Sequence[Hook]) -> Hook:
    @wraps(hooks[0])  # messages on faults name the hook
    def tell(states: Sequence[EndpointState], now: float) -> None:
        for hook in hooks:
            hook([*states], now)

    return tell


def _all(hooks: Sequence[Hook]) -> Hook:
    @wraps(hooks[0])
    def tell(*arguments: Any) -> None:
        for hook in hooks:
            hook(*arguments)

    return tell


def _first(hooks: Sequence[Hook]) -> Hook:
    return hooks[0]


def _any(hooks: Sequence[Hook]) -> Hook:
    return lambda state: any(hook(state) for hook in hooks)


def _concatenated(hooks: Sequence[Hook]) -> Hook:
    return lambda now: [state for hook in hooks for state in hook(now)]


HOOKS: dict[str, Callable[[Sequence[Hook]], Hook]] = {
    "observe": _all,
    "observe_probe": _all,
    "assigned": _all,
    "first_token": _all,
    "report_prompts": _first,
    "hear_prompts": _all,
    "members_changed": _all_with_own_lists,
    "tick": _all,
    "doubts": _any,
    "probes": _concatenated,
}
"""Optional hooks of a policy -> how those of several are combined."""
