"""The open loop of the bench: its report, when it says nothing of the peer, the rate that is found."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.cost.plan import Plan, Run
from benchmarks.cost.session import place_in_words
from benchmarks.cost.tail import Capacity, capacities_in_words, judged
from benchmarks.harness.cases import CASES
from benchmarks.harness.open_load import WARM_UP, OpenLoad, Report, parsed, run, summarised
from benchmarks.harness.open_loop import Record
from experiments import cpu_time
from experiments.errors import FleetFailedError
from experiments.ports import free_ports
from experiments.stats.samples import Kind

RUN = Run("half", "nginx", 0, 0)
OFFER = OpenLoad(port=1, path="/", rate=500.0, seconds=0.2, connections=4, seed=1)


def test_latency_counts_from_the_scheduled_instant() -> None:
    """The first left late, the second failed, the third waited for a connection: all count, two of them as lag."""
    record = Record(
        due=np.array([100.0, 100.0, 100.0]),
        sent=np.array([100.002, 100.0, 100.003]),
        ended=np.array([100.005, 100.001, 100.004]),
        kind=np.array([Kind.OK, Kind.RESET, Kind.OK]),
        has_waited=np.array([False, False, True]),
    )
    found = summarised(record, cpu=9.0, busy=0.5)
    assert (found.requests, found.failed, found.waited, found.failures) == (3, 1, 1, {"reset": 1})
    assert (found.p50, found.p99) == pytest.approx((4.0, 5.0))
    assert (found.lag, found.service) == pytest.approx((2.0, 3.0))
    assert (found.cpu, found.busy) == (9.0, 0.5)


def test_the_warm_up_is_no_part_of_the_record() -> None:
    """Rows are chosen by when they were due."""
    ones = np.ones(3)
    record = Record(np.array([0.0, 0.5, 1.0]), ones, ones, np.zeros(3, np.int64), ones > 2)
    assert record.since(0.5).due.tolist() == [0.5, 1.0]


def test_an_offer_is_told_to_the_program_in_words() -> None:
    assert OFFER.words == ["1", "/", "500.0", "0.2", "4", "1"]
    assert replace(OFFER, spins=True).words == [*OFFER.words, "spin"]


def test_the_load_is_alone_where_there_are_two_cores() -> None:
    """In the open loop only: the worker moves to the proxy's core."""
    both = Plan((), CASES["half"], 64, 1.0, 1, 1, proxy_core=0, rest_core=1, wrk=None)
    assert (both.is_load_alone, both.worker_core) == (True, 0)
    for plan in (replace(both, rest_core=0), replace(both, case=CASES["get"])):
        assert (plan.is_load_alone, plan.worker_core) == (False, plan.rest_core)


def test_the_output_says_who_shares_a_core() -> None:
    plan = Plan((), CASES["half"], 64, 1.0, 1, 1, proxy_core=0, rest_core=1, wrk=None)
    assert place_in_words(plan) == "proxy and worker share core 0, load alone on core 1"
    assert place_in_words(replace(plan, case=CASES["get"])).startswith("proxy alone on core 0, worker")
    assert "share core 0: no wake-up" in place_in_words(replace(plan, rest_core=0))


def test_instants_are_those_of_the_seed() -> None:
    """As many as are asked for after the warm-up, ascending, the same each time."""
    found = OFFER.instants()
    assert np.count_nonzero(found >= WARM_UP) == 100
    assert (np.diff(found) >= 0).all()
    assert (found == OFFER.instants()).all()
    assert not np.array_equal(found, replace(OFFER, seed=2).instants())


def test_a_late_generator_makes_the_run_void_without_a_fault() -> None:
    """Half of the figure may be its own, not more."""
    assert judged(RUN, Report(100, 0, 0.5, 2.0, 1.0), 50.0).void == ""
    found = judged(RUN, Report(100, 0, 0.5, 2.0, 1.01), 50.0)
    assert found.void == "the generator was 1.01 ms late itself, of 2.00 ms"
    assert found.fault == ""
    assert judged(RUN, Report(100, 0, math.nan, math.nan, math.nan), 50.0).void


def test_a_busy_machine_makes_the_run_void() -> None:
    """Whoever comes in between makes the tail."""
    report = Report(100, 0, 0.5, 2.0, 0.1)
    assert judged(RUN, report, 50.0, taken=0.2).void == ""
    assert judged(RUN, report, 50.0, taken=0.21).void == "others took 21% of the cores"


def test_a_full_core_makes_the_run_void() -> None:
    """Requests wait for the generator then, whatever the proxy does."""
    assert judged(RUN, Report(100, 0, 0.5, 2.0, 0.1, busy=0.85), 50.0).void == ""
    found = judged(RUN, Report(100, 0, 0.5, 2.0, 0.1, busy=0.86), 50.0)
    assert found.void == "the generator's core was 86% in use, which leaves it no room"


def test_a_failed_request_is_the_peer_s_fault() -> None:
    found = judged(RUN, Report(100, 3, 0.5, 2.0, 0.1, failures={"reset": 2, "error_status": 1}), 50.0)
    assert found.fault == "3 requests failed (2 reset, 1 error status)"
    assert (found.figure, found.lag, found.rate, found.requests) == (2.0, 0.1, 50.0, 100)


def test_what_is_no_report_is_quoted() -> None:
    assert parsed('{"requests": 1, "failed": 0, "p50": 1, "p99": 2, "lag": 0}') == Report(1, 0, 1, 2, 0)
    for text in ("experiments: no connection", "[]", '{"requests": 1}'):
        with pytest.raises(FleetFailedError, match="gave no report"):
            parsed(text)


def test_capacities_are_told() -> None:
    """And whose they are: a proxy that was waiting for the load has shown the load's."""
    capacities = {"nginx": Capacity(200.4, 0.7), "steelyard random": Capacity(100.0, 0.99)}
    said = capacities_in_words(capacities, 50.0)
    assert said == "capacity: nginx 200/s, steelyard random 100/s; offered to each: 50/s"
    said = capacities_in_words({"nginx": Capacity(200.4, 0.7)}, 100.2)
    held_up = "the slowest used 70% of its core: it was held up, by the load or by others"
    assert said == f"capacity: nginx 200/s ({held_up}); offered to each: 100/s"


@pytest.fixture
def worker_port() -> Iterator[int]:
    """The package's own worker, in a process of its own."""
    port = next(free_ports(1))
    command = [sys.executable, "-m", "benchmarks.harness.worker", str(port)]
    with subprocess.Popen(command) as worker:
        yield port
        worker.terminate()


@pytest.mark.skipif(not cpu_time.is_known_here(), reason="epoll and timerfd are Linux's")
@pytest.mark.parametrize("spins", [False, True])
def test_every_request_of_the_schedule_is_sent_and_answered(worker_port: int, spins: bool) -> None:
    """A real worker on a real socket."""
    found = run_when_ready(replace(OFFER, port=worker_port, spins=spins))
    assert (found.requests, found.failed) == (100, 0)
    assert np.isfinite([found.p50, found.p99, found.lag, found.service]).all()
    assert 0.0 <= found.busy <= 1.0 or not spins


def run_when_ready(offer: OpenLoad) -> Report:
    """Run the load once the port accepts connections; the test's time limit ends the attempts."""
    while True:
        try:
            return run(offer)
        except FleetFailedError:
            continue


@pytest.mark.skipif(not cpu_time.is_known_here(), reason="epoll and timerfd are Linux's")
def test_a_port_without_a_server_is_an_error() -> None:
    with pytest.raises(FleetFailedError, match="no connection"):
        run(OFFER)
