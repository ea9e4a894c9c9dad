"""Outlier detection, ejection limit and panic mode, through the router and in virtual time."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest

from policies import AdminState, Endpoint, Outcome, OutcomeKind, RequestFacts, registry
from policies.endpoint.ejection import Cause, EjectionRules
from policies.health.health import Health
from policies.health.panic import Panic
from tests.policies.pools import Pool, mark_unhealthy

OK, RESET, REFUSED = OutcomeKind.OK, OutcomeKind.RESET, OutcomeKind.REFUSED
ERROR_STATUS = OutcomeKind.ERROR_STATUS


# --- consecutive failures


def test_five_failures_in_a_row_eject() -> None:
    """Four do not, and a success in between starts the count anew."""
    pool = Pool(4)
    pool.ends("a0", *[RESET] * 4, OK, *[RESET] * 4)
    assert pool.unavailable == set()
    pool.ends("a0", RESET)
    assert pool.unavailable == {"a0"}
    assert pool["a0"].record.cause is Cause.CONNECTIONS
    pool.ends("a1", *[RESET] * 4, ERROR_STATUS)
    assert pool["a1"].record.cause is Cause.FAILURES


@pytest.mark.parametrize("share", [0.02, 0.1, 0.3])
def test_failures_in_a_row_by_chance_do_not_eject(share: float) -> None:
    """An endpoint that fails a share of its requests at random is left to its success rate; without that it is ejected
    only when it fails all of them, and soon then."""
    pool, rng = Pool(4, rules=EjectionRules(success_rate=0.0)), Random(2)
    for _ in range(20_000):
        pool.ends("a0", RESET if rng.random() < share else OK)
    assert pool.unavailable == set()
    pool.ends("a0", *[RESET] * 19)
    assert pool.unavailable == {"a0"}


def test_random_failures_are_forgotten_with_an_ejection() -> None:
    pool = Pool(4, rules=EjectionRules(success_rate=0.0))
    pool.ends("a0", *[RESET, OK, OK] * 20, *[RESET] * 20)
    pool.pass_time(30)
    pool.ends("a0", OK, *[RESET] * 4)
    assert pool.unavailable == set()
    pool.ends("a0", RESET)
    assert pool.unavailable == {"a0"}


@pytest.mark.parametrize(
    "kinds", [[OutcomeKind.ABANDONED] * 50, [OutcomeKind.TUNNELLED] * 50, [RESET, OutcomeKind.TUNNELLED] * 20]
)
def test_abandoned_and_tunnelled_requests_do_not_eject(kinds: list[OutcomeKind]) -> None:
    """A client that leaves is never counted against the endpoint, and an established tunnel resets the count: one that
    serves only WebSockets is not ejected for five failures in a week."""
    pool = Pool(4)
    pool.ends("a0", *kinds)
    assert pool.unavailable == set()


@pytest.mark.parametrize(
    ("change", "unavailable"), [({"region": "b"}, {"a0"}), ({"address": "http://other"}, set())]
)
def test_ejection_ends_with_the_address(change: dict[str, Any], unavailable: set[str]) -> None:
    """An endpoint in another region is the same worker."""
    pool = Pool(4)
    pool.ends("a0", *[RESET] * 5)
    endpoints = [state.endpoint for state in pool.router.states]
    pool.router.replace([replace(endpoints[0], **change), *endpoints[1:]])
    assert pool.unavailable == unavailable


def test_ejection_ends_after_27_to_30_s() -> None:
    """At a tick."""
    pool = Pool(4)
    pool.ends("a0", *[RESET] * 5)
    pool.pass_time(26)
    assert pool.unavailable == {"a0"}
    pool.pass_time(4)
    assert pool.unavailable == set()


def test_returned_endpoint_is_ejected_after_one_failure() -> None:
    """And for longer, until it has succeeded once; then after five."""
    pool = Pool(4)
    pool.ends("a0", *[RESET] * 5)
    pool.pass_time(30)
    pool.ends("a0", RESET)
    assert pool.unavailable == {"a0"}
    pool.pass_time(53)
    assert pool.unavailable == {"a0"}
    pool.pass_time(7)
    pool.ends("a0", OK, *[RESET] * 4)
    assert pool.unavailable == set()
    pool.ends("a0", RESET)
    assert pool.unavailable == {"a0"}


def ejections(pool: Pool, times: int, well_for: float = 0.0) -> list[float]:
    """Durations of so many ejections of a0, which succeeds for `well_for` seconds after each."""
    lasted = []
    for _ in range(times):
        pool.ends("a0", *[RESET] * 5)
        until = pool["a0"].record.until
        assert until is not None
        lasted.append(until - pool.clock.time)
        while pool["a0"].is_ejected:
            pool.pass_time(1)
        pool.pass_time(well_for, ("a0", OK))
    return lasted


def test_ejection_time_grows_to_a_maximum() -> None:
    """30 s, 60 s, 90 s …, 300 s, each up to a tenth shorter and never longer."""
    wanted = [min(300.0, 30.0 * n) for n in range(1, 14)]
    for seconds, most in zip(ejections(Pool(4), 13), wanted, strict=True):
        assert 0.9 * most <= seconds <= most


def test_ejection_time_shrinks_with_time_in_good_health() -> None:
    """Each 30 s in good health takes one step back; after enough of them the next ejection is like the first."""
    pool = Pool(4)
    assert ejections(pool, 3)[-1] > 80
    pool.pass_time(95, ("a0", OK))
    assert ejections(pool, 1)[0] <= 30
    steady = ejections(Pool(4), 6, well_for=31.0)
    assert max(steady) <= 30


def test_ejections_are_jittered() -> None:
    """Two that are ejected together do not return at the same instant."""
    pool = Pool(4)
    for name in ("a0", "a1"):
        pool.ends(name, *[RESET] * 5)
    assert pool["a0"].record.until != pool["a1"].record.until


def test_failures_common_to_all_endpoints_do_not_eject() -> None:
    """An application that answers 500 everywhere is not helped by a smaller pool; an unreachable endpoint is
    ejected."""
    pool = Pool(4)
    for _ in range(10):
        pool.all_end(ERROR_STATUS, 2)
        pool.all_end(OK)
        pool.pass_time(1)
    pool.ends("a0", *[ERROR_STATUS] * 9)
    assert pool.unavailable == set()
    pool.ends("a0", *[REFUSED] * 5)
    assert pool.unavailable == {"a0"}


def test_503_ejects_only_after_a_second_without_success() -> None:
    """503 in a row with successes between mean a full queue; a second of nothing else means broken."""
    pool = Pool(4)
    for _ in range(20):
        pool.ends("a0", *[ERROR_STATUS] * 9, status=503)
        pool.clock.time += 0.1
        pool.ends("a0", OK)
    assert pool.unavailable == set()
    pool.ends("a0", *[ERROR_STATUS] * 9, status=503)
    pool.clock.time += 0.9
    pool.ends("a0", ERROR_STATUS, status=503)
    assert pool.unavailable == set()
    pool.clock.time += 0.2
    pool.ends("a0", ERROR_STATUS, status=503)
    assert pool.unavailable == {"a0"}


@pytest.mark.parametrize("rules", [EjectionRules(failures=0), EjectionRules(failures=3)])
def test_number_of_failures_is_configurable(rules: EjectionRules) -> None:
    """0 switches it off."""
    pool = Pool(4, rules=rules)
    pool.ends("a0", *[RESET] * 3)
    assert pool.unavailable == ({"a0"} if rules.failures else set())


# --- success rate


def test_a_low_success_rate_ejects() -> None:
    """Every third request fails, never two in a row, while the others succeed."""
    pool = Pool(4)
    pool.pass_time(1)
    for _ in range(3):
        pool.ends("a0", RESET, OK, OK)
        pool.ends("a1", OK, OK, OK)
    pool.pass_time(1)
    assert pool.unavailable == {"a0"}
    assert pool["a0"].record.cause is Cause.SUCCESS_RATE


def test_success_rate_needs_six_requests() -> None:
    """Two failures of four may be chance."""
    pool = Pool(4)
    pool.pass_time(1)
    pool.ends("a0", RESET, OK, RESET, OK)
    pool.pass_time(1)
    assert pool.unavailable == set()
    pool.ends("a0", RESET, OK)
    pool.pass_time(1)
    assert pool.unavailable == {"a0"}


def test_success_rate_forgets_failures_outside_its_window() -> None:
    """Failures of half a minute ago are not added to those of now."""
    pool = Pool(4)
    pool.pass_time(1)
    pool.ends("a0", RESET, OK, RESET, OK)
    pool.pass_time(36)
    pool.ends("a0", RESET, OK, OK, OK)
    pool.pass_time(1)
    assert pool.unavailable == set()
    assert pool["a0"].record.rate == (3, 4)


def test_success_rate_is_relative_to_the_others() -> None:
    """Where all fail a third of the time, none is ejected."""
    pool = Pool(4)
    pool.pass_time(1)
    for _ in range(5):
        for state in pool.router.states:
            pool.ends(state.id, RESET, OK, OK)
        pool.pass_time(1)
    assert pool.unavailable == set()


def test_success_rate_does_not_count_while_no_other_is_healthy() -> None:
    """The only healthy one may fail because it is overloaded; failures after that count."""
    pool = Pool(2)
    pool.router.set_healthy("a1", False)
    pool.pass_time(1)
    pool.pass_time(5, *[("a0", OK), ("a0", RESET)] * 5)
    pool.router.set_healthy("a1", True)
    answers = [("a0", OK)] * 10 + [("a1", OK)] * 10
    pool.pass_time(5, *answers)
    assert pool.unavailable == set()
    pool.pass_time(6, *[("a0", OK), ("a0", RESET)] * 50, *answers)
    assert pool.unavailable == {"a0"}


def test_success_rate_restarts_after_an_ejection() -> None:
    pool = Pool(4)
    pool.pass_time(1)
    pool.ends("a0", *[OK, RESET] * 10)
    pool.pass_time(1)
    assert pool.unavailable == {"a0"}
    pool.pass_time(31)
    pool.ends("a0", OK)
    pool.pass_time(3)
    assert pool.unavailable == set()


@pytest.mark.parametrize("lost", [3, 4, 6])
def test_an_outage_of_most_endpoints_does_not_eject_after_it(lost: int) -> None:
    """Three of six are ejected and return, with new rates. The failures of the others do not count beside these."""
    pool = Pool(6)
    names = [state.id for state in pool.router.states]
    pool.pass_time(5, *[(name, OK) for name in names])
    pool.pass_time(8, *[(name, REFUSED if int(name[1]) < lost else OK) for name in names for _ in range(5)])
    assert pool.unavailable == {"a0", "a1", "a2"}
    for name in names[:3]:
        pool.router.readmit(name)
    for _ in range(40):
        pool.pass_time(1, *[(name, OK) for name in names])
        assert pool.unavailable == set()
    pool.pass_time(20, *[(name, kind) for name in names for kind in (OK, OK, RESET if name == "a5" else OK)])
    assert pool.unavailable == {"a5"}, "its failures count again"


def test_failures_before_a_passed_check_do_not_eject() -> None:
    """All fail their checks, so there is panic; those that pass again have new rates, also if few requests failed."""
    pool = Pool(4)
    names = [state.id for state in pool.router.states]
    pool.pass_time(3, *[(name, OK) for name in names])
    mark_unhealthy(pool, names)
    pool.pass_time(4, ("a0", RESET))
    for name in names:
        pool.router.set_healthy(name, True)
    pool.pass_time(10, *[(name, OK) for name in names])
    assert pool.unavailable == set()


def test_an_ejection_for_responses_ends_when_all_others_fail_as_well() -> None:
    """Only a0 has had requests when the application begins to fail. Once all work again, none is ejected; as long as
    one of the others works, a0 stays out."""
    pool = Pool(3)
    pool.pass_time(3, *[(name, OK) for name in ("a0", "a1", "a2")] * 10)
    pool.ends("a0", *[ERROR_STATUS] * 5)
    pool.pass_time(3, *[("a1", ERROR_STATUS)] * 5, ("a2", OK))
    assert pool.unavailable == {"a0"}
    pool.pass_time(2, *[(name, ERROR_STATUS) for name in ("a1", "a2")] * 5)
    assert pool.unavailable == set()
    pool.pass_time(3)
    for kind in (ERROR_STATUS, OK):
        for _ in range(40):
            pool.pass_time(1, *[(name, kind) for name in ("a0", "a1", "a2")] * 5)
            assert pool.unavailable == set()
    pool.ends("a0", *[ERROR_STATUS] * 20)
    assert pool.unavailable == {"a0"}


# --- latency


def answer_each_second(pool: Pool, seconds: dict[str, float], for_seconds: int) -> None:
    """Each second one request to each endpoint, with the given latency."""
    for _ in range(for_seconds):
        for name, latency in seconds.items():
            if pool[name].available:
                pool.named.name = name
                assignment = pool.router.route(RequestFacts())
                now = pool.clock.time
                pool.router.settle(assignment, Outcome(OK, 200, now - latency, now, now))
        pool.pass_time(1)


SLOW = EjectionRules(latency=5.0)


def test_slow_endpoint_is_ejected_if_configured() -> None:
    """Five times the usual wait for five seconds; by default latency ejects none."""
    seconds = {"a0": 0.4, "a1": 0.03, "b0": 0.33, "b1": 0.33, "c0": 0.53, "c1": 0.53}
    for rules, out in ((SLOW, {"a0"}), (EjectionRules(), set())):
        pool = Pool(2, 2, 2, rules=rules)
        answer_each_second(pool, seconds, 20)
        assert pool.unavailable == out


def test_distance_is_not_slowness() -> None:
    """Neither an endpoint 600 ms away, alone in its region, nor two distant ones of similar latency are ejected."""
    pool = Pool(3, 2, 1, rules=SLOW)
    seconds = {"a0": 0.02, "a1": 0.025, "a2": 0.02, "b0": 0.45, "b1": 0.46, "c0": 0.6}
    answer_each_second(pool, seconds, 60)
    assert pool.unavailable == set()


def test_short_pause_does_not_eject() -> None:
    """Three slow seconds end before they are judged."""
    pool = Pool(4, rules=SLOW)
    usual = dict.fromkeys(("a0", "a1", "a2", "a3"), 0.02)
    answer_each_second(pool, usual, 20)
    answer_each_second(pool, {**usual, "a0": 0.08}, 3)
    answer_each_second(pool, usual, 20)
    assert pool.unavailable == set()


# --- ejection limit


@pytest.mark.parametrize(
    ("sizes", "most"), [((1,), 0), ((2,), 1), ((3,), 1), ((4,), 2), ((5,), 2), ((1, 1, 1), 1), ((2, 2, 2), 3)]
)
@pytest.mark.parametrize("kind", [RESET, REFUSED])
def test_at_most_half_of_a_pool_is_ejected(sizes: tuple[int, ...], most: int, kind: OutcomeKind) -> None:
    """One of two, one of three, two of four; three regions of one worker each are three."""
    pool = Pool(*sizes)
    pool.all_end(OK)
    for _ in range(10):
        pool.all_end(kind, 5)
        pool.pass_time(1)
    assert len(pool.unavailable) == most


def test_at_most_half_of_a_region_is_ejected_while_it_has_successes() -> None:
    """Both of two fail often: one stays for requests that are bound to the region."""
    pool = Pool(2, 4)
    pool.pass_time(1)
    for _ in range(4):
        pool.ends("a0", OK, *[RESET] * 4)
        pool.ends("a1", OK, *[RESET] * 4)
        pool.ends("b0", *[OK] * 10)
        pool.pass_time(1)
    assert len(pool.unavailable & {"a0", "a1"}) == 1


def test_region_without_successes_is_ejected_whole() -> None:
    """After five seconds without a success there, if the pool can spare it."""
    pool = Pool(2, 2, 2)
    pool.pass_time(3, *[(state.id, OK) for state in pool.router.states])
    pool.ends("a0", *[RESET] * 5)
    pool.ends("a1", *[RESET] * 9)
    assert pool.unavailable == {"a0"}
    pool.pass_time(6, ("a1", RESET), *[(name, OK) for name in ("b0", "b1", "c0", "c1")])
    assert pool.unavailable == {"a0", "a1"}


def test_unreachable_region_is_ejected_at_once() -> None:
    """Refused connections are certain, so both go after five requests each."""
    pool = Pool(2, 2, 2)
    pool.ends("a0", *[REFUSED] * 5)
    pool.ends("a1", *[REFUSED] * 5)
    assert pool.unavailable == {"a0", "a1"}
    assert pool["a1"].record.is_unreachable


def test_endpoint_that_accepts_connections_again_is_readmitted() -> None:
    """Only one that was ejected as unreachable or for broken connections."""
    pool = Pool(6)
    pool.ends("a0", *[REFUSED] * 5)
    pool.ends("a1", *[RESET] * 5)
    pool.ends("a2", *[ERROR_STATUS] * 5, status=500)
    for name in ("a0", "a1", "a2", "a3"):
        pool.router.readmit(name)
    assert pool.unavailable == {"a2"}
    pool.ends("a0", REFUSED)
    assert pool.unavailable == {"a0", "a2"}


def test_timeouts_end_by_a_check_that_is_answered() -> None:
    """Not by a connect, which a process that hangs accepts too."""
    pool = Pool(4)
    pool.ends("a0", *[OutcomeKind.TIMEOUT] * 4, RESET)
    assert pool["a0"].record.cause is Cause.TIMEOUTS
    pool.router.readmit("a0")
    assert pool.unavailable == {"a0"}
    pool.router.readmit("a0", is_answered=True)
    assert pool.unavailable == set()
    pool.ends("a0", OutcomeKind.TIMEOUT)
    pool.router.readmit("a0", is_answered=True)
    assert pool.unavailable == {"a0"}
    pool.pass_time(2)
    pool.router.readmit("a0", is_answered=True)
    assert pool.unavailable == set()


@pytest.mark.parametrize(("kind", "is_answered"), [(OutcomeKind.TIMEOUT, True), (RESET, False)])
def test_failures_during_an_answer_do_not_end_by_a_check(kind: OutcomeKind, is_answered: bool) -> None:
    """They are no failed connections."""
    pool = Pool(4)
    pool.ends("a0", *[kind] * 5, status=200)
    pool.router.readmit("a0", is_answered=is_answered)
    assert pool.unavailable == {"a0"}


def test_timeouts_of_requests_before_one_that_succeeded_do_not_eject() -> None:
    """Ten requests hang, an eleventh is answered, and then the ten time out in a row."""
    pool = Pool(4)
    pool.named.name = "a0"
    hanging = [pool.router.route(RequestFacts()) for _ in range(10)]
    pool.clock.time += 0.1
    pool.ends("a0", OK)
    pool.clock.time += 1.0
    for assignment in hanging:
        end = Outcome(OutcomeKind.TIMEOUT, None, assignment.routed_at, None, pool.clock.time)
        pool.router.settle(assignment, end)
    assert pool.unavailable == set()
    pool.ends("a0", *[OutcomeKind.TIMEOUT] * 5)
    assert pool.unavailable == {"a0"}


def test_broken_connections_are_retried_at_doubled_intervals() -> None:
    """An endpoint that accepts connections and breaks each of them returns after 0, 2, 4, 8, … seconds, not earlier."""
    pool = Pool(4)
    pool.ends("a0", *[RESET] * 5)
    for seconds in (0, 2, 4, 8):
        if seconds:
            pool.pass_time(seconds - 1)
            pool.router.readmit("a0")
            assert pool.unavailable == {"a0"}
            pool.pass_time(1)
        pool.router.readmit("a0")
        assert pool.unavailable == set()
        pool.ends("a0", RESET)
        assert pool.unavailable == {"a0"}


def test_ejection_limit_counts_endpoints_that_fail_checks() -> None:
    """Where checks have taken out half of the pool, failures eject none."""
    pool = Pool(4)
    for name in ("a2", "a3"):
        pool.router.set_healthy(name, False)
    pool.ends("a0", *[RESET] * 20)
    assert pool.unavailable == {"a2", "a3"}


# --- panic


def test_panic_ends_when_half_are_healthy_again() -> None:
    """Each panic is counted, with the requests routed meanwhile."""
    pool = Pool(4)
    panic = pool.router.health.panic
    for _ in range(2):
        pool.ends("a3", OK)
        mark_unhealthy(pool, ["a0", "a1", "a2"])
        pool.ends("a0", OK, OK, RESET)
        pool.router.set_healthy("a2", True)
        assert pool.available == {"a2", "a3"}
    assert (panic.times, panic.requests(pool.router.routed)) == (2, 6)


def test_panic_can_be_switched_off() -> None:
    """Then unhealthy endpoints are never available, even if all are."""
    pool = Pool(4, panic=0.0)
    mark_unhealthy(pool, ["a0", "a1", "a2"])
    assert pool.available == {"a3"}
    mark_unhealthy(pool, ["a3"])
    assert pool.available == set()


def test_panic_leaves_out_unreachable_endpoints() -> None:
    """A request there would certainly fail; if all are unreachable, all are tried."""
    pool = Pool(4)
    mark_unhealthy(pool, ["a0", "a1"], is_reachable=False)
    mark_unhealthy(pool, ["a2"])
    assert pool.available == {"a2", "a3"}
    mark_unhealthy(pool, ["a2", "a3"], is_reachable=False)
    assert pool.available == {"a0", "a1", "a2", "a3"}


def test_panic_leaves_out_drained_endpoints() -> None:
    """Drain and maintenance are no health; they do not count as lost either."""
    pool = Pool(6)
    pool.router.set_admin_state("a0", AdminState.DRAIN)
    pool.router.set_admin_state("a1", AdminState.MAINTENANCE)
    mark_unhealthy(pool, ["a2", "a3"])
    assert pool.available == {"a4", "a5"}
    mark_unhealthy(pool, ["a4"])
    assert pool.available == {"a2", "a3", "a4", "a5"}


@pytest.mark.parametrize(("name", "panics"), [("random", False), ("region-round-robin", True)])
def test_region_panics_if_the_policy_keeps_to_regions(name: str, panics: bool) -> None:
    """One of four is healthy in a region: a policy that sends a third of all there needs all four."""
    pool = Pool(4, 4, 4, policy=registry.make(name, {}, Random(1)))
    mark_unhealthy(pool, ["a0", "a1", "a2"])
    assert ("a0" in pool.available) is panics
    assert pool.router.health.panic.regions == (frozenset("a") if panics else frozenset())
    assert not pool.router.health.panic.is_everywhere


def test_lost_region_is_not_in_panic() -> None:
    """None there is healthy, and the others are: its requests go to them."""
    pool = Pool(2, 2, 2, policy=registry.make("region-round-robin", {}, Random(1)))
    mark_unhealthy(pool, ["a0", "a1"])
    assert pool.available == {"b0", "b1", "c0", "c1"}


def test_policy_change_reassesses_panic() -> None:
    pool = Pool(4, 4, 4, policy=registry.make("random", {}, Random(1)))
    mark_unhealthy(pool, ["a0", "a1", "a2"])
    pool.router.set_policy(registry.make("region-round-robin", {}, Random(1)))
    assert len(pool.available) == 12
    pool.router.set_policy(registry.make("random", {}, Random(1)))
    assert len(pool.available) == 9


# --- changes


def test_new_rules_apply_to_later_failures() -> None:
    """Ejected endpoints stay ejected."""
    pool = Pool(4)
    pool.ends("a0", *[RESET] * 5)
    pool.router.apply_health(Health(Random(1), ejection=EjectionRules(failures=2), panic=Panic(0.2)))
    assert pool.unavailable == {"a0"}
    pool.ends("a1", RESET, RESET)
    assert pool.unavailable == {"a0", "a1"}
    mark_unhealthy(pool, ["a2"])
    assert pool.available == {"a3"}


def test_new_address_clears_ejection_and_checks() -> None:
    pool = Pool(4)
    pool.ends("a0", *[RESET] * 5)
    mark_unhealthy(pool, ["a1"])
    states = pool.router.states
    pool.router.replace(
        [Endpoint(s.id, "http://elsewhere", "a") for s in states[:2]] + [s.endpoint for s in states[2:]]
    )
    assert pool.unavailable == set()
    pool.router.replace([s.endpoint for s in pool.router.states])  # the same addresses
    pool.ends("a2", *[RESET] * 5)
    pool.router.replace([s.endpoint for s in pool.router.states])
    assert pool.unavailable == {"a2"}


def test_repr_shows_health_and_admin_state() -> None:
    pool = Pool(4)
    pool.ends("a0", *[RESET] * 5)
    pool.router.set_admin_state("a1", AdminState.DRAIN)
    pool.router.set_admin_state("a2", AdminState.MAINTENANCE)
    mark_unhealthy(pool, ["a1", "a3"])
    assert repr(pool.router.states) == (
        "[<a0 0 in flight ejected>, <a1 0 in flight drain unhealthy>, <a2 0 in flight maintenance>, "
        "<a3 0 in flight unhealthy>]"
    )
    pool.router.set_enabled("a1", True)
    assert pool["a1"].admin_state is AdminState.READY


def test_on_available_is_called_when_an_ejection_ends_or_panic_begins() -> None:
    pool = Pool(2, panic=0.0)
    calls: list[int] = []
    pool.router.on_available = lambda: calls.append(len(pool.router.available))
    pool.ends("a0", *[REFUSED] * 5)
    mark_unhealthy(pool, ["a1"])
    assert pool.available == set()
    pool.pass_time(31)
    assert calls == [1]
    mark_unhealthy(pool, ["a0"])
    pool.router.apply_health(Health(Random(1), panic=Panic(0.5)))
    assert calls == [1, 2]
