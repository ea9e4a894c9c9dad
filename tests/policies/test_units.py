"""Reports of other units: applied to the endpoint states, never sent on, and expired."""

from __future__ import annotations

from math import inf, nan
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies import registry
from policies.contract import ManualClock
from policies.endpoint.elsewhere import Elsewhere
from policies.facts import Endpoint, Outcome, OutcomeKind, RequestFacts
from policies.routing.router import Router
from policies.routing.units import EXPIRY, LATENCIES_EVERY, MOST_SENDERS, OtherUnits, UnitReport, key_of
from policies.stats.shared_latency import LONGEST_LATENCY, SharedLatency, from_record, to_record

FACTS = RequestFacts(region="r")


def endpoint(number: int, address: str | None = None) -> Endpoint:
    return Endpoint(f"e{number}", address or f"http://e{number}", "r", 1.0, None)


class Unit:
    """A router and its knowledge of other units."""

    def __init__(self, clock: ManualClock, *endpoints: Endpoint, seed: int = 0) -> None:
        rng = Random(seed)
        self.clock = clock
        self.router = Router(endpoints, registry.make("least-in-flight", {}, rng), clock, rng)
        self.units = OtherUnits(self.router)

    def serve(self, seconds: float, kind: OutcomeKind = OutcomeKind.OK) -> None:
        """Send a request and take its outcome after `seconds`."""
        assignment = self.router.route(FACTS)
        self.clock.time += seconds
        now = self.clock.now()
        self.router.settle(assignment, Outcome(kind, 200, assignment.routed_at, now, now))

    def hear(self, other: Unit, sender: int = 1, age: float = 0.0) -> None:
        assert self.units.hear(sender, other.units.report(self.clock.now()), self.clock.now(), age)


def pair(*endpoints: Endpoint) -> tuple[Unit, Unit]:
    clock = ManualClock()
    clock.time = 100.0
    return Unit(clock, *endpoints), Unit(clock, *endpoints, seed=1)


def test_requests_of_other_units_are_counted_and_not_sent_on() -> None:
    one, other = pair(endpoint(0), endpoint(1))
    for _ in range(4):
        other.router.route(FACTS)
    one.hear(other)
    assert [state.in_flight for state in one.router.states] == [2, 2]
    assert [state.in_flight_here for state in one.router.states] == [0, 0]
    assert one.units.report(one.clock.now()).in_flight == {}
    assert one.units.in_flight == 4


def test_requests_of_other_units_do_not_fill_an_endpoint() -> None:
    """A limit is of this unit's requests: what another reports never makes one wait."""
    one, _ = pair(Endpoint("e0", "http://e0", "r", 1.0, 2))
    one.units.hear(1, UnitReport({key_of(one.router.states[0].endpoint): 1000}), 100.0, 0.0)
    one.router.route(FACTS)
    one.router.route(FACTS)
    assert one.router.states[0].is_full


def test_endpoints_match_by_id_and_address() -> None:
    clock = ManualClock()
    one, other = Unit(clock, endpoint(0)), Unit(clock, endpoint(0, "http://elsewhere"))
    other.router.route(FACTS)
    one.hear(other)
    assert one.router.states[0].in_flight == 0


@given(st.lists(st.tuples(st.integers(1, 3), st.lists(st.integers(0, 2), max_size=2)), max_size=12))
def test_the_total_is_that_of_the_last_reports(reports: list[tuple[int, list[int]]]) -> None:
    """Also where a report names endpoints without requests, which none has to."""
    one, _ = pair(endpoint(0), endpoint(1))
    keys = [key_of(state.endpoint) for state in one.router.states]
    last: dict[int, list[int]] = {}
    for sender, counts in reports:
        last[sender] = counts
        assert one.units.hear(sender, UnitReport(dict(zip(keys, counts, strict=False))), one.clock.now(), 0.0)
    assert one.units.in_flight == sum(map(sum, last.values()))


def test_latencies_and_failures_are_pooled() -> None:
    one, other = pair(endpoint(0))
    other.serve(0.5)
    other.serve(0.1, OutcomeKind.RESET)
    one.hear(other)
    one.units.sweep(one.clock.now())
    mine, theirs = one.router.states[0].latency, other.router.states[0].latency
    assert mine.mean == pytest.approx(theirs.mean)
    assert mine.failures == pytest.approx(theirs.failures)
    assert mine.own() == SharedLatency(at=mine.measured_at)
    one.clock.time += LATENCIES_EVERY
    assert one.units.report(one.clock.now()).latencies == {}


def test_a_silent_unit_is_forgotten() -> None:
    """With its requests, latencies and failures, as if it had never been heard."""
    one, other = pair(endpoint(0))
    one.serve(0.2)
    before = one.router.states[0].latency.own()
    other.serve(0.9)
    other.router.route(FACTS)
    one.hear(other)
    one.units.sweep(one.clock.now())
    assert one.router.states[0].in_flight == 1
    assert one.router.states[0].latency.mean > 0.3
    one.clock.time += EXPIRY + 0.01
    one.units.sweep(one.clock.now())
    state = one.router.states[0]
    assert (len(one.units), one.units.in_flight, state.in_flight, state.elsewhere) == (0, 0, 0, 0)
    assert state.latency.mean == pytest.approx(0.2)
    assert state.latency.own().floor == before.floor == state.latency.floor


