"""`reproduce keepalive`: theory, statistics of measurements, and a quick run with processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments.report.canvas import to_png
from experiments.reproduce.keepalive import (
    CASES,
    DIRECT,
    Keepalive,
    KeepaliveCase,
    KeepalivePlan,
    Measurement,
    http2_to_http1,
    network_delay,
    oversleep_of,
    rows_of,
    saved_by_keep_alive,
)
from tests.experiments.reproduced import quick_run

PLAN = KeepalivePlan(one_way=0.015, service=0.0)


def measurements(factor: float = 1.0, http2: float = 1.0, computed: float = 0.0) -> list[Measurement]:
    """Theory times a factor, another one for HTTP/2; first calls also compute for so many seconds."""
    found = []
    for block in range(3):
        for case in CASES:
            first, later = network_delay(case, PLAN)
            share = factor * (http2 if case.http == "2" else 1.0)
            found.append(Measurement(case, block, share * (first + computed), (share * later,) * 2))
            found.append(Measurement(case.near, block, computed, (0.0, 0.0)))
    return found


@pytest.mark.parametrize(
    ("tls", "keep_alive", "first", "later"),
    [("1.2", True, 120, 30), ("1.2", False, 120, 120), ("1.3", True, 90, 30), ("1.3", False, 90, 90)],
)
def test_network_delay(tls: str, keep_alive: bool, first: float, later: float) -> None:
    found = network_delay(KeepaliveCase("1.1", tls, keep_alive), PLAN)
    assert [1e3 * seconds for seconds in found] == pytest.approx([first, later])


def test_eight_direct_cases() -> None:
    assert len({(case.http, case.tls, case.keep_alive) for case in DIRECT}) == len(DIRECT) == 8


@pytest.mark.parametrize(("factor", "is_met"), [(1.0, True), (1.049, True), (1.051, False), (0.94, False)])
def test_medians_must_be_within_five_per_cent(factor: float, is_met: bool) -> None:
    rows = rows_of(measurements(factor), PLAN)
    assert [row.case for row in rows] == list(CASES)
    assert {row.is_met(False) for row in rows} == {is_met}
    assert {row.is_met(True) for row in rows} == {is_met or None}  # a busy machine only adds time


def test_computation_explains_a_miss_and_stays_one() -> None:
    """The counterpart without distance shows it."""
    for row in rows_of(measurements(computed=0.02), PLAN):
        assert (row.is_met(False), row.is_explained) == (False, True)
        assert row.first.expected == pytest.approx(row.first.theory + 20)
        assert row.later.expected == pytest.approx(row.later.theory)
    assert not any(row.is_explained for row in rows_of(measurements(1.06, computed=0.02), PLAN))


def test_no_row_without_the_near_counterpart() -> None:
    """As after an interruption."""
    assert rows_of([one for one in measurements() if not one.case.is_near], PLAN) == []


def test_http2_is_compared_within_a_block_and_a_tls_version() -> None:
    found = http2_to_http1(measurements(http2=1.09))
    assert found is not None
    assert (found.ratio, found.low, found.high) == pytest.approx((1.09, 1.09, 1.09))
    assert http2_to_http1([]) is None


def test_time_saved_by_keep_alive() -> None:
    rows = rows_of(measurements(), PLAN)
    assert saved_by_keep_alive(rows, "1.2") == pytest.approx(90)
    assert saved_by_keep_alive(rows, "1.3") == pytest.approx(60)
    assert saved_by_keep_alive(rows[:1], "1.2") is None


def test_the_source_gives_a_lower_bound_of_a_new_connection() -> None:
    (row, *_) = rows_of(measurements(), PLAN)
    assert (row.first.cells[-1], row.later.cells[-1]) == ("≥ 135", "30")


def test_oversleep_is_the_ninth_decile() -> None:
    found = [Measurement(CASES[0], n, 1.0, (1.0,), oversleep=n / 1000) for n in range(11)]
    assert oversleep_of(found) == pytest.approx(0.009)
    assert oversleep_of([]) == 0.0


def test_the_figure_is_drawn() -> None:
    reproduction = Keepalive(True)
    reproduction._found = measurements()
    assert to_png(reproduction.figure()).startswith(b"\x89PNG")


@pytest.mark.second_tier
@pytest.mark.timeout(180)
def test_quick_run(tmp_path: Path) -> None:
    """Every case is measured and none is faster than theory; a busy machine only adds time."""
    found = quick_run("keepalive", tmp_path)
    assert [row["name"] for row in found["rows"]] == [case.name for case in CASES]
    for row in found["rows"]:
        assert row["first"] >= row["first_theory"]
        assert row["later"] >= row["later_theory"]
