"""The open loop of the bench: its report, when it says nothing of the peer, the rate that is found."""

from __future__ import annotations

import asyncio
import math

import numpy as np
import pytest

from experiments.bench_open import Report, report_of, run
from experiments.bench_plan import Run
from experiments.bench_serving import free_ports
from experiments.bench_tail import capacities_in_words, judged, parsed
from experiments.bench_worker import Connection
from experiments.errors import FleetFailedError
from experiments.ledger import Ledger
from experiments.samples import Kind, Place

RUN = Run("half", "nginx", 0, 0)


def test_latency_counts_from_the_scheduled_instant() -> None:
    """The first request left late, the second failed: both count, and so does the lag."""
    ledger = Ledger([Place(worker="w", region="r")], 100.0)
    for sent, ended, kind in ((0.002, 0.005, Kind.OK), (0.0, 0.001, Kind.RESET)):
        number = ledger.due(100.0)
        ledger.sent_at[number] = 100.0 + sent
        ledger.ended(number, 100.0 + ended, kind)
    found = report_of(ledger.samples())
    assert (found.requests, found.failed) == (2, 1)
    assert (found.p50, found.p99, found.lag) == pytest.approx((1.0, 5.0, 2.0))


def test_a_late_generator_makes_the_run_void_and_blames_nobody() -> None:
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


def test_a_failed_request_is_the_peer_s_fault() -> None:
    found = judged(RUN, Report(100, 3, 0.5, 2.0, 0.1), 50.0)
    assert found.fault == "3 requests failed"
    assert (found.figure, found.lag, found.rate, found.requests) == (2.0, 0.1, 50.0, 100)


def test_what_is_no_report_is_quoted() -> None:
    assert parsed('{"requests": 1, "failed": 0, "p50": 1, "p99": 2, "lag": 0}') == Report(1, 0, 1, 2, 0)
    for text in ("experiments: no connection", "[]", '{"requests": 1}'):
        with pytest.raises(FleetFailedError, match="gave no report"):
            parsed(text)


def test_capacities_are_told() -> None:
    found = capacities_in_words({"nginx": 200.4, "steelyard random": 100.0}, 50.0)
    assert found == "capacity: nginx 200/s, steelyard random 100/s; offered to each: 50/s"


async def test_every_request_of_the_schedule_is_sent_and_answered() -> None:
    """A real worker on a real socket."""
    port = next(free_ports(1))
    server = await asyncio.get_running_loop().create_server(Connection, "127.0.0.1", port)
    found = await run(port, "/", rate=500.0, seconds=0.2, connections=4, seed=1)
    assert (found.requests, found.failed) == (100, 0)
    assert np.isfinite([found.p50, found.p99, found.lag]).all()
    server.close()


async def test_a_port_without_a_server_is_an_error() -> None:
    with pytest.raises(FleetFailedError, match="no connection"):
        await run(1, "/", rate=10.0, seconds=0.1, connections=1, seed=1)
