"""Latency at half load: the open-loop report, void runs, and the offered rate."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.cost.plan import CostPlan, CostRun
from benchmarks.cost.runs import Capacity, capacities_in_words, judged
from benchmarks.cost.session import place_in_words
from benchmarks.harness.cases import CASES
from benchmarks.harness.load_process import report_in
from benchmarks.harness.open_load import WARM_UP, OpenLoad, Report, run, summarised
from benchmarks.harness.open_loop import Record
from experiments.errors import FleetFailedError
from experiments.platform import cpu_time
from experiments.platform.ports import free_ports
from experiments.run_data import Kind

RUN = CostRun("half", "nginx", 0, 0)
LOAD = OpenLoad(port=1, path="/", rate=500.0, seconds=0.2, connections=4, seed=1)


def test_latency_counts_from_the_scheduled_instant() -> None:
    """The first request is sent late, the second fails, the third waits for a connection: all count as latency."""
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
    assert (found.lag, found.cpu, found.busy) == pytest.approx((2.0, 9.0, 0.5))


def test_the_record_excludes_the_warm_up() -> None:
    """Rows are selected by their due time."""
    ones = np.ones(3)
    record = Record(np.array([0.0, 0.5, 1.0]), ones, ones, np.zeros(3, np.int64), ones > 2)
    assert record.since(0.5).due.tolist() == [0.5, 1.0]


def test_the_open_loop_has_a_core_of_its_own() -> None:
    """With two cores, the worker shares that of the proxy; the introduction says who is where."""
    both = CostPlan((), CASES["half"], 64, 1.0, 1, 1, proxy_core=0, rest_core=1, wrk=None)
    assert (both.is_load_alone, both.worker_core) == (True, 0)
    assert "load alone on core 1" in place_in_words(both)
    for plan, words in (
        (replace(both, rest_core=0), "share core 0"),
        (replace(both, case=CASES["get"]), "proxy alone on core 0"),
    ):
        assert (plan.is_load_alone, plan.worker_core) == (False, plan.rest_core)
        assert words in place_in_words(plan)


def test_instants_follow_from_the_seed() -> None:
    """The number after the warm-up is that of rate and duration; instants ascend."""
    found = LOAD.instants()
    assert np.count_nonzero(found >= WARM_UP) == 100
    assert (np.diff(found) >= 0).all()
    assert (found == LOAD.instants()).all()
    assert not np.array_equal(found, replace(LOAD, seed=2).instants())


@pytest.mark.parametrize(
    ("changed", "taken", "why"),
    [
        ({"lag": 1.0, "busy": 0.85}, 0.2, ""),
        ({"lag": 1.01}, 0.0, "1.01 ms late"),
        ({"p50": math.nan, "p99": math.nan, "lag": math.nan}, 0.0, "late"),
        ({"busy": 0.86}, 0.0, "core was 86% in use"),
        ({}, 0.21, "other processes took 21%"),
    ],
)
def test_what_delays_the_generator_makes_the_run_void(
    changed: dict[str, float], taken: float, why: str
) -> None:
    """Its lag above half of the p99, a saturated core, or other processes on the cores; no fault of the peer."""
    found = judged(RUN, replace(Report(100, 0, 0.5, 2.0, 0.1), **changed), 50.0, taken)  # type: ignore[arg-type]
    assert (found.fault, bool(found.void), why in found.void) == ("", bool(why), True)


def test_failed_request_is_a_fault_of_the_peer() -> None:
    found = judged(RUN, Report(100, 3, 0.5, 2.0, 0.1, failures={"reset": 2, "error_status": 1}), 50.0)
    assert "2 reset, 1 error status" in found.fault
    assert (found.figure, found.lag, found.rate, found.requests) == (2.0, 0.1, 50.0, 100)


def test_output_that_is_no_report_is_an_error() -> None:
    assert report_in(Report, '{"requests": 1, "failed": 0, "p50": 1, "p99": 2, "lag": 0}') == Report(
        1, 0, 1, 2, 0
    )
    for text in ("experiments: no connection", "[]", '{"requests": 1}'):
        with pytest.raises(FleetFailedError, match="gave no report"):
            report_in(Report, text)


def test_capacities_are_described() -> None:
    """A proxy that does not use its core fully was limited by something else, which is said."""
    capacities = {"nginx": Capacity(200.4, 0.7), "steelyard random": Capacity(100.0, 0.99)}
    text = capacities_in_words(capacities, 50.0)
    assert all(part in text for part in ("nginx 200/s", "steelyard random 100/s", "offered to each: 50/s"))
    assert "of its core" not in text
    assert "used 70% of its core" in capacities_in_words({"nginx": Capacity(200.4, 0.7)}, 100.2)


@pytest.fixture
def worker_port() -> Iterator[int]:
    """Port of the minimal worker, in a process of its own."""
    port = next(free_ports(1))
    command = [sys.executable, "-m", "experiments.platform.instant_worker", str(port)]
    with subprocess.Popen(command) as worker:
        yield port
        worker.terminate()


@pytest.mark.skipif(not cpu_time.is_known_here(), reason="epoll and timerfd are Linux's")
@pytest.mark.parametrize("spins", [False, True])
def test_every_request_of_the_schedule_is_answered(worker_port: int, spins: bool) -> None:
    found = run_when_ready(replace(LOAD, port=worker_port, spins=spins))
    assert (found.requests, found.failed) == (100, 0)
    assert np.isfinite([found.p50, found.p99, found.lag]).all()
    assert 0.0 <= found.busy <= 1.0 or not spins


def run_when_ready(load: OpenLoad) -> Report:
    """Run the load once the port accepts connections; the test's time limit ends the attempts."""
    while True:
        try:
            return run(load)
        except FleetFailedError:
            continue


@pytest.mark.skipif(not cpu_time.is_known_here(), reason="epoll and timerfd are Linux's")
def test_port_without_a_server_is_an_error() -> None:
    with pytest.raises(FleetFailedError, match="no connection"):
        run(LOAD)
