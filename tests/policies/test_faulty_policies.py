"""Policies that misuse what the router gives them: the fault is theirs, and no request and no other policy has it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from operator import delitem, setitem
from random import Random
from typing import Any

import pytest

from policies import (
    Available,
    BrokenPolicy,
    EndpointState,
    Outcome,
    OutcomeKind,
    Policy,
    RequestFacts,
    Router,
    registry,
)
from policies.algorithms.random_choice import RandomChoice
from policies.contract import ContractBroken, ManualClock, endpoints, rules
from policies.insight.explanation import Trace
from policies.insight.shadow import Shadow, Shadowed
from policies.routing.trial_pick import require_pick
from tests.support.traces import last, traced

FACTS = RequestFacts(region="here")


def router(policy: Any, number: int = 3) -> Router:
    return Router(endpoints(*[1] * number), policy, ManualClock(), Random(1))


def serve(r: Router, times: int = 1) -> Counter[str]:
    """Route and settle so many requests, one after another; count the picks."""
    picked = Counter[str]()
    for number in range(times):
        assignment = r.route(RequestFacts(region="here", key=f"k{number}"))
        assert assignment.state is r.find(assignment.endpoint.id)
        r.settle(assignment, Outcome(OutcomeKind.OK, 200, 0.0, 0.1, 0.1))
        picked[assignment.endpoint.id] += 1
    return picked


class Led:
    """Sends all to one until it is gone; the class keeps it, so all its instances share it."""

    leader: list[EndpointState] = []  # noqa: RUF012 - that is the mistake

    def pick(self, facts: RequestFacts, available: Available, now: float) -> EndpointState:
        if not self.leader or not self.leader[0].is_selectable:
            self.leader[:] = [available[0]]
        return self.leader[0]


@pytest.fixture(autouse=True)
def _leaderless() -> None:
    Led.leader.clear()


def test_endpoint_of_another_router_is_not_on_offer() -> None:
    """Though it is selectable there and has the same id: the request would neither be counted nor settled."""
    one, other = router(Led()), router(Led())
    serve(one)
    serve(other, 3)
    assert [(r.routed, r.in_flight, r.fallback_picks) for r in (one, other)] == [(1, 0, 0), (3, 0, 3)]
    assert "not on offer" in str(other.last_fault)


def test_endpoints_of_a_trial_pick_are_not_selectable_after_it() -> None:
    require_pick(Led(), endpoints(1, 1))
    assert Led.leader
    r = router(Led())
    serve(r, 2)
    assert (r.fallback_picks, Led.leader) == (0, [r.states[0]])


# --- changes of lists


CHANGES: dict[str, Callable[[Any], object]] = {
    "sort": lambda found: found.sort(key=lambda state: -state.order),
    "reverse": lambda found: found.reverse(),
    "pop": lambda found: found.pop(),
    "remove": lambda found: found.remove(found[0]),
    "clear": lambda found: found.clear(),
    "append": lambda found: found.append(found[0]),
    "extend": lambda found: found.extend([]),
    "insert": lambda found: found.insert(0, found[0]),
    "set": lambda found: setitem(found, 0, found[1]),
    "delete": lambda found: delitem(found, 0),
    "add": lambda found: found.__iadd__([]),
    "multiply": lambda found: found.__imul__(1),
    "shuffle": lambda found: Random(1).shuffle(found),
    "region's": lambda found: found.by_region["here"].sort(key=lambda state: -state.order),
    "region": lambda found: found.by_region.pop("here"),
    "regions": lambda found: setitem(found.by_region, "there", []),
}


class Changing(RandomChoice):
    """Changes the list of available endpoints, as `change` does."""

    def __init__(self, change: Callable[[Any], object]) -> None:
        super().__init__(Random(1))
        self._change = change

    def pick(self, facts: RequestFacts, available: Available, now: float) -> EndpointState:
        self._change(available)
        return super().pick(facts, available, now)


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_list_of_available_endpoints_cannot_be_changed(change: Callable[[Any], object]) -> None:
    """Not by the policy in force, and not by a shadow: it is their fault, and endpoints come and go as before."""
    shadow = Shadow("changing", Changing(change))
    for policy, expected in ((Changing(change), 40), (Shadowed(RandomChoice(Random(1)), [shadow]), 0)):
        r = router(policy)
        assert len(serve(r, 20)) == 3
        r.set_enabled("here-1", False)
        assert set(serve(r, 20)) == {"here-0", "here-2"}
        r.set_enabled("here-1", True)
        assert [state.id for state in r.available] == ["here-0", "here-1", "here-2"]
        assert r.fallback_picks == expected
        assert expected == 0 or re.search(r"read-only|mappingproxy", str(r.last_fault))
    assert (shadow.faults, shadow.seen) == (40, 0)
    with pytest.raises(BrokenPolicy, match=r"read-only|mappingproxy"):
        require_pick(Changing(change), endpoints(1, 1, 1), "here")


def test_copy_of_the_list_may_be_changed() -> None:
    available = router(RandomChoice(Random(1))).available
    for copied in (copy(available), available.copy(), available[:], list(available)):
        copied.reverse()
        assert [*copied] == [*reversed(available)]


class Listing(RandomChoice):
    """Keeps the states that it is notified of, in an order of its own."""

    def members_changed(self, states: list[EndpointState], now: float) -> None:
        self.states = states
        states.sort(key=lambda state: -state.order)


class Keeping(RandomChoice):
    def members_changed(self, states: list[EndpointState], now: float) -> None:
        self.states = states


def test_shadow_does_not_change_the_list_of_members_of_the_live_policy() -> None:
    live, shadow = Keeping(Random(1)), Listing(Random(1))
    r = router(Shadowed(live, [Shadow("listing", shadow)]))
    assert live.states == [*r.states] == shadow.states[::-1]


# --- notes


class Noting(RandomChoice):
    """Notes as `note` does."""

    def __init__(self, note: Callable[[Any, Available], object]) -> None:
        super().__init__(Random(1))
        self._note = note

    def pick(self, facts: RequestFacts, available: Available, now: float) -> EndpointState:
        if self.trace is not None:
            self._note(self.trace, available)
        return available[0]


WRONG: dict[str, Callable[[Any, Available], object]] = {
    "reason": lambda trace, states: trace.note(("a", 1), states),
    "no UTF-8": lambda trace, states: trace.note("\udce9", states),
    "no reason": lambda trace, states: trace.note(None),
    "number": lambda trace, states: trace.note("mine", range(2), [1, 2]),
    "nothing": lambda trace, states: trace.note("mine", None),
    "no score": lambda trace, states: trace.note("mine", states, [None for _ in states]),
    "text": lambda trace, states: trace.note("mine", states, ["x" for _ in states]),
    "no part": lambda trace, states: trace.note("mine", states, [1.0], [{"a": None}]),
}


@pytest.mark.parametrize("note", WRONG.values(), ids=WRONG)
def test_wrong_note_is_a_fault_of_the_pick(note: Callable[[Any, Available], object]) -> None:
    """It can be shown all the same, and the note is not counted. The trial pick and the contract find it."""
    r = router(Noting(note))
    trace = traced(r)
    serve(r, 2)
    assert r.fallback_picks == 2
    assert f"{__file__}:" in str(r.last_fault)
    assert set(trace.counts) <= {"fallback-raised", "less-loaded", "tie"}
    assert "fallback-raised" in str(last(trace))
    assert str(last(trace).as_dict())
    with pytest.raises(BrokenPolicy, match="Noting raised"):
        require_pick(Noting(note), endpoints(1, 1))
    with pytest.raises(ContractBroken, match="Noting raised"):
        rules.stays_within_the_set(lambda rng: Noting(note))


class Number(float):
    """As of numpy: no float for JSON, perhaps, but a number."""


def test_numbers_of_a_note_are_kept_as_floats() -> None:
    r = router(Noting(lambda trace, states: trace.note("mine", states, [3, Number(2)], [{"a": Number(1)}])))
    trace = traced(r)
    serve(r)
    step = last(trace).steps[0]
    numbers = [*step.scores, *step.parts[0].values()]
    assert [(number, type(number)) for number in numbers] == [(3.0, float), (2.0, float), (1.0, float)]


# --- a trace that cannot be set


class Slotted:
    __slots__ = ("_rng",)
    trace: Trace | None = None

    def __init__(self, rng: Random) -> None:
        self._rng = rng

    def pick(self, facts: RequestFacts, available: Available, now: float) -> EndpointState:
        return self._rng.choice(available)


@dataclass(frozen=True)
class Frozen:
    rng: Random
    trace: None = None

    def pick(self, facts: RequestFacts, available: Available, now: float) -> EndpointState:
        return self.rng.choice(available)


@pytest.mark.parametrize("make", [Slotted, Frozen])
def test_trace_that_cannot_be_set_is_a_fault(make: Callable[[Random], Any]) -> None:
    """It loses no request, and is refused by the trial pick and the contract."""
    r = router(make(Random(1)))
    traced(r)
    assert len(serve(r, 20)) == 3
    assert "'trace'" in str(r.last_fault)
    with pytest.raises(BrokenPolicy, match="'trace'"):
        require_pick(make(Random(1)), endpoints(1, 1))
    with pytest.raises(ContractBroken, match="'trace'"):
        rules.stays_within_the_set(make)


# --- a policy that withholds endpoints from another


class Vetoing:
    """Withholds an endpoint from the inner policy."""

    banned = frozenset({"here-0"})

    def __init__(self, inner: Policy) -> None:
        self._inner = inner
        self.members_changed = getattr(inner, "members_changed", lambda *_: None)

    def pick(self, facts: RequestFacts, available: Available, now: float) -> EndpointState:
        return self._inner.pick(facts.avoiding(self.banned), available.without(self.banned), now)


@pytest.mark.parametrize("name", sorted(registry.TABLE))
def test_policy_keeps_to_what_a_wrapper_passes_on(name: str) -> None:
    """To the endpoints that `available` lacks and `facts` avoids, with a key and without."""
    r = router(Vetoing(registry.from_spec({"name": name, **OPTIONS.get(name, {})}, Random(1))))
    assert set(serve(r, 200)) <= {"here-1", "here-2"}
    assert {r.route(FACTS).endpoint.id for _ in range(50)} <= {"here-1", "here-2"}
    assert r.last_fault is None


OPTIONS: dict[str, dict[str, Any]] = {"single-region": {"region": "here"}}


def test_facts_that_avoid_endpoints_are_otherwise_the_same() -> None:
    facts = RequestFacts("PUT", "/a", "here", "key", 1, frozenset({"x"}))
    facts.level = 3
    avoiding = facts.avoiding(frozenset({"y"}))
    fields = ("method", "path", "region", "key", "attempt", "prompt", "level")
    assert [getattr(avoiding, name) for name in fields] == [getattr(facts, name) for name in fields]
    assert ([*facts.tried], sorted(avoiding.tried)) == (["x"], ["x", "y"])
