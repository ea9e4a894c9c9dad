"""Seconds in which the machine was busy are excluded from measured and simulated runs alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.fidelity.undisturbed import left_out, quiet_only, quiet_seconds, without_disturbed
from experiments.results.directory import load_results
from experiments.scenario.scenario import Scenario
from experiments.stats.samples import Run, Samples

SECONDS, RATE = 10, 100
LAG_REASON = "generator lag p99 9.00 ms exceeds 1 ms"
MakeResults = Callable[..., Scenario]


@pytest.fixture
def run(tmp_path: Path, make_results: MakeResults) -> Run:
    """Ten seconds at 100 requests per second, all punctual; latency in ms is the number of the second."""
    make_results(tmp_path / "any", blocks=1, requests=60)
    facts = load_results(tmp_path / "any").runs[0].facts
    due, zeros = np.arange(SECONDS * RATE) / RATE, np.zeros(SECONDS * RATE, dtype=np.int64)
    ended = due + np.floor(due) / 1e3
    facts = facts.model_copy(update={"mode": "open", "requests": len(due), "invalid_reasons": ()})
    return Run(facts, Samples(due, due, ended, ended, zeros + 200, zeros, zeros, zeros, zeros, zeros))


def disturbed(run: Run, *seconds: int, late: int = 2, reasons: Sequence[str] = (LAG_REASON,)) -> Run:
    """The run with `late` requests sent 5 ms late in each of these seconds."""
    sent = run.samples.sent_at.copy()
    for second in seconds:
        sent[second * RATE : second * RATE + late] += 0.005
    facts = run.facts.model_copy(update={"invalid_reasons": tuple(reasons)})
    return Run(facts, replace(run.samples, sent_at=sent))


def seconds(run: Run) -> list[int]:
    return sorted({int(due) for due in run.samples.scheduled_at})


def test_disturbed_second_and_the_one_after_it_are_excluded(run: Run) -> None:
    """The rest is valid, and its lag is computed again."""
    left = without_disturbed(disturbed(run, 3, 9))
    assert seconds(left) == [0, 1, 2, 5, 6, 7, 8]
    assert (left.facts.is_valid, left.facts.lag_p99) == (True, 0.0)
    assert len(left.samples) == 7 * RATE


@pytest.mark.parametrize(("late", "is_quiet"), [(0, True), (1, True), (2, False)])
def test_one_late_request_of_a_hundred_is_allowed(run: Run, late: int, is_quiet: bool) -> None:
    """As in a whole run; a request that was never sent does not count as late."""
    found = disturbed(run, 4, late=late)
    found.samples.sent_at[5 * RATE :] = np.nan
    assert quiet_seconds(found.samples).tolist() == [True] * 4 + [is_quiet] * 2 + [True] * 4


def test_run_with_too_little_left_is_unchanged(run: Run) -> None:
    whole = disturbed(run, 1, 3, 5)
    left = without_disturbed(whole)
    assert left is whole
    assert left.facts.invalid_reasons == (LAG_REASON,)


def test_other_reasons_of_invalidity_remain(run: Run) -> None:
    left = without_disturbed(disturbed(run, 3, reasons=(LAG_REASON, "interrupted: 5 of 9")))
    assert left.facts.invalid_reasons == ("interrupted: 5 of 9",)


def test_the_same_seconds_are_excluded_from_simulations(run: Run, tmp_path: Path) -> None:
    """By entry and block; simulated runs without a measured counterpart are unchanged."""
    results = load_results(tmp_path / "any")
    other = Run(run.facts.model_copy(update={"block": 1}), run.samples)
    measured = replace(results, runs=(disturbed(run, 3, 8),))
    simulated = replace(results, runs=(run, other))
    ours, theirs, again = quiet_only(measured, simulated, simulated)
    assert again is not None
    for results in (ours, theirs, again):
        assert seconds(results.runs[0]) == [0, 1, 2, 5, 6, 7]
    assert seconds(theirs.runs[1]) == list(range(SECONDS))
    assert left_out(measured.runs, ours.runs) == pytest.approx(0.4)
