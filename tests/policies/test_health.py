"""Ejection, panic and who may be spared, through the router and in counted time."""

from __future__ import annotations

from random import Random

import pytest

from policies import AdminState, Endpoint, Outcome, OutcomeKind, RequestFacts, registry
from policies.endpoint.ejection import Cause, EjectionRules
from policies.facts import NOBODY
from policies.health.health import Health
from policies.health.panic import Panic
from tests.policies.pools import Pool, ill

OK, RESET, REFUSED = OutcomeKind.OK, OutcomeKind.RESET, OutcomeKind.REFUSED
ERROR_STATUS = OutcomeKind.ERROR_STATUS


# --- consecutive failures


def test_five_failures_in_a_row_eject() -> None:
    """Four do not, and a success in between starts the count anew."""
    pool = Pool(4)
    pool.ends("a0", *[RESET] * 4, OK, *[RESET] * 4)
    assert pool.out == set()
    pool.ends("a0", RESET)
    assert pool.out == {"a0"}
    assert pool["a0"].record.cause is Cause.FAILURES


@pytest.mark.parametrize("kind", [OutcomeKind.ABANDONED, OutcomeKind.TUNNELLED])
def test_what_is_no_failure_ejects_nobody(kind: OutcomeKind) -> None:
    """A client that leaves is never blamed on the endpoint."""
    pool = Pool(4)
    pool.ends("a0", *[kind] * 50)
    assert pool.out == set()


def test_a_tunnel_that_stood_is_a_success() -> None:
    """Who serves nothing but WebSockets is not ejected for five failures in a week."""
    pool = Pool(4)
    pool.ends("a0", *[RESET, OutcomeKind.TUNNELLED] * 20)
    assert pool.out == set()


def test_an_ejection_ends_by_itself() -> None:
    """After 27 to 30 seconds, at a tick."""
    pool = Pool(4)
    pool.ends("a0", *[RESET] * 5)
    pool.pass_time(26)
    assert pool.out == {"a0"}
    pool.pass_time(4)
    assert pool.out == set()


def test_who_is_back_is_on_trial() -> None:
    """One failure sends it out again, for longer, until it has succeeded once; then it takes five."""
    pool = Pool(4)
    pool.ends("a0", *[RESET] * 5)
    pool.pass_time(30)
    pool.ends("a0", RESET)
    assert pool.out == {"a0"}
    pool.pass_time(53)
    assert pool.out == {"a0"}
    pool.pass_time(7)
    pool.ends("a0", OK, *[RESET] * 4)
    assert pool.out == set()
    pool.ends("a0", RESET)
    assert pool.out == {"a0"}


def ejections(pool: Pool, times: int, well_for: float = 0.0) -> list[float]:
    """How long each of so many ejections of a0 was to last, the endpoint being well for some time after each."""
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


def test_ejections_grow_up_to_a_bound() -> None:
    """30 s, 60 s, 90 s …, 300 s, each up to a tenth shorter and never longer."""
    wanted = [min(300.0, 30.0 * n) for n in range(1, 14)]
    for seconds, most in zip(ejections(Pool(4), 13), wanted, strict=True):
        assert 0.9 * most <= seconds <= most


def test_ejections_are_forgiven() -> None:
    """Every 30 s that went well take one off; after enough of them the next ejection is like the first."""
    pool = Pool(4)
    assert ejections(pool, 3)[-1] > 80
    pool.pass_time(95, ("a0", OK))
    assert ejections(pool, 1)[0] <= 30
    steady = ejections(Pool(4), 6, well_for=31.0)
    assert max(steady) <= 30


def test_ejections_are_jittered() -> None:
    """Two that go together do not come back at the same instant."""
    pool = Pool(4)
    for name in ("a0", "a1"):
        pool.ends(name, *[RESET] * 5)
    assert pool["a0"].record.until != pool["a1"].record.until


