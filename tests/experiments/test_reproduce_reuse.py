"""`reproduce reuse`: the mix of calls, bounds, and a quick run with processes."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from experiments.report.canvas import to_png
from experiments.reproduce.client import Calls, ClientAnswer, service_in
from experiments.reproduce.launch import EVENTS
from experiments.reproduce.reuse import (
    AFTER,
    BEFORE,
    CALLS_PER_USER,
    MIX,
    NEW_CONNECTIONS,
    OURS,
    QUICK,
    TRANSPORTS,
    Reuse,
    ReusePlan,
    TransportRun,
    keys_of,
    random_instants,
)
from tests.experiments.reproduced import quick_run

COUNTS = dict.fromkeys((*EVENTS, "retried", "handshakes"), 0)


def run_of(took: float, span: float, status: int = 200, low_status: int = 200) -> TransportRun:
    """Two hundred calls, the last one with another status, and one call with little traffic."""
    answers = [ClientAnswer(200, took, call="list records")] * 199 + [
        ClientAnswer(status, took, call="create zone")
    ]
    low = Calls([ClientAnswer(low_status, took)], 1.0, COUNTS)
    return TransportRun(OURS, Calls(answers, span, COUNTS), low)


def reproduction_of(*runs: TransportRun) -> Reuse:
    found = Reuse(True)
    found._runs += runs
    return found


def test_500_users_make_the_calls_of_the_source() -> None:
    assert [500 * call.times for call in MIX] == [500, 5000, 1500, 500, 5000, 500, 500, 5000, 500]
    assert ReusePlan().calls == 500 * CALLS_PER_USER == 19_000


def test_random_calls_follow_the_mix_at_ascending_instants() -> None:
    found = list(random_instants(4000, 0.5, Random(1)))
    instants = [at for _, at in found]
    assert instants == sorted(instants)
    assert instants[-1] == pytest.approx(2000, rel=0.1)
    counts = Counter(call.name for call, _ in found)
    assert counts["create DNS records"] / 4000 == pytest.approx(10 / CALLS_PER_USER, rel=0.2)


def test_a_summary_is_scaled_to_the_source_s_time() -> None:
    """With a second compressed to a tenth, latencies are ten times as long and the rate is a tenth."""
    row = Calls([ClientAnswer(200, 0.010)] * 99 + [ClientAnswer(200, 0.050)], 2.0, COUNTS).latency(0.1)
    assert (row.rate, row.min, row.p99, row.max) == pytest.approx((5.0, 100, 100, 500))
    assert row.mean == pytest.approx(104)


def test_values_below_a_hundred_have_a_decimal() -> None:
    assert replace(BEFORE, min=99.94, p50=100.4, p75=14522.0).texts()[1:4] == ["99.9", "100", "14522"]


@pytest.mark.parametrize(
    ("took", "span", "status", "low_status", "met"),
    [
        (0.05, 1.0, 200, 200, [True] * 6),
        (0.05, 1.4, 200, 200, [False, True, True, True, True, True]),
        (0.06, 1.0, 503, 200, [True, False, True, True, False, True]),
        (0.11, 1.0, 200, 0, [True, False, False, False, True, False]),
    ],
)
def test_each_bound_can_be_missed(
    took: float, span: float, status: int, low_status: int, met: list[bool]
) -> None:
    old, new = replace(run_of(0.1, 2.0), transport=NEW_CONNECTIONS), run_of(took, span, status, low_status)
    assert [verdict.is_met for verdict in reproduction_of(old, new).verdicts()] == met
    assert [*Reuse(True).verdicts()] == []


def test_the_bounds_are_the_gains_of_the_source() -> None:
    assert AFTER.rate / BEFORE.rate == pytest.approx(1.54, abs=0.005)
    assert AFTER.p50 < BEFORE.p50 / 2
    assert AFTER.max > BEFORE.max


def test_configurations_differ_by_transport_and_keep_alive_alone() -> None:
    found: list[dict[str, Any]] = [dict(keys_of(one, 5, [("127.0.0.1", 1)])) for one in TRANSPORTS]
    for keys in found:
        (endpoint,) = keys["endpoints"]
        del endpoint["transport"], endpoint["keep_alive"]
    assert all(keys == found[0] for keys in found)


def test_service_time_is_read_from_the_response() -> None:
    assert service_in(b"HTTP/1.1 200 OK\r\nX-Worker-Service-Time: 0.0215\r\nA: b\r\n") == 0.0215
    assert service_in(b"HTTP/1.1 200 OK\r\n") == 0.0


def test_the_figure_is_drawn() -> None:
    runs = (replace(run_of(0.1, 2.0), transport=one) for one in TRANSPORTS)
    assert to_png(reproduction_of(*runs).figure()).startswith(b"\x89PNG")


@pytest.mark.second_tier
@pytest.mark.timeout(180)
def test_quick_run(tmp_path: Path) -> None:
    """Every available transport makes all calls of the mix, and ours fails none while the server closes connections."""
    found = quick_run("reuse", tmp_path)
    assert [run["transport"] for run in found["runs"]] == [
        one.name for one in TRANSPORTS if not one.why_absent
    ]
    for run in found["runs"]:
        assert run["load"]["calls"] == {call.name: QUICK.users * call.times for call in MIX}
        assert run["low_traffic"]["requests"] == QUICK.low_traffic.calls
    loads = {run["transport"]: run["load"] for run in found["runs"]}
    # libcurl now and then sends a POST on a connection that is being closed
    assert loads[NEW_CONNECTIONS.name]["failed"] == loads[OURS.name]["failed"] == 0
    assert loads[NEW_CONNECTIONS.name]["connections"]["opened"] == QUICK.calls
    assert loads[OURS.name]["connections"]["reused"] > QUICK.calls / 2
    assert len(found["bounds"]) == 6
