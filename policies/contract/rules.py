"""Contract rules that apply to every policy.

A policy is tested by its behaviour through the router, and the message of a failure states what was measured.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from enum import Enum
from math import inf
from random import Random

from policies.contract.trial import REGION, Answer, Trial, endpoints, require
from policies.endpoint.ejection import EjectionRules
from policies.endpoint.state import EndpointState
from policies.facts import OutcomeKind
from policies.health.health import Health
from policies.health.slow_start import SlowStart
from policies.insight.explanation import Trace
from policies.policy import PolicyMaker


def stays_within_the_set(make: PolicyMaker) -> None:
    """The policy picks only selectable endpoints, and raises nothing, whatever becomes unhealthy, with and without
    explanations."""
    trial, rng = Trial(make, endpoints(*[1] * 6)), Random(3)
    for number in range(300):
        trial.router.explain(Trace() if number % 2 else None)
        trial.router.set_healthy(f"{REGION}-{rng.randrange(1, 6)}", rng.random() < 0.5)
        trial.open_loop(100, 0.1)
    require(
        trial.router.last_fault is None,
        f"fallback picks: {trial.router.fallback_picks}, last fault: {trial.router.last_fault}",
    )


def repeats_itself(make: PolicyMaker) -> None:
    """The same seed gives the same run: all randomness comes from the generator passed in."""
    one, other = (Trial(make, endpoints(1, 2, 3)) for _ in range(2))
    for trial in (one, other):
        trial.closed_loop(10, 10)
    require(one.log == other.log, "the same seed gave two different runs")


def changes_no_counts(make: PolicyMaker) -> None:
    """The policy leaves what the router counts of an endpoint as it is: states are read-only."""
    trial = Trial(make, endpoints(1, 2, 3, 1, 2, 3), _failing())
    trial.closed_loop(24, 5)
    picked, unanswered = trial.picked(), trial.unanswered()
    for state in trial.router.states:
        sent, waiting, weight = picked[state.id], unanswered[state.id], state.endpoint.weight
        counted = {"in_flight": waiting, "awaiting": waiting, "elsewhere": 0, "sent": sent, "limit": inf}
        for name, value in {**counted, "weight": weight, "share": 1.0}.items():
            found = getattr(state, name)
            require(found == value, f"the policy has changed {name} of an endpoint: {found:g}, not {value:g}")


def avoids_starvation(make: PolicyMaker) -> None:
    """An endpoint that was twenty times slower for 30 s has a third of its fair share again 30 s later."""

    def answer(state: EndpointState, now: float) -> tuple[float, OutcomeKind]:
        return 2.0 if state.id == f"{REGION}-0" and now < 30 else 0.1, OutcomeKind.OK

    trial = Trial(make, endpoints(*[1] * 4), answer)
    trial.open_loop(40, 90)
    share = trial.picked(since=60)[f"{REGION}-0"] / trial.picked(since=60).total()
    require(share >= 0.25 / 3, f"an endpoint that had recovered got {share:.1%} of the requests")


def spares_a_cold_endpoint(make: PolicyMaker) -> None:
    """A new endpoint among four loaded ones does not get most of the next twenty requests."""
    trial = Trial(make, endpoints(*[1] * 4))
    trial.closed_loop(80, 10)
    trial.router.replace(endpoints(*[1] * 5))
    picked = Counter(trial.send().id for _ in range(20))
    cold = picked[f"{REGION}-4"]
    require(cold <= 12, f"a cold endpoint got {cold} of the next 20 requests")


def ends_with_failures(make: PolicyMaker) -> None:
    """With ejection, a failing endpoint gets only occasional trials, and its share again after its recovery."""
    health = Health(Random(4), ejection=EjectionRules(base_time=10.0))
    trial = Trial(make, endpoints(*[1] * 6), _failing(until=20.0), health=health)
    trial.closed_loop(12, 60)
    failed = trial.picked(since=1) - trial.picked(since=20)
    share = failed[f"{REGION}-0"] / failed.total()
    require(share <= 0.005, f"an endpoint that fails every request and is ejected got {share:.2%} of them")
    again = trial.picked(since=40)
    share = again[f"{REGION}-0"] / again.total()
    require(share >= 1 / 18, f"an endpoint that is back from its ejection got {share:.1%} of the requests")


def returns_in_time(make: PolicyMaker) -> None:
    """An endpoint that failed every request for 3 s has at least a third of its fair share within three seconds of its
    recovery, whether a check, the end of an ejection or only its requests show it."""
    for signal in RecoverySignal:
        share = share_after_return(make, signal)
        require(
            share >= 1 / 18, f"an endpoint that is well by {signal.value} got {share:.1%} of the requests"
        )


class RecoverySignal(Enum):
    """How the recovery of an endpoint is detected."""

    BY_A_CHECK = "a check"
    BY_ITS_TIME = "the end of an ejection"
    BY_REQUESTS = "nothing but requests"


def share_after_return(make: PolicyMaker, signal: RecoverySignal) -> float:
    """Return the share that one of six gets in the third second after its recovery: after the check passes again, the
    ejection ends, or its requests succeed."""
    rules = EjectionRules(failures=2, base_time=2.0) if signal is RecoverySignal.BY_ITS_TIME else None
    rng = Random(5)  # with equal latencies, rounding errors would decide which one is faster
    answer = _failing(since=5.0, until=8.0, seconds=lambda: 0.015 + 0.01 * rng.random())
    trial = Trial(make, endpoints(*[1] * 6), answer, health=Health(Random(4), ejection=rules))
    state = trial.router.find(f"{REGION}-0")
    trial.open_loop(500, 5.5)
    trial.router.set_healthy(state.id, signal is not RecoverySignal.BY_A_CHECK)
    trial.open_loop(500, 2.5)
    trial.router.set_healthy(state.id, True)
    well_at = max(trial.clock.time, state.record.until or 0.0)
    trial.open_loop(500, well_at + 3 - trial.clock.time)
    picked = trial.picked(since=well_at + 2)
    return picked[state.id] / picked.total()


def _failing(since: float = 0.0, until: float = inf, seconds: Callable[[], float] = lambda: 0.1) -> Answer:
    """Endpoints of which the first fails every request within 5 ms for a time."""

    def answer(state: EndpointState, now: float) -> tuple[float, OutcomeKind]:
        fails = state.id == f"{REGION}-0" and since <= now < until
        return (0.005, OutcomeKind.RESET) if fails else (seconds(), OutcomeKind.OK)

    return answer


def respects_slow_start(make: PolicyMaker) -> None:
    """A new endpoint gets little more than its slow-start part of a fair share, and its full share in the end."""
    trial = Trial(make, endpoints(*[1] * 4), health=Health(Random(4), slow_start=SlowStart(window=20.0)))
    trial.closed_loop(24, 10)
    trial.router.replace(endpoints(*[1] * 5))
    trial.closed_loop(0, 30)
    first = trial.picked(since=10) - trial.picked(since=14)
    share = first[f"{REGION}-4"] / first.total()
    require(
        share <= 0.1, f"a new endpoint got {share:.1%} of the requests in the first fifth of its slow start"
    )
    later = trial.picked(since=32)
    share = later[f"{REGION}-4"] / later.total()
    require(share >= 0.2 / 3, f"a new endpoint got {share:.1%} of the requests after its slow start")


def avoids_failing(make: PolicyMaker) -> None:
    """An endpoint that fails within 5 ms gets at most a little over its fair share, however idle it looks."""
    trial = Trial(make, endpoints(*[1] * 6), _failing())
    trial.closed_loop(24, 10)
    share = trial.picked()[f"{REGION}-0"] / trial.picked().total()
    require(share <= 0.2, f"an endpoint that fails every request got {share:.1%} of them")


def ends_rejections(make: PolicyMaker) -> None:
    """After a burst of three times the capacity, no request is rejected from 30 s on at a load of 60 or 75 %."""
    for rate in (48.0, 60.0):
        trial = Trial(make, endpoints(*[1] * 4), _one_at_a_time())
        trial.open_loop(rate, 10)
        trial.open_loop(240, 10)
        trial.open_loop(rate, 90)
        late = sum(at >= 50 for at in trial.rejected_at)
        require(not late, f"{late / (60 * rate):.1%} of a load of {rate / 80:.0%} was rejected after a burst")


def _one_at_a_time() -> Answer:
    """Endpoints that serve one request at a time, in 50 ms on average. Clients leave a queue after 2 s."""
    rng, idle_at = Random(6), dict[str, float]()

    def answer(state: EndpointState, now: float) -> tuple[float, OutcomeKind]:
        ends_at = max(now, idle_at.get(state.id, 0.0)) + rng.expovariate(20.0)
        if ends_at - now >= 2.0:
            return 2.0, OutcomeKind.ABANDONED
        idle_at[state.id] = ends_at
        return ends_at - now, OutcomeKind.OK

    return answer