def test_whom_all_others_fail_alike_is_not_ejected() -> None:
    """An application that answers 500 to everybody is not cured by leaving endpoints out; unreachable is."""
    pool = Pool(4)
    for _ in range(10):
        pool.all_end(ERROR_STATUS, 2)
        pool.all_end(OK)
        pool.pass_time(1)
    pool.ends("a0", *[ERROR_STATUS] * 9)
    assert pool.out == set()
    pool.ends("a0", *[REFUSED] * 5)
    assert pool.out == {"a0"}


def test_a_full_queue_is_no_reason_before_it_has_lasted() -> None:
    """503 in a row, and one success between: full. A second of nothing else: broken."""
    pool = Pool(4)
    for _ in range(20):
        pool.ends("a0", *[ERROR_STATUS] * 9, status=503)
        pool.clock.time += 0.1
        pool.ends("a0", OK)
    assert pool.out == set()
    pool.ends("a0", *[ERROR_STATUS] * 9, status=503)
    pool.clock.time += 0.9
    pool.ends("a0", ERROR_STATUS, status=503)
    assert pool.out == set()
    pool.clock.time += 0.2
    pool.ends("a0", ERROR_STATUS, status=503)
    assert pool.out == {"a0"}


def test_another_status_does_not_wait() -> None:
    pool = Pool(4)
    pool.ends("a0", *[ERROR_STATUS] * 5, status=500)
    assert pool.out == {"a0"}


@pytest.mark.parametrize("rules", [EjectionRules(failures=0), EjectionRules(failures=3)])
def test_the_number_of_failures_can_be_set(rules: EjectionRules) -> None:
    """0 is never."""
    pool = Pool(4, rules=rules)
    pool.ends("a0", *[RESET] * 3)
    assert pool.out == ({"a0"} if rules.failures else set())


# --- success rate


def test_a_low_success_rate_ejects() -> None:
    """Every third request fails, never two in a row, while the others are well."""
    pool = Pool(4)
    pool.pass_time(1)
    for _ in range(3):
        pool.ends("a0", RESET, OK, OK)
        pool.ends("a1", OK, OK, OK)
    pool.pass_time(1)
    assert pool.out == {"a0"}
    assert pool["a0"].record.cause is Cause.SUCCESS_RATE


def test_few_requests_say_nothing() -> None:
    """Two of four failed: that may be chance. Of six it is judged."""
    pool = Pool(4)
    pool.pass_time(1)
    pool.ends("a0", RESET, OK, RESET, OK)
    pool.pass_time(1)
    assert pool.out == set()
    pool.ends("a0", RESET, OK)
    pool.pass_time(1)
    assert pool.out == {"a0"}


def test_failures_are_forgotten_with_the_window() -> None:
    """What was half a minute ago does not add up with what is now."""
    pool = Pool(4)
    pool.pass_time(1)
    pool.ends("a0", RESET, OK, RESET, OK)
    pool.pass_time(36)
    pool.ends("a0", RESET, OK, OK, OK)
    pool.pass_time(1)
    assert pool.out == set()
    assert pool["a0"].record.rate == (3, 4)


def test_success_is_compared_with_that_of_the_others() -> None:
    """Where all fail a third of the time, nobody is worse than the others."""
    pool = Pool(4)
    pool.pass_time(1)
    for _ in range(5):
        for state in pool.router.states:
            pool.ends(state.id, RESET, OK, OK)
        pool.pass_time(1)
    assert pool.out == set()


def test_nothing_is_held_against_who_is_back() -> None:
    """The share of successes begins anew."""
    pool = Pool(4)
    pool.pass_time(1)
    pool.ends("a0", *[OK, RESET] * 10)
    pool.pass_time(1)
    assert pool.out == {"a0"}
    pool.pass_time(31)
    pool.ends("a0", OK)
    pool.pass_time(3)
    assert pool.out == set()


# --- latency