def test_a_count_is_older_the_longer_it_is_until_the_next() -> None:
    one, _ = pair(endpoint(0))
    one.serve(0.1)
    key, believed = key_of(endpoint(0)), []
    for interval in (0.0, 1.0):
        for count in (0, 8):
            one.units.hear(1, UnitReport({key: count}), one.clock.now(), 0.0, interval)
        believed.append(one.router.states[0].elsewhere)
    assert believed[0] == 8
    assert believed[1] < 4


def test_a_report_that_was_late_expires_sooner() -> None:
    """Knowledge expires by its age, not by the time since it came."""
    one, other = pair(endpoint(0))
    other.router.route(FACTS)
    one.hear(other, age=EXPIRY - 0.1)
    one.units.sweep(one.clock.now() + 0.09)
    assert one.router.states[0].elsewhere == 1
    one.units.sweep(one.clock.now() + 0.11)
    assert one.router.states[0].elsewhere == 0


def test_one_of_two_units_that_is_silent_is_forgotten() -> None:
    one, other = pair(endpoint(0))
    other.router.route(FACTS)
    one.hear(other, sender=1)
    one.clock.time += EXPIRY - 0.1
    one.hear(other, sender=2)
    one.clock.time += 0.2
    one.units.sweep(one.clock.now())
    assert (len(one.units), one.units.in_flight) == (1, 1)


def test_reports_follow_changes_of_the_endpoints() -> None:
    one, other = pair(endpoint(0), endpoint(1))
    other.router.route(FACTS)
    other.router.route(FACTS)
    one.hear(other)
    one.router.replace([endpoint(1), endpoint(2)])
    one.hear(other)
    assert [state.in_flight for state in one.router.states] == [1, 0]
    other.router.drop("e1")
    one.hear(other)
    assert [state.in_flight for state in one.router.states] == [0, 0]


def test_unknown_endpoints_and_too_many_senders_take_no_memory() -> None:
    one, _ = pair(endpoint(0))
    for sender in range(MOST_SENDERS):
        assert one.units.hear(
            sender, UnitReport(dict.fromkeys(range(10), 1), {5: SharedLatency(1.0)}), 100.0, 0.0
        )
    assert not one.units.hear(MOST_SENDERS, UnitReport({}), 100.0, 0.0)
    assert (len(one.units), one.units.in_flight) == (MOST_SENDERS, 0)


def test_a_count_older_than_a_service_time_counts_little() -> None:
    """The mean counts instead, so that units do not herd to the endpoint that was idle a while ago."""
    fresh, stale = Elsewhere(), Elsewhere()
    for n in range(400):
        now = n * 0.04
        fresh.update(8 * (n % 2), now, 0.001, 0.1)
        stale.update(8 * (n % 2), now, 1.0, 0.1)
    assert fresh.believed == 8
    assert stale.believed == 4
    assert stale.forget() == -4
    assert stale.believed == 0


def test_a_sweep_older_than_the_last_count_makes_no_count_negative() -> None:
    """A sweep reads the counts by the time at which it began; requests that it has routed have read them since."""
    source = Elsewhere()
    counts = [(2, 0.0), (1, 0.0), (0, -0.002), (1, 0.001), (0, -0.01), (0, 0.0)]
    for count, later in counts:
        source.update(count, 10.0 + later, (10.0 + later - source.counted_at) / 2.0, service=0.001)
        assert 0 <= source.believed <= 2
    assert source.counted_at == 10.001


def test_records_have_ages_instead_of_times() -> None:
    own = SharedLatency(4.0, 2.0, 8.0, 1.0, 0.25, 0.125, 97.0)
    record = to_record(own, 100.0)
    assert record[-1] == 3.0
    assert from_record(record, 5000.0) == own._replace(at=4997.0)
    assert from_record(to_record(SharedLatency(failures=1.0, at=100.0), 100.0), 7.0) == SharedLatency(
        failures=1.0, at=7.0
    )


@pytest.mark.parametrize("value", [nan, inf, -inf, -1.0, 1e30])
@pytest.mark.parametrize("place", range(len(SharedLatency._fields)))
def test_impossible_records_are_refused(place: int, value: float) -> None:
    """A floor and a pace may be large, and nothing else: they only ever lower what is predicted."""
    record = list(to_record(SharedLatency(4.0, 2.0, 8.0, 1.0, 0.25, 0.125, 97.0), 100.0))
    record[place] = value
    found = from_record(record, 100.0)
    if SharedLatency._fields[place] in ("floor", "pace") and value == 1e30:
        assert found is not None
        assert found.latency <= found.successes * LONGEST_LATENCY
    else:
        assert found is None
