"""Shares: how they are counted, and one course through everything."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from experiments.load.samples import Kind, Samples
from experiments.report.canvas import to_png
from experiments.shares.figure import shares_figure
from experiments.shares.runs import PLACES, TROUBLES, Course, Tempo, options_of, policies_known
from experiments.shares.table import Shares, cell, draws_no_traffic, share_of, shares_of

TEMPO = Tempo(rate=100.0, begins=8.0, ends=20.0, over=32.0)
FAILING = next(trouble for trouble in TROUBLES if trouble.name == "failing")


def course(leaves_it_alone: bool = True) -> Course:
    """Workers in turn; while it fails, the struck one gets nothing, or everything."""
    count = 3200
    due = np.arange(count) / 100
    struck = (due >= 8) & (due < 20)
    worker = np.arange(count) % len(PLACES)
    worker = np.where(struck & (worker == 0), 1, worker) if leaves_it_alone else np.where(struck, 0, worker)
    whole = np.zeros(count, dtype=np.int64)
    samples = Samples(
        scheduled_at=due,
        sent_at=due,
        first_byte_at=due + 0.01,
        ended_at=due + 0.01,
        status=whole + 200,
        kind=np.where(struck & (worker == 0), Kind.ERROR_STATUS, Kind.OK),
        worker=worker,
        region=worker // 2,
        sequence=np.arange(count),
        attempts=whole,
    )
    return Course("random", FAILING, samples)


def test_shares_before_meanwhile_and_after() -> None:
    found = shares_of(course(), TEMPO)
    assert found.before == pytest.approx(1 / 6, abs=0.01)
    assert (found.meanwhile, found.failed, found.requests) == (0.0, 0, 3200)
    assert found.after == pytest.approx(1 / 6, abs=0.01)
    assert cell(found) == "17% → 0% → 17% (0)"
    assert share_of(course(), 8.0, 20.0) == 0.0


def test_who_draws_traffic_by_failing_fast_misses_the_bound() -> None:
    assert [is_met for is_met, _ in draws_no_traffic([shares_of(course(), TEMPO)])] == [True]
    sinkhole = shares_of(course(leaves_it_alone=False), TEMPO)
    assert sinkhole.meanwhile == 1.0
    assert [is_met for is_met, _ in draws_no_traffic([sinkhole])] == [False]


def test_what_was_not_measured_is_not_judged() -> None:
    failed = shares_of(Course("random", FAILING, fault="died"), TEMPO)
    assert [is_met for is_met, _ in draws_no_traffic([failed])] == [None]
    assert cell(failed) == "INVALID"
    assert cell(None) == "–"
    assert not draws_no_traffic([Shares("random", "slow", before=0.1, meanwhile=0.9)])


def test_the_figure_has_a_panel_for_each_course() -> None:
    """Also where nothing could be measured."""
    courses = [course(), Course("round-robin", FAILING, fault="died")]
    figure = shares_figure(courses, TEMPO)
    assert len(figure.axes) == 2
    assert "died" in figure.axes[1].texts[0].get_text()
    assert to_png(figure).startswith(b"\x89PNG")


def test_every_policy_can_be_asked_for() -> None:
    assert options_of("single-region") == {"name": "single-region", "region": "home"}
    assert {options_of(policy)["name"] for policy in policies_known()} == set(policies_known())


def shares(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command and wait for its end."""
    command = [sys.executable, "-m", "experiments", "shares", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--troubles", "rain"), "--troubles: unknown 'rain'; known: cold, failing, slow, lost"),
        (("--policies", "p2x"), "unknown policy 'p2x'"),
        (("--plot", "/nonexistent/x.png"), "--plot: /nonexistent is not a directory"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(arguments: tuple[str, ...], message: str) -> None:
    done = shares(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.timeout(120)
def test_every_trouble_once(tmp_path: Path) -> None:
    """Through real processes: each is measured, and an endpoint that is added gets its share."""
    plot, file = tmp_path / "shares.png", tmp_path / "shares.json"
    done = shares(
        "--quick", "--at-once", "4", "--policies", "round-robin", "--plot", str(plot), "--json", str(file)
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = {one["trouble"]: one for one in json.loads(file.read_text(encoding="utf-8"))["shares"]}
    assert set(found) == {"cold", "failing", "slow", "lost"}
    assert {one["fault"] for one in found.values()} == {""}
    assert found["cold"]["before"] == 0
    assert (
        found["cold"]["after"] > 0 or not found["cold"]["was_added"]
    )  # else it returns when it is looked at
    assert found["lost"]["meanwhile"] < found["lost"]["before"]
    assert plot.read_bytes().startswith(b"\x89PNG")
