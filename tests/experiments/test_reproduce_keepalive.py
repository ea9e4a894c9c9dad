"""The keep-alive matrix: its arithmetic, what is said of visits, and one short sitting with real processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments.__main__ import cli
from experiments.report.canvas import to_png
from experiments.reproduce.keepalive_figure import matrix_figure
from experiments.reproduce.keepalive_matrix import (
    CELLS,
    UNIT,
    Cell,
    Setup,
    Visit,
    http2_beside_http1,
    lag_of,
    rows_of,
    saved_by,
    travelled,
)
from tests.command_line import run_in_process
from tests.experiments.reproduced import quick_sitting

SETUP = Setup(one_way=0.015, service=0.0)


def visits(factor: float = 1.0, http2: float = 1.0, computed: float = 0.0) -> list[Visit]:
    """What arithmetic says, times a factor, for HTTP/2 another; first calls also compute for so many seconds."""
    found = []
    for block in range(3):
        for cell in (*CELLS, UNIT):
            first, later = travelled(cell, SETUP)
            share = factor * (http2 if cell.http == "2" else 1.0)
            found.append(Visit(cell, block, share * (first + computed), (share * later,) * 2))
            found.append(Visit(cell.twin, block, computed, (0.0, 0.0)))
    return found


@pytest.mark.parametrize(
    ("tls", "keep_alive", "first", "later"),
    [("1.2", True, 120, 30), ("1.2", False, 120, 120), ("1.3", True, 90, 30), ("1.3", False, 90, 90)],
)
def test_round_trips(tls: str, keep_alive: bool, first: float, later: float) -> None:
    found = travelled(Cell("1.1", tls, keep_alive), SETUP)
    assert [1e3 * seconds for seconds in found] == pytest.approx([first, later])


def test_the_matrix_has_eight_cells() -> None:
    assert len({(cell.http, cell.tls, cell.keep_alive) for cell in CELLS}) == len(CELLS) == 8


@pytest.mark.parametrize(("factor", "is_met"), [(1.0, True), (1.049, True), (1.051, False), (0.94, False)])
def test_medians_are_held_to_five_per_cent(factor: float, is_met: bool) -> None:
    rows = rows_of(visits(factor), SETUP)
    assert [row.cell for row in rows] == [*CELLS, UNIT]
    assert {row.is_met for row in rows} == {is_met}


def test_what_both_ends_compute_is_no_trip() -> None:
    """It is seen near, and explains a miss; it does not make it one less."""
    for row in rows_of(visits(computed=0.02), SETUP):
        assert (row.is_met, row.is_explained) == (False, True)
        assert row.first_expected == pytest.approx(row.first_theory + 20)
        assert row.later_expected == pytest.approx(row.later_theory)
    assert not any(row.is_explained for row in rows_of(visits(1.06, computed=0.02), SETUP))


def test_a_cell_without_its_twin_is_no_row() -> None:
    """A sitting that was stopped."""
    assert rows_of([one for one in visits() if not one.cell.is_near], SETUP) == []


def test_http2_is_compared_within_a_block_and_a_version() -> None:
    found = http2_beside_http1(visits(http2=1.09))
    assert found is not None
    assert found[0] == pytest.approx(1.09)
    assert found[1] == pytest.approx((1.09, 1.09))
    assert http2_beside_http1([]) is None


def test_what_keep_alive_saves() -> None:
    rows = rows_of(visits(), SETUP)
    assert saved_by(rows, "1.2") == pytest.approx(90)
    assert saved_by(rows, "1.3") == pytest.approx(60)
    assert saved_by(rows[:1], "1.2") is None


def test_lag_is_that_of_the_ninth_of_ten() -> None:
    one = CELLS[0]
    assert lag_of([Visit(one, n, 1.0, (1.0,), lag=n / 1000) for n in range(11)]) == pytest.approx(0.009)
    assert lag_of([]) == 0.0


def test_the_figure_is_drawn() -> None:
    assert to_png(matrix_figure(rows_of(visits(), SETUP))).startswith(b"\x89PNG")


def test_bad_input_is_one_line_and_exit_2() -> None:
    done = run_in_process(cli, "experiments", "reproduce", "keepalive", "--plots", "/nonexistent")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "--plots: /nonexistent is not a directory" in done.stderr


@pytest.mark.second_tier
@pytest.mark.timeout(180)
def test_a_quick_sitting(tmp_path: Path) -> None:
    """Every cell is visited, none is faster than light, and what is written can be read."""
    found = quick_sitting("keepalive", tmp_path)
    assert [row["name"] for row in found["rows"]] == [cell.name for cell in (*CELLS, UNIT)]
    for row in found["rows"]:
        assert row["first"] >= row["first_theory"]  # a busy machine only ever adds
        assert row["later"] >= row["later_theory"]
    assert (tmp_path / "keepalive.png").read_bytes().startswith(b"\x89PNG")
