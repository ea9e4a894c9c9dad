"""Two processes against one: ratios, verdicts, and a short session with real processes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks.__main__ import cli
from benchmarks.processes.throughput import (
    HALF,
    HANDSHAKES,
    ONE,
    PARTS,
    REQUESTS,
    TWO,
    LatencyRun,
    ThroughputRun,
    absence,
)
from benchmarks.processes.verdicts import gain_of, loss_of, verdicts
from experiments.platform.cpu_time import is_known_here

ALONE = ThroughputRun(
    REQUESTS, 1, 0, rate=100.0, ceiling=100.0, busiest=1.0, balancer_cores=1.0, client_cores=0.5
)
PAIR = ThroughputRun(
    REQUESTS, 2, 0, rate=140.0, ceiling=190.0, busiest=0.5, balancer_cores=1.3, client_cores=0.7
)


def stretch(setup: str, p99: float, block: int = 0) -> LatencyRun:
    return LatencyRun(setup, block, 100, p99 / 4, p99)


def test_gain_is_the_mean_of_ratios_within_blocks() -> None:
    """A slow block changes both of its runs and not their ratio."""
    slow = [replace(ALONE, block=1, ceiling=10.0), replace(PAIR, block=1, ceiling=17.0)]
    gain = gain_of([ALONE, PAIR, *slow], REQUESTS)
    assert gain is not None
    assert gain.ratio == pytest.approx((1.9 * 1.7) ** 0.5)
    assert gain_of([ALONE, replace(PAIR, block=3)], REQUESTS) is None


def test_latency_is_compared_with_the_same_load_per_process() -> None:
    runs = [stretch(HALF.name, 100.0), stretch(ONE.name, 90.0), stretch(TWO.name, 104.0)]
    loss = loss_of(runs, TWO.name)
    assert loss is not None
    assert loss.ratio == pytest.approx(1.04)
    assert HALF.rate / HALF.processes == TWO.rate / TWO.processes
    assert HALF.rate / HALF.workers == TWO.rate / TWO.workers == ONE.rate / ONE.workers


@pytest.mark.parametrize(("ceiling", "p99", "met"), [(180.0, 105.0, [True] * 3), (179.0, 106.0, [False] * 3)])
def test_bounds(ceiling: float, p99: float, met: list[bool]) -> None:
    """Of two blocks; a single one has no interval and is not judged."""
    bursts = [
        replace(run, block=block) for run in (ALONE, replace(PAIR, ceiling=ceiling)) for block in (0, 1)
    ]
    hands = [replace(run, part=HANDSHAKES, rate=run.ceiling, ceiling=0.0) for run in bursts]
    stretches = [
        stretch(name, took, block) for name, took in ((HALF.name, 100.0), (TWO.name, p99)) for block in (0, 1)
    ]
    assert [verdict.is_met for verdict in verdicts([*bursts, *hands], stretches)] == met
    assert [verdict.is_met for verdict in verdicts(bursts[::2], stretches[::2])] == [None, None]


def test_invalid_run_misses_the_bound() -> None:
    found = verdicts(
        [ALONE, PAIR, ThroughputRun(REQUESTS, 2, 1, fault="3 socket errors")],
        [stretch(HALF.name, 100.0), replace(stretch(TWO.name, 90.0), fault="1 of 100 requests failed")],
    )
    assert [verdict.is_met for verdict in found] == [False, False]
    assert "3 socket errors" in found[0].found


def test_without_pairs_nothing_is_judged() -> None:
    assert verdicts([ALONE], [stretch(TWO.name, 1.0)])[0].is_met is None
    assert verdicts([], []) == []


@pytest.mark.second_tier
@pytest.mark.skipif(not is_known_here(), reason="reads processor time as Linux accounts for it")
@pytest.mark.timeout(120)
def test_quick_session(tmp_path: Path) -> None:
    """No run fails; the figures of so short a session are not checked."""
    file = tmp_path / "processes.json"
    done = CliRunner().invoke(cli, ["processes", "--quick", "--json", str(file)], standalone_mode=False)
    assert done.return_value == 0, done.output
    found = json.loads(file.read_text(encoding="utf-8"))
    bursts = found["bursts"]
    assert [run["fault"] for run in bursts + found["stretches"] if run["fault"]] == []
    assert {run["part"] for run in bursts} == {part for part in PARTS if not absence(part)}
    busiest = {run["processes"]: run["busiest"] for run in bursts if run["part"] == REQUESTS}
    assert busiest[1] == 1.0
    assert 0.4 < busiest[2] < 0.9
    assert {run["setup"]: run["requests"] for run in found["stretches"]} == {
        setup.name: round(setup.rate) for setup in (HALF, ONE, TWO)
    }