def answers(pool: Pool, seconds: dict[str, float], for_seconds: int) -> None:
    """Each second one request to each, which takes so long."""
    for _ in range(for_seconds):
        for name, latency in seconds.items():
            if pool[name].available:
                pool.named.name = name
                assignment = pool.router.route(RequestFacts())
                now = pool.clock.time
                pool.router.settle(assignment, Outcome(OK, 200, now - latency, now, now))
        pool.pass_time(1)


SLOW = EjectionRules(latency=5.0)


def test_a_slow_endpoint_is_ejected_where_that_is_asked_for() -> None:
    """Five times the usual wait and more, for five seconds; by default nobody is ejected for that."""
    seconds = {"a0": 0.4, "a1": 0.03, "b0": 0.33, "b1": 0.33, "c0": 0.53, "c1": 0.53}
    for rules, out in ((SLOW, {"a0"}), (EjectionRules(), set())):
        pool = Pool(2, 2, 2, rules=rules)
        answers(pool, seconds, 20)
        assert pool.out == out


def test_a_far_region_is_not_slow_for_being_far() -> None:
    """600 ms away, alone in its region, and never ejected; nor is one of two there that is as quick as the other."""
    pool = Pool(3, 2, 1, rules=SLOW)
    seconds = {"a0": 0.02, "a1": 0.025, "a2": 0.02, "b0": 0.45, "b1": 0.46, "c0": 0.6}
    answers(pool, seconds, 60)
    assert pool.out == set()


def test_a_pause_is_not_slowness() -> None:
    """Three slow seconds are over before anybody is judged by them."""
    pool = Pool(4, rules=SLOW)
    usual = dict.fromkeys(("a0", "a1", "a2", "a3"), 0.02)
    answers(pool, usual, 20)
    answers(pool, {**usual, "a0": 0.08}, 3)
    answers(pool, usual, 20)
    assert pool.out == set()


# --- who may be spared


@pytest.mark.parametrize(
    ("sizes", "most"), [((1,), 0), ((2,), 1), ((3,), 1), ((4,), 2), ((5,), 2), ((1, 1, 1), 1), ((2, 2, 2), 3)]
)
@pytest.mark.parametrize("kind", [RESET, REFUSED])
def test_at_most_half_of_a_pool_is_ejected(sizes: tuple[int, ...], most: int, kind: OutcomeKind) -> None:
    """Whatever fails: one of two, one of three, two of four; three regions of one worker each are three."""
    pool = Pool(*sizes)
    pool.all_end(OK)
    for _ in range(10):
        pool.all_end(kind, 5)
        pool.pass_time(1)
    assert len(pool.out) == most


def test_at_most_half_of_a_region_is_ejected_while_it_has_successes() -> None:
    """Two of two fail now and then: one of them may go, for the other still serves those who are bound to it."""
    pool = Pool(2, 4)
    pool.pass_time(1)
    for _ in range(4):
        pool.ends("a0", OK, *[RESET] * 4)
        pool.ends("a1", OK, *[RESET] * 4)
        pool.ends("b0", *[OK] * 10)
        pool.pass_time(1)
    assert len(pool.out & {"a0", "a1"}) == 1


def test_a_lost_region_may_go_whole() -> None:
    """When nothing there has succeeded for five seconds, the second one goes as well: the pool can spare both."""
    pool = Pool(2, 2, 2)
    pool.pass_time(3, *[(state.id, OK) for state in pool.router.states])
    pool.ends("a0", *[RESET] * 5)
    pool.ends("a1", *[RESET] * 9)
    assert pool.out == {"a0"}
    pool.pass_time(6, ("a1", RESET), *[(name, OK) for name in ("b0", "b1", "c0", "c1")])
    assert pool.out == {"a0", "a1"}


def test_unreachable_endpoints_go_at_once() -> None:
    """No connection can be made to either: that is no opinion, and the region goes within ten requests."""
    pool = Pool(2, 2, 2)
    pool.ends("a0", *[REFUSED] * 5)
    pool.ends("a1", *[REFUSED] * 5)
    assert pool.out == {"a0", "a1"}
    assert pool["a1"].record.is_unreachable


