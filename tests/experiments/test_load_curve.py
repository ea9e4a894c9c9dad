"""The load curve: points, knee, report, and bad input."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.calibration.queue import run_queues, scenario_of
from experiments.capacity.curve import Curve, read_curve
from experiments.capacity.curve_page import as_json, headline, write_load_report
from experiments.capacity.offered import at_rate, pooled, rates_in
from experiments.errors import BadInputError
from experiments.stats.comparison import Interval
from tests.support.result_sets import save_set

LOADS = (0.2, 0.5, 0.6, 0.7, 0.9, 1.1)


@pytest.fixture(scope="module")
def curve_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two equal entries at six parts of what six queues can do, three blocks each."""
    directory = tmp_path_factory.mktemp("curve")
    plain = scenario_of(3, 100, 1, has_control=False)
    for number, part in enumerate(LOADS):
        scenario = at_rate(plain, part * pooled(plain), 10.0)
        save_set(directory / f"rate-{number:02d}", scenario, run_queues)
    return directory


@pytest.fixture(scope="module")
def curve(curve_directory: Path) -> Curve:
    return read_curve(curve_directory)


def test_points_ascend_in_rate_and_latency(curve: Curve) -> None:
    """Six rates for each entry; each p99 has an interval around it."""
    points = curve.of("a")
    assert [point.rate for point in points] == pytest.approx([600 * part for part in LOADS])
    assert [point.p99.ratio for point in points] == sorted(point.p99.ratio for point in points)
    assert all(point.p99.low < point.p99.ratio < point.p99.high for point in points)
    assert {point.p99.blocks for point in points} == {3}


def test_overloaded_rates_are_marked(curve: Curve) -> None:
    """At 110 % queues grow and fewer requests are answered than offered."""
    assert [point.keeps_up for point in curve.of("a")] == [True] * 5 + [False]
    over = curve.of("a")[-1]
    assert over.answered < 0.97 * over.rate
    assert curve.of("a")[1].answered == pytest.approx(curve.of("a")[1].rate, rel=0.05)


def test_the_knee_of_simple_queues_is_in_the_middle(curve: Curve) -> None:
    """The power of M/M/1 is greatest at half of its capacity: rate × (1 − load)."""
    knee = curve.knee("a")
    assert knee is not None
    assert knee.rate / 600 in (pytest.approx(0.5), pytest.approx(0.6))


def test_a_curve_without_a_bend_has_no_knee(curve: Curve) -> None:
    """A maximum at either end is only the best of what was measured."""
    rising = Curve(curve.results, tuple(point for point in curve.points if point.rate < 250))
    assert rising.knee("a") is None


@pytest.mark.parametrize(
    ("lowest", "said"),
    [
        ({"keeps_up": False}, "a at no rate from the lowest on (does not keep up)"),
        ({"valid": False}, "a at no rate from the lowest on (INVALID)"),
        ({"p99": Interval(9.0, 8.0, 10.0, 3)}, "a at no rate from the lowest on (p99 9000 ms)"),
    ],
)
def test_headline_says_why_no_rate_counts(curve: Curve, lowest: dict[str, Any], said: str) -> None:
    """Where the p99 is within the limit at some rate."""
    first, *others = curve.points
    assert headline(replace(curve, points=(replace(first, **lowest), *others))).endswith(said)


def test_a_curve_that_was_stopped_says_so(tmp_path: Path) -> None:
    """In the second of three rates."""
    plain = scenario_of(3, 100, 1, has_control=False)
    for number, runs in enumerate((None, 2, 0)):
        scenario = at_rate(plain, 100 + number, 10.0)
        save_set(tmp_path / f"rate-{number:02d}", scenario, run_queues, stop_after=runs)
    curve = read_curve(tmp_path)
    assert headline(curve).endswith(", the highest measured. Stopped: 10 planned runs are missing")
    assert as_json(curve)["missing_runs"] == 10
    assert headline(replace(curve, missing=0)).endswith(", the highest offered")


def test_the_objective_is_in_measured_time(curve: Curve) -> None:
    scenario = curve.results[0].scenario.model_copy(update={"slo": 0.5, "time_scale": 0.1})
    campaign = curve.results[0].campaign.model_copy(update={"scenario": scenario})
    fast = replace(curve, results=tuple(replace(one, campaign=campaign) for one in curve.results))
    assert headline(fast).startswith("The p99 stays within 50 ms: ")
    assert as_json(fast)["slo"] == 0.05


def test_the_report_is_reproducible(curve_directory: Path) -> None:
    """Page, numbers and figure have the same bytes when drawn a second time."""
    write_load_report(curve_directory)
    names = ("load.json", "load.csv", "load.html", "figures/latency-against-load.svg")
    before = {name: (curve_directory / name).read_bytes() for name in names}
    found = json.loads(before["load.json"])
    assert set(found["knees"]) == {"a", "b"}
    assert len(found["points"]) == 12
    assert before["load.csv"].count(b"\n") == 13
    page = before["load.html"].decode()
    assert "does not keep up" in page
    assert not re.findall(r'(?:src|href)="(?!data:)', page)
    write_load_report(curve_directory)
    assert {name: (curve_directory / name).read_bytes() for name in names} == before


def test_rates_are_numbers_or_percentages() -> None:
    assert rates_in("120, 50%,90", 200.0) == [90.0, 100.0, 120.0]


@pytest.mark.parametrize("text", ["", "fast", "0", "-3", "50%,100", "nan,"])
def test_invalid_rates_are_rejected(text: str) -> None:
    with pytest.raises(BadInputError, match="positive rates like 60,120 or 50%"):
        rates_in(text, 200.0)


def test_a_directory_without_rates_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="no rate has been measured yet"):
        read_curve(tmp_path)
