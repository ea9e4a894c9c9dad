"""Progress of a campaign: estimated time, and figures of the last second."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from experiments.generator.ledger import Ledger
from experiments.platform.terminal import clock, rate_digits
from experiments.results.directory import Campaign, load_results
from experiments.run_data import Kind, Place
from experiments.running.progress import CampaignProgress, expected_seconds, remaining
from tests.support.result_sets import write_results
from tests.support.runs import hand_made

PLACES = (Place(worker="emea-0", region="emea"),)


@pytest.fixture
def campaign(tmp_path: Path) -> Campaign:
    """Nine planned runs."""
    write_results(tmp_path / "r", blocks=1, requests=50, stop_after=1)
    return load_results(tmp_path / "r").campaign


def test_the_estimate_follows_the_durations_of_runs(campaign: Campaign) -> None:
    """When the first run took twice as long as expected, so will the others."""
    first = campaign.plan[0]
    expected = [expected_seconds(campaign.scenario, planned) for planned in campaign.plan]
    assert remaining(campaign, {}, 0.0) == pytest.approx(sum(expected))
    assert remaining(campaign, {first: 2 * expected[0]}, 0.0) == pytest.approx(2 * sum(expected[1:]))
    assert remaining(campaign, {}, 1e6) == 0.0


def test_a_small_batch_is_expected_to_take_longer(campaign: Campaign) -> None:
    """Ten in flight need ten times as many round trips as a hundred."""
    planned = {run.label: run for run in campaign.plan}
    narrow, wide = (expected_seconds(campaign.scenario, planned[x]) for x in ("random (batch 10)", "random"))
    assert narrow > wide


@pytest.mark.parametrize(("seconds", "text"), [(5, "0:05"), (65, "1:05"), (3723, "1:02:03")])
def test_time_is_shown_as_a_clock(seconds: float, text: str) -> None:
    assert clock(seconds) == text


@pytest.mark.parametrize(("rate", "text"), [(0.0, "0.0"), (0.0621, "0.062"), (5.0, "5.0"), (312.44, "312.4")])
def test_a_rate_below_one_is_not_zero(rate: float, text: str) -> None:
    assert rate_digits(rate) == text


def test_without_a_terminal_a_run_is_one_line(campaign: Campaign) -> None:
    """An invalid run is marked."""
    output = io.StringIO()
    progress = CampaignProgress(campaign, Console(file=output, width=200))
    with progress:
        progress.run_started(campaign.plan[0])
        run = hand_made([0.1, 0.2], kind=[Kind.OK, Kind.RESET], invalid_reasons=("a worker died",))
        progress.run_ended(campaign.plan[0], run)
    assert output.getvalue().startswith("[1/10] random: ")
    assert "1 failed  INVALID: a worker died" in output.getvalue()


def test_the_panel_shows_the_phase_of_the_run(campaign: Campaign) -> None:
    """None yet, waiting for a quiet machine, starting the fleet, failures; empty after the end."""
    planned = campaign.plan[0]
    progress = CampaignProgress(campaign, Console(file=io.StringIO(), width=100))

    def seen() -> str:
        output = io.StringIO()
        Console(file=output, width=100).print(progress.panel())
        return output.getvalue()

    assert "run 1 of 10" in seen()
    progress.machine_busy(planned, 0.2)
    assert "random, block 1" in seen()
    assert "waiting" in seen()
    progress.run_started(planned)
    assert "starting and warming the fleet" in seen()
    assert "waiting" not in seen()
    ledger = Ledger(PLACES, 0.0)
    progress.load_started(ledger)
    assert "in flight" in seen()
    ledger.ended(ledger.due(0.0), 0.1, Kind.TIMEOUT)
    assert "timeout 1" in seen()
    progress.run_ended(planned, hand_made([0.1]))
    assert "run 2 of 10" in seen()
    assert "entry" not in seen()


def test_recent_figures_are_of_the_last_second() -> None:
    ledger = Ledger(PLACES, 0.0)
    for ended_at in (0.5, 1.4, 1.9):
        ledger.ended(ledger.due(ended_at - 0.2), ended_at, Kind.OK)
    rate, p50, p95 = ledger.recent(2.0)
    assert (rate, p50, p95) == pytest.approx((2.0, 0.2, 0.2))
    assert ledger.in_flight == 0