def test_an_endpoint_that_can_be_reached_again_is_readmitted() -> None:
    """A connection is proof for who was out for want of one, and for nobody else."""
    pool = Pool(4)
    pool.ends("a0", *[REFUSED] * 5)
    pool.ends("a1", *[RESET] * 5)
    for name in ("a0", "a1", "a2"):
        pool.router.readmit(name)
    assert pool.out == {"a1"}
    pool.ends("a0", REFUSED)
    assert pool.out == {"a0", "a1"}


def test_ejection_leaves_alone_who_would_be_missed() -> None:
    """Where checks have put half of the pool out already, failures put out nobody more."""
    pool = Pool(4)
    for name in ("a2", "a3"):
        pool.router.set_healthy(name, False)
    pool.ends("a0", *[RESET] * 20)
    assert pool.out == {"a2", "a3"}


def test_a_pool_that_shrinks_takes_back() -> None:
    """Two of four are out; when two of the others are taken away, one of them must come back."""
    pool = Pool(4)
    for name in ("a0", "a1"):
        pool.ends(name, *[RESET] * 5)
    pool.router.set_admin_state("a2", AdminState.MAINTENANCE)
    assert len(pool.out & {"a0", "a1"}) == 1
    pool.router.replace([pool["a0"].endpoint])
    assert pool.out == set()


# --- panic


@pytest.mark.parametrize(
    ("sick", "offered"), [(["a0", "a1"], 2), (["a0", "a1", "a2"], 4), (["a0", "a1", "a2", "a3"], 4)]
)
def test_health_is_ignored_when_under_half_are_fit(sick: list[str], offered: int) -> None:
    """Half is enough; below that all are asked, the last one included."""
    pool = Pool(4)
    ill(pool, sick)
    assert len(pool.offered) == offered
    assert bool(pool.router.health.panic) == (offered == 4)


def test_panic_ends_when_half_are_fit_again() -> None:
    """And each time it begins is counted, with the requests that were routed meanwhile."""
    pool = Pool(4)
    panic = pool.router.health.panic
    for _ in range(2):
        pool.ends("a3", OK)
        ill(pool, ["a0", "a1", "a2"])
        pool.ends("a0", OK, OK, RESET)
        pool.router.set_healthy("a2", True)
        assert pool.offered == {"a2", "a3"}
    assert (panic.times, panic.requests(pool.router.routed)) == (2, 6)


def test_panic_can_be_switched_off() -> None:
    """Then nobody ill is asked, and at last nobody."""
    pool = Pool(4, panic=0.0)
    ill(pool, ["a0", "a1", "a2"])
    assert pool.offered == {"a3"}
    ill(pool, ["a3"])
    assert pool.offered == set()


def test_panic_asks_nobody_who_cannot_be_reached() -> None:
    """A request there would be lost for certain; when nobody else is left, every try is worth it."""
    pool = Pool(4)
    ill(pool, ["a0", "a1"], is_reachable=False)
    ill(pool, ["a2"])
    assert pool.offered == {"a2", "a3"}
    ill(pool, ["a2", "a3"], is_reachable=False)
    assert pool.offered == {"a0", "a1", "a2", "a3"}


def test_panic_asks_nobody_whom_the_operator_took_out() -> None:
    """Draining and down are wishes, not health; they do not count as lost either."""
    pool = Pool(6)
    pool.router.set_admin_state("a0", AdminState.DRAIN)
    pool.router.set_admin_state("a1", AdminState.MAINTENANCE)
    ill(pool, ["a2", "a3"])
    assert pool.offered == {"a4", "a5"}
    ill(pool, ["a4"])
    assert pool.offered == {"a2", "a3", "a4", "a5"}


