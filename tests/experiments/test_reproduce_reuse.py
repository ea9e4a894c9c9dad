"""The nine calls of a service to a third party: the mix, what is said of runs, and one short sitting with processes."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from experiments.report.canvas import to_png
from experiments.reproduce.api_calls import EACH, MIX, Made, trickling
from experiments.reproduce.client import service_in
from experiments.reproduce.quantities import quantities_of
from experiments.reproduce.reuse import AFTER, BEFORE, SOURCE, row_of, verdicts
from experiments.reproduce.reuse_figure import reuse_figure
from experiments.reproduce.reuse_runs import BASELINE, OURS, QUICK, WAYS, Run, Setup, file_of
from tests.experiments.reproduced import quick_sitting

NOTHING = {"opened": 1, "reused": 1, "lost_idle": 0, "died": 0, "repeated": 0}


def run_of(took: float, span: float, status: int = 200, few: int = 200) -> Run:
    """Two hundred calls that took so long, the last one with another status."""
    made = [Made("list records", 0.0, took, 200)] * 199 + [Made("create zone", 0.0, took, status)]
    return Run(OURS, made, span, NOTHING, [Made("create zone", 0.0, took, few)], NOTHING)


def test_the_mix_is_that_of_the_source() -> None:
    """500 users make its 19 000 requests, nine kinds, in its numbers."""
    numbers = [500 * call.times for call in MIX]
    assert numbers == [500, 5000, 1500, 500, 5000, 500, 500, 5000, 500]
    assert Setup().calls == 500 * EACH == 19_000


def test_strangers_make_calls_of_the_mix_at_ascending_instants() -> None:
    found = list(trickling(4000, 0.5, Random(1)))
    instants = [at for _, at in found]
    assert instants == sorted(instants)
    assert instants[-1] == pytest.approx(2000, rel=0.1)
    counts = Counter(call.name for call, _ in found)
    assert counts["create DNS records"] / 4000 == pytest.approx(10 / EACH, rel=0.2)


def test_quantities_in_the_time_of_the_source() -> None:
    """With a second compressed to a tenth, what took 10 ms would have taken 100, and a tenth as many come by."""
    row = quantities_of([0.010] * 99 + [0.050], 2.0).scaled(0.1)
    assert (row.rate, row.least, row.p99, row.most) == pytest.approx((5.0, 100, 100, 500))
    assert row.mean == pytest.approx(104)


@pytest.mark.parametrize(
    ("took", "span", "status", "few", "met"),
    [
        (0.05, 1.0, 200, 200, [True] * 6),
        (0.05, 1.4, 200, 200, [False, True, True, True, True, True]),
        (0.06, 1.0, 503, 200, [True, False, True, True, False, True]),
        (0.11, 1.0, 200, 0, [True, False, False, False, True, False]),
    ],
)
def test_each_bound_can_be_missed(took: float, span: float, status: int, few: int, met: list[bool]) -> None:
    old, new = replace(run_of(0.1, 2.0), way=BASELINE), run_of(took, span, status, few)
    runs = {run.way.name: run for run in (old, new)}
    rows = {name: row_of(run, replace(Setup(), time_scale=1.0)) for name, run in runs.items()}
    assert [verdict.is_met for verdict in verdicts(rows, runs)] == met
    assert verdicts({}, {}) == []


def test_the_source_gained_what_is_asked_for() -> None:
    assert AFTER.rate / BEFORE.rate == pytest.approx(1.54, abs=0.005)
    assert AFTER.p50 < BEFORE.p50 / 2
    assert AFTER.most > BEFORE.most


def test_ways_differ_by_transport_and_keep_alive_alone() -> None:
    texts = [file_of(way, 5, [("127.0.0.1", 1)]).text.splitlines() for way in WAYS]
    for text in texts[1:]:
        differing = list(set(text) ^ set(texts[0]))
        assert all(line.startswith(("transport =", "keep_alive =")) for line in differing)


def test_the_time_of_service_is_read_from_an_answer() -> None:
    assert service_in(b"HTTP/1.1 200 OK\r\nX-Worker-Service-Time: 0.0215\r\nA: b\r\n") == 0.0215
    assert service_in(b"HTTP/1.1 200 OK\r\n") == 0.0


def test_the_figure_is_drawn() -> None:
    taken = {way.name: [0.1, 0.2, 0.3] for way in WAYS}
    rows = {name: quantities_of(seconds, 1.0) for name, seconds in taken.items()}
    assert to_png(reuse_figure(taken, rows, SOURCE)).startswith(b"\x89PNG")


@pytest.mark.second_tier
@pytest.mark.timeout(180)
def test_a_quick_sitting(tmp_path: Path) -> None:
    """Every way that is here makes all calls of the mix, and ours fails none while the server ends connections."""
    found = quick_sitting("reuse", tmp_path)
    here = [way.name for way in WAYS if not way.absence]
    assert [run["way"] for run in found["runs"]] == here
    for run in found["runs"]:
        assert run["calls"] == {call.name: QUICK.users * call.times for call in MIX}
        assert run["few"]["requests"] == QUICK.little.calls
    runs = {run["way"]: run for run in found["runs"]}
    # libcurl now and then sends a POST on a connection that is being closed
    assert runs[BASELINE.name]["failed"] == runs[OURS.name]["failed"] == 0
    assert runs[BASELINE.name]["connections"]["opened"] == QUICK.calls
    assert runs[OURS.name]["connections"]["reused"] > QUICK.calls / 2
    assert len(found["verdicts"]) == 6
    assert (tmp_path / "reuse.png").read_bytes().startswith(b"\x89PNG")
