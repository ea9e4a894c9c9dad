"""Invariants of health for random histories of failures, checks, commands and time.

A history is a list of events; after each of them all invariants are checked.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies import AdminState, OutcomeKind, registry
from policies.contract import Trial, endpoints
from policies.endpoint.ejection import EjectionRules
from policies.endpoint.state import EndpointState
from policies.facts import Endpoint
from policies.health.ejection_limit import HealthCounts, max_ejected
from policies.health.health import Health
from policies.health.panic import Panic, is_unreachable, is_wanted
from policies.health.slow_start import SlowStart
from tests.policies.pools import Pool
from tests.support.example_counts import examples

RULES = EjectionRules()

KINDS = st.sampled_from([OutcomeKind.OK, OutcomeKind.RESET, OutcomeKind.REFUSED, OutcomeKind.ERROR_STATUS])
TARGET = st.integers(0, 11)
EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("ends"), TARGET, st.tuples(KINDS, st.integers(1, 8))),
        st.tuples(st.just("check"), TARGET, st.sampled_from(["passes", "fails", "unreachable"])),
        st.tuples(st.just("operator"), TARGET, st.sampled_from(list(AdminState))),
        st.tuples(st.just("time"), TARGET, st.sampled_from([1, 5, 40])),
        st.tuples(st.just("gone"), TARGET, st.none()),
        st.tuples(st.just("dropped"), TARGET, st.none()),
        st.tuples(st.just("put"), TARGET, st.sampled_from(["new", "heavier", "moved", "elsewhere"])),
        st.tuples(st.just("connects"), TARGET, st.none()),
    ),
    max_size=60,
)
Event = tuple[str, int, Any]
"""What happens, to which endpoint (modulo their number), and how."""

SIZES = st.lists(st.integers(1, 4), min_size=1, max_size=3)


def apply_event(pool: Pool, event: Event) -> None:
    what, target, detail = event
    states = pool.router.states
    state = states[target % len(states)]
    if what == "ends":
        kind, times = detail
        pool.ends(state.id, *[kind] * times)
    elif what == "check":
        pool.router.set_healthy(state.id, detail == "passes", is_reachable=detail != "unreachable")
    elif what == "operator":
        pool.router.set_admin_state(state.id, detail)
    elif what == "time":
        pool.pass_time(detail)
    elif what == "connects":
        pool.router.readmit(state.id)
    elif what == "put":
        pool.router.put(changed(state.endpoint, detail, len(states)))
    elif what == "dropped" and len(states) > 1:
        pool.router.drop(state.id)
    elif len(states) > 1:
        pool.router.replace([other.endpoint for other in states if other is not state])


def changed(endpoint: Endpoint, how: str, number: int) -> Endpoint:
    """Another endpoint, or the same with another weight, address or region."""
    if how == "new":
        return replace(endpoint, id=f"new-{number}", address=f"http://new-{number}")
    if how == "heavier":
        return replace(endpoint, weight=endpoint.weight + 1)
    if how == "moved":
        return replace(endpoint, address=f"{endpoint.address}1")
    return replace(endpoint, region="c" if endpoint.region == "b" else "b")


def check_invariants(pool: Pool) -> None:
    states, panic = pool.router.states, pool.router.health.panic
    up = [state for state in states if state.admin_state is AdminState.READY]
    ejected = [state for state in up if state.is_ejected]
    assert len(ejected) <= max_ejected(len(up)), "more than half of the pool is ejected"
    healthy = [state for state in up if state.is_healthy]
    assert healthy == [state for state in up if state.passes_checks and not state.is_ejected]
    assert panic.is_everywhere == (len(healthy) < len(up) / 2)
    counts, fresh = pool.router.health.counts, HealthCounts(states)
    assert (counts.size, counts.out) == (fresh.size, fresh.out)
    for state in states:
        assert state.is_eligible >= state.is_healthy
        assert state.is_eligible <= is_wanted(state)
        assert panic or state.is_eligible == state.is_healthy
    if up and panic.is_everywhere:
        assert any(state.is_eligible for state in up), "panic leaves no endpoint eligible"
        if any(state.is_eligible and not is_unreachable(state) for state in up):
            assert not any(state.is_eligible and is_unreachable(state) for state in up)
    assert pool.available == {state.id for state in states if state.is_eligible and not state.is_full}
    listed = pool.router.available
    regions = {state.region for state in listed}
    assert {name: [*members] for name, members in listed.by_region.items()} == {
        name: [state for state in listed if state.region == name] for name in regions
    }


@given(SIZES, EVENTS)
@examples(75)
def test_invariants_hold_after_any_event(sizes: list[int], events: list[Event]) -> None:
    """Never more than half ejected, panic exactly below half healthy, and the available endpoints are consistent."""
    pool = Pool(*sizes)
    check_invariants(pool)
    for event in events:
        apply_event(pool, event)
        check_invariants(pool)


@pytest.mark.no_cover
@given(SIZES, EVENTS)
@examples(50)
def test_every_ejection_ends(sizes: list[int], events: list[Event]) -> None:
    """Once nothing fails any more, all return within the longest ejection."""
    pool = Pool(*sizes)
    for event in events:
        apply_event(pool, event)
    pool.pass_time(RULES.max_time + 1)
    assert not [state for state in pool.router.states if state.is_ejected]


@pytest.mark.no_cover
@given(
    name=st.sampled_from(sorted(set(registry.TABLE) - {"single-region"})),
    bad=st.sets(st.integers(0, 5), max_size=3),
    seed=st.integers(0, 1000),
    slow=st.booleans(),
)
@settings(max_examples=15)
def test_returned_endpoints_get_their_share(name: str, bad: set[int], seed: int, slow: bool) -> None:
    """Up to half of the pool fails for half a minute; a minute and a half later each has a third of its share."""

    def answer(state: EndpointState, now: float) -> tuple[float, OutcomeKind]:
        fails = state.order in bad and now < 30
        return (0.005, OutcomeKind.RESET) if fails else (0.1, OutcomeKind.OK)

    health = Health(Random(seed), ejection=RULES, panic=Panic(), slow_start=SlowStart(10.0 if slow else 0.0))
    trial = Trial(lambda rng: registry.make(name, {}, rng), endpoints(*[1] * 6), answer, seed, health)
    trial.open_loop(40, 150)
    late: Counter[str] = trial.picked(since=120)
    assert min(late[f"here-{i}"] for i in range(6)) >= late.total() / 18


def test_lost_region_gets_its_share_when_it_returns() -> None:
    """Three regions of two; one is lost for twenty seconds and gets next to nothing meanwhile."""

    def answer(state: EndpointState, now: float) -> tuple[float, OutcomeKind]:
        is_lost = state.region == "b" and 10 <= now < 30
        return (0.001, OutcomeKind.REFUSED) if is_lost else (0.1, OutcomeKind.OK)

    members = [Endpoint(f"{region}{i}", "http://x", region) for region in "abc" for i in range(2)]
    health = Health(Random(1), ejection=RULES, panic=Panic())
    trial = Trial(lambda rng: registry.make("random", {}, rng), members, answer, health=health)
    trial.open_loop(60, 120)
    lost = trial.picked(since=11) - trial.picked(since=30)
    assert lost["b0"] + lost["b1"] <= 0.01 * lost.total()
    back = trial.picked(since=100)
    assert back["b0"] + back["b1"] >= 0.25 * back.total()
