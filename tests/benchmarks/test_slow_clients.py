"""Slow clients: their behaviour, ratios and verdicts, and one short session."""

from __future__ import annotations

import os
import select
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.harness.peers import PEERS, ours
from benchmarks.slow_clients.command import introduction
from benchmarks.slow_clients.flood_client import BEGINNING, FLOODS, FloodClient
from benchmarks.slow_clients.runs import CONTROL, QUIET, SLOW_KINDS, SlowPlan, SlowRun, memory_of, order_of
from benchmarks.slow_clients.slow_client import OPENINGS, SlowClient, ending, kinds
from benchmarks.slow_clients.stalled import BOUND, Stalled
from benchmarks.slow_clients.table import cells_of, doubts, rows_of, verdicts
from experiments.platform import cpu_time
from experiments.stats.comparison import typical
from tests.benchmarks.commands import measured

OURS = "steelyard random"
PLAN = SlowPlan((ours("random"), ours("round-robin")), 20, 0.1, 50.0, 1.0, 4, 7, 0, 0)
CALM = SlowRun(OURS, QUIET, 0, requests=100, ok=100, p50=0.001, p99=0.002, cpu=0.1, memory=50 << 20)


def beside(kind: str, **changed: object) -> SlowRun:
    """A run beside slow clients, equal to the quiet one except for `changed`."""
    return replace(CALM, kind=kind, **changed)  # type: ignore[arg-type]


def met(runs: list[SlowRun], rounds: int = 2) -> list[bool | None]:
    """Whether each bound of Steelyard is met, in as many rounds of the same runs; one has no interval."""
    every = [replace(run, round=number) for run in runs for number in range(rounds)] or runs
    return [verdict.is_met for verdict in verdicts(rows_of(every), "steelyard")]


# --- slow clients


def test_mixed_slow_clients_have_every_kind() -> None:
    assert kinds("mixed", 4) == ["head", "body", "read", "head"]
    assert kinds("body", 2) == ["body", "body"]


@pytest.mark.parametrize(
    ("answer", "how"),
    [
        (b"HTTP/1.1 408 Request Timeout\r\n", "408"),
        (b"HTTP/1.0 503 X", "503"),
        (b"", "closed"),
        (b"zz", "closed"),
    ],
)
def test_unexpected_response_is_named_by_its_status(answer: bytes, how: str) -> None:
    assert ending(answer) == how