@pytest.mark.parametrize(("name", "panics"), [("random", False), ("region-round-robin", True)])
def test_a_region_panics_where_the_policy_keeps_to_regions(name: str, panics: bool) -> None:
    """One of four is fit in a region: a policy that goes on sending a third of all there needs all four."""
    pool = Pool(4, 4, 4, policy=registry.make(name, {}, Random(1)))
    ill(pool, ["a0", "a1", "a2"])
    assert ("a0" in pool.offered) is panics
    assert pool.router.health.panic.regions == (frozenset("a") if panics else NOBODY)
    assert not pool.router.health.panic.is_everywhere


def test_a_lost_region_is_not_in_panic() -> None:
    """Nobody there is fit, and the others are: its requests go to them."""
    pool = Pool(2, 2, 2, policy=registry.make("region-round-robin", {}, Random(1)))
    ill(pool, ["a0", "a1"])
    assert pool.offered == {"b0", "b1", "c0", "c1"}


def test_another_policy_is_another_panic() -> None:
    """What a region's panic depends on is looked at again when the policy changes."""
    pool = Pool(4, 4, 4, policy=registry.make("random", {}, Random(1)))
    ill(pool, ["a0", "a1", "a2"])
    pool.router.set_policy(registry.make("region-round-robin", {}, Random(1)))
    assert len(pool.offered) == 12
    pool.router.set_policy(registry.make("random", {}, Random(1)))
    assert len(pool.offered) == 9


# --- changes


def test_rules_can_be_changed_while_requests_come() -> None:
    """Who is out stays out; the next failures are judged by the new rules."""
    pool = Pool(4)
    pool.ends("a0", *[RESET] * 5)
    pool.router.apply_health(Health(Random(1), ejection=EjectionRules(failures=2), panic=Panic(0.2)))
    assert pool.out == {"a0"}
    pool.ends("a1", RESET, RESET)
    assert pool.out == {"a0", "a1"}
    ill(pool, ["a2"])
    assert pool.offered == {"a3"}


def test_a_new_address_is_a_new_endpoint() -> None:
    """Neither its ejection nor its checks are of the old one."""
    pool = Pool(4)
    pool.ends("a0", *[RESET] * 5)
    ill(pool, ["a1"])
    states = pool.router.states
    pool.router.replace(
        [Endpoint(s.id, "http://elsewhere", "a") for s in states[:2]] + [s.endpoint for s in states[2:]]
    )
    assert pool.out == set()
    pool.router.replace([s.endpoint for s in pool.router.states])  # nothing new: nothing is forgotten
    pool.ends("a2", *[RESET] * 5)
    pool.router.replace([s.endpoint for s in pool.router.states])
    assert pool.out == {"a2"}


def test_the_admin_state_is_shown() -> None:
    """Its repr is what a failing test shows."""
    pool = Pool(4)
    pool.ends("a0", *[RESET] * 5)
    pool.router.set_admin_state("a1", AdminState.DRAIN)
    pool.router.set_admin_state("a2", AdminState.MAINTENANCE)
    shown = "[<a0 0 in flight ejected>, <a1 0 in flight drain>, <a2 0 in flight maintenance>]"
    assert repr(pool.router.states[:3]) == shown
    pool.router.set_enabled("a1", True)
    assert pool["a1"].admin_state is AdminState.READY


def test_whoever_waits_is_woken_when_somebody_returns() -> None:
    """An ejection that ends, or a panic that begins, ends a drought."""
    pool = Pool(2, panic=0.0)
    woken: list[int] = []
    pool.router.on_available = lambda: woken.append(len(pool.router.available))
    pool.ends("a0", *[REFUSED] * 5)
    ill(pool, ["a1"])
    assert pool.offered == set()
    pool.pass_time(31)
    assert woken == [1]
    ill(pool, ["a0"])
    pool.router.apply_health(Health(Random(1), panic=Panic(0.5)))
    assert woken == [1, 2]
