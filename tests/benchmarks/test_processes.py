"""Two processes against one: ratios, verdicts, and a short session with real processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.processes.measurements import (
    HANDSHAKES,
    LATENCY,
    MEASUREMENTS,
    REQUESTS,
    Measurement,
    ProcessesRun,
    absence,
    offered_rate,
)
from benchmarks.processes.verdicts import ratio_of, verdicts
from experiments.platform.cpu_time import is_known_here
from tests.benchmarks.commands import measured


def runs_of(measurement: Measurement, *blocks: tuple[float, float]) -> list[ProcessesRun]:
    """Judged figures of the first and the last setup in each block."""
    sides = measurement.setups[0], measurement.setups[-1]
    return [
        ProcessesRun(measurement.name, setup.name, number, {measurement.judged: figure})
        for number, figures in enumerate(blocks)
        for setup, figure in zip(sides, figures, strict=True)
    ]


def test_gain_is_the_mean_of_ratios_within_blocks() -> None:
    """A slow block changes both of its runs and not their ratio; a block with one run has none."""
    runs = runs_of(REQUESTS, (100.0, 190.0), (10.0, 17.0), (1.0, 9.0))[:-1]
    gain = ratio_of(runs, REQUESTS, "two processes")
    assert gain is not None
    assert gain.ratio == pytest.approx((1.9 * 1.7) ** 0.5)
    assert ratio_of(runs[:1], REQUESTS, "two processes") is None
    assert [verdict.is_met for verdict in verdicts(runs[:1])] == [None]
    assert verdicts([]) == []


def test_latency_is_compared_with_the_same_load_per_process() -> None:
    half, one, two = LATENCY.setups
    assert offered_rate(half) / half.processes == offered_rate(two) / two.processes
    assert (2 * half.workers, one.workers) == (two.workers, two.workers)


@pytest.mark.parametrize(("gained", "p99", "met"), [(180.0, 105.0, True), (179.0, 106.0, False)])
def test_bounds(gained: float, p99: float, met: bool) -> None:
    """Of two blocks; a single one has no interval and is not judged."""
    for measurement, figure in ((HANDSHAKES, gained), (REQUESTS, gained), (LATENCY, p99)):
        runs = runs_of(measurement, (100.0, figure), (100.0, figure))
        assert [verdict.is_met for verdict in verdicts(runs)] == [met]
        assert [verdict.is_met for verdict in verdicts(runs[:2])] == [None]


def test_invalid_run_misses_the_bound() -> None:
    runs = runs_of(REQUESTS, (100.0, 190.0), (100.0, 190.0))
    (found,) = verdicts([*runs, ProcessesRun("requests", "two processes", 2, fault="3 socket errors")])
    assert (found.is_met, "3 socket errors" in found.found) == (False, True)


@pytest.mark.second_tier
@pytest.mark.skipif(not is_known_here(), reason="reads processor time as Linux accounts for it")
@pytest.mark.timeout(120)
def test_quick_session(tmp_path: Path) -> None:
    """No run fails; the figures of so short a session are not checked."""
    _, found = measured(tmp_path, "processes", "--quick")
    runs = found["runs"]
    assert [run["fault"] for run in runs if run["fault"]] == []
    here = [one for one in MEASUREMENTS.values() if not absence(one)]
    assert {(run["measurement"], run["setup"]) for run in runs} == {
        (one.name, setup.name) for one in here for setup in one.setups
    }
    assert all(set(run["figures"]) == set(MEASUREMENTS[run["measurement"]].figures) for run in runs)
    busiest = {run["setup"]: run["figures"]["busiest"] for run in runs if run["measurement"] == "requests"}
    assert busiest["one process"] == 1.0
    assert 0.4 < busiest["two processes"] < 0.9