@pytest.mark.parametrize("kind", OPENINGS)
def test_a_slow_client_moves_one_byte_at_a_time(kind: str) -> None:
    """It sends its opening, then sends or reads one byte per move; after a close it reports how, and reconnects."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(5)
        client = SlowClient(server.getsockname()[1], kind)
        first, _ = server.accept()
        with first:
            assert first.recv(4096) == OPENINGS[kind]
            if kind == "read":
                first.send(b"xyz")
            assert client.move() == ""
            if kind != "read":
                assert first.recv(4096) == b"a"
        ends = [client.move() for _ in range(4)]  # a reader first reads the remaining bytes
        assert [end for end in ends if end] in (["closed"], ["reset"])
        second, _ = server.accept()
        with second:
            assert second.recv(4096).startswith(OPENINGS[kind])
        client.close()


@pytest.mark.parametrize("kind", FLOODS)
def test_a_flood_sends_frames_from_an_address_of_its_own(kind: str) -> None:
    """Until it is closed; then it reports how."""
    data = FLOODS[kind]()
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(5)
        client = FloodClient(server.getsockname()[1], 7, memoryview(data), kind)
        connection, address = server.accept()
        with connection, client.sock:
            assert address[0] == "127.0.1.7"
            assert client.go_on(select.EPOLLOUT) == ""
            received = connection.recv(1 << 16)
            assert data.startswith(received)
            assert len(received) > len(BEGINNING)
            connection.shutdown(socket.SHUT_WR)
            select.select([client.sock], [], [], 5)
            assert client.go_on(select.EPOLLIN) == "closed"


# --- figures


def test_order_has_every_proxy_with_every_slow_kind() -> None:
    """In an order that the seed alone decides; other proxies get no floods."""
    plan = replace(PLAN, peers=(*PLAN.peers, PEERS["nginx"]))
    order = order_of(plan)
    assert sorted((peer.name, slow_kind) for peer, slow_kind, _ in order) == sorted(
        [(peer.name, slow_kind) for peer in PLAN.peers for slow_kind in (*SLOW_KINDS, *FLOODS)]
        + [("nginx", slow_kind) for slow_kind in SLOW_KINDS]
    )
    assert plan.kinds_for(PEERS["nginx"]) == SLOW_KINDS
    for _, slow_kind, rounds in order:
        assert [sorted(kinds) for kinds in rounds] == [sorted((QUIET, CONTROL, slow_kind))] * plan.rounds
    assert order == order_of(plan) != order_of(replace(plan, seed=8))


def test_ratios_are_computed_within_a_round() -> None:
    """A round in which the machine is ten times slower has the same ratio; rounds of other slow kinds do not count."""
    slower = replace(CALM, round=1, p50=0.01, p99=0.02)
    other = replace(CALM, slow_kind="read", p99=9.0)
    runs = [CALM, slower, other, beside("head", p99=0.004), replace(slower, kind="head", p99=0.04)]
    calm, head = rows_of(runs)
    assert (calm.ratio_p99, head.ratio_p50) == (typical([1.0] * 3), typical([1.0] * 2))
    assert head.ratio_p99 == typical([2.0, 2.0])
    assert head.is_met


def test_control_has_a_ratio_and_no_verdict() -> None:
    again = beside(CONTROL, p99=0.02)
    assert cells_of(rows_of([CALM, again])[1])[5:7] == ["1.00 ×", "10.00 ×"]
    assert verdicts(rows_of([CALM, again]), "steelyard") == []


@pytest.mark.parametrize(
    ("run", "is_met"),
    [
        (beside("read", p99=0.0040), True),
        (beside("read", p99=0.0041), False),
        (beside("read", ok=99), False),
        (beside("read", fault="died"), False),
        (beside("body", lag=0.004), None),
        (beside("body", lag=0.004, ok=99), False),
    ],
)
def test_bound(run: SlowRun, is_met: bool | None) -> None:
    """100 % success and twice the quiet p99; an invalid run misses it. A single p99 is not judged, nor one of a late
    generator, which is in no ratio."""
    assert met([CALM, run]) == [is_met]
    assert met([CALM, run], rounds=1) == [None if run.ok == 100 and not run.fault else False]


def test_p99_on_both_sides_of_the_bound_is_not_judged() -> None:
    """The interval of the ratio over the rounds decides, not its middle."""
    figures = (0.001, 0.0045, 0.004)
    rounds = list(enumerate(figures))
    runs = [beside("read", p99=p99, round=number) for number, p99 in rounds]
    runs += [replace(CALM, round=number) for number, _ in rounds]
    assert met(runs, rounds=0) == [None]


@pytest.mark.parametrize("p99", [0.0009, 0.0041])
def test_p99_is_not_judged_if_the_control_differs_by_the_bound(p99: float) -> None:
    """The difference is noise of the machine; a failed request is not."""
    calm, head = beside(CONTROL, p99=p99, lag=0.0), beside("head", p99=0.01)
    assert met([CALM, calm, head]) == [None]
    assert met([CALM, calm, replace(head, ok=99)]) == [False]


@pytest.mark.parametrize("kind", ["heads", "head"])
@pytest.mark.parametrize("changed", [{"memory": 115 << 20}, {"probe": 1.1}], ids=str)
def test_memory_and_probes_beside_floods_are_bounded(kind: str, changed: dict[str, float]) -> None:
    (verdict,) = verdicts(rows_of([CALM, beside(kind, **changed)]), "steelyard")
    assert (verdict.is_met is False) is (kind == "heads")
    assert met([CALM, beside(kind, memory=114 << 20, probe=1.0)]) != [False]


def test_without_a_quiet_run_there_is_no_ratio() -> None:
    (row,) = rows_of([beside("body")])
    assert row.ratio_p99 is None
    assert row.is_met is None
    assert "–" in cells_of(row)


def test_success_is_not_rounded_up_to_100_percent() -> None:
    (row,) = rows_of([replace(CALM, requests=10_000_000, ok=9_999_999)])
    assert cells_of(row)[2] == "99.999 %"


def test_endings_are_summed() -> None:
    runs = [beside("head", endings={"408": 3}), beside("head", round=1, endings={"408": 2, "reset": 1})]
    (row,) = rows_of(runs)
    assert cells_of(row)[-1] == "5 × 408, 1 × reset"


def test_warning_of_a_late_generator() -> None:
    assert doubts([CALM]) == ""
    assert "1 of 2 runs" in doubts([CALM, replace(CALM, lag=0.004)])


def test_bound_on_a_stalled_reader() -> None:
    assert Stalled("x", BOUND - 1, 0).verdict.is_met
    assert not Stalled("x", BOUND, 9 << 20).verdict.is_met


def test_introduction() -> None:
    shown = introduction(PLAN)
    assert "20 slow clients at a byte per 0.1 s, or 50 that flood (head, body, read, mixed, resets" in shown
    assert "over HTTP/1.1" in shown
    assert "over HTTP/2" in introduction(replace(PLAN, is_http2=True))


@pytest.mark.skipif(not cpu_time.is_known_here(), reason="memory is read on Linux only")
def test_memory_of_a_process() -> None:
    assert memory_of(os.getpid()) > 1 << 20


# --- the command


@pytest.mark.second_tier
@pytest.mark.timeout(300)
@pytest.mark.skipif(not cpu_time.is_known_here(), reason="processes are pinned on Linux only")
@pytest.mark.parametrize(
    ("chosen", "options"),
    [((*SLOW_KINDS, "chunks"), ()), (tuple(FLOODS)[:4], ("--http2",))],
    ids=["http1", "http2"],
)
def test_short_session_of_several_kinds(
    chosen: tuple[str, ...], options: tuple[str, ...], tmp_path: Path
) -> None:
    """Normal traffic succeeds beside twenty slow clients of each kind, and beside floods."""
    tiny = ["--clients", "20", "--pace", "100ms", "--rate", "50", "--duration", "400ms", "--rounds", "1"]
    words = ("slow-clients", *tiny, "--kinds", ",".join(chosen), *options)
    printed, found = measured(tmp_path, *words, patience=290)
    assert {run["kind"] for run in found["runs"]} == {QUIET, CONTROL, *chosen}
    assert {(run["fault"], run["ok"], run["requests"]) for run in found["runs"]} == {("", 20, 20)}
    assert all(row["memory"] > 0 for row in found["rows"])
    assert "p99/quiet" in printed
