"""Loads of the cost benchmark: reports of wrk and of the built-in generators, void runs, and the offered rate."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.cost.plan import CostPlan, CostRun
from benchmarks.cost.runs import Capacity, capacities_in_words, judged
from benchmarks.cost.session import place_in_words
from benchmarks.harness.cases import CASES
from benchmarks.harness.closed_load import ClosedLoop, Load, LoadOutcome, parsed
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


def test_the_open_loop_has_a_core_of_its_own() -> None:
    """With two cores, worker and proxy share one, which the first lines of the output say."""
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


# --- closed loops

CLEAN = """Running 3s test @ http://127.0.0.1:8080/
  1 threads and 64 connections
  Thread Stats   Avg      Stdev     Max   +/- Stdev
    Latency     1.09ms    1.53ms  29.77ms   98.05%
    Req/Sec    10.44k     1.17k   11.87k    50.00%
  31391 requests in 3.10s, 1.49MB read
Requests/sec:  10126.13
Transfer/sec:      1.48MB
"""


def test_report_of_wrk() -> None:
    """Errors are counted and invalidate the run, as does a run without responses."""
    assert (parsed(CLEAN), parsed(CLEAN).fault) == (LoadOutcome(requests=31391, rate=10126.13), "")
    assert parsed(CLEAN.replace("31391 requests", "0 requests")).fault
    lines = "  Socket errors: connect 1, read 20, write 0, timeout 3\n  Non-2xx or 3xx responses: 7\nRequests/sec:"
    found = parsed(CLEAN.replace("Requests/sec:", lines))
    assert (found.bad_status, found.socket_errors) == (7, 24)
    assert "7 non-2xx" in found.fault
    with pytest.raises(FleetFailedError, match="no report: unable to connect"):
        parsed("unable to connect to 127.0.0.1:1 Connection refused\n")


def test_command_line_of_wrk(tmp_path: Path) -> None:
    """Duration in whole seconds; a body requires a script."""
    plain = Load(CASES["get"], 64, "/bin/wrk", tmp_path).wrk_argv(8080, 0.3)
    assert plain[plain.index("--duration") + 1] == "1s"
    assert plain[-1] == "http://127.0.0.1:8080/"
    assert "--script" not in plain
    secure = Load(CASES["tls"], 64, "/bin/wrk", tmp_path).wrk_argv(8080, 3)
    assert secure[-1] == "https://127.0.0.1:8080/"
    post = Load(CASES["post16k"], 64, "/bin/wrk", tmp_path).wrk_argv(8080, 3)
    script = Path(post[post.index("--script") + 1]).read_text(encoding="utf-8")
    assert 'wrk.method = "POST"' in script
    assert 'string.rep("x", 16384)' in script


def test_request_of_the_built_in_generator() -> None:
    load = ClosedLoop(8080, "POST", "/p", body=3, connections=1, seconds=1.0, is_tls=False)
    assert load.request == b"POST /p HTTP/1.1\r\nHost: 127.0.0.1:8080\r\nContent-Length: 3\r\n\r\nxxx"


async def test_port_without_a_server_gives_socket_errors(tmp_path: Path) -> None:
    load = Load(CASES["get"], 2, None, tmp_path)
    found = await load.run(1, 0.1, nullcontext)
    assert found == LoadOutcome(requests=0, rate=0.0, socket_errors=2)
