"""Tables of the cost benchmark: rows, invalid rows, widths, and the warning of a busy machine."""

from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console

from benchmarks.cost.plan import CostRun
from benchmarks.cost.table import cells, columns, cost_row, doubts, rows_of, table_of
from benchmarks.harness.cases import Kind
from experiments.platform.terminal import FULL_WIDTH
from experiments.stats.comparison import typical

OURS, NGINX, SESSION = "steelyard random", "nginx", "aiohttp session"


def run(peer: str, block: int, cost: float, fault: str = "", taken: float = 0.0) -> CostRun:
    """A run of a thousand requests that cost `cost` µs each, three quarters of it in user mode."""
    return CostRun("get", peer, block, 0, cost, 1000, 500.0, 0.75, taken, fault=fault)


def runs(ours: list[float], nginx: list[float], session: list[float]) -> list[CostRun]:
    columns = {OURS: ours, NGINX: nginx, SESSION: session}
    return [run(peer, block, cost) for peer, costs in columns.items() for block, cost in enumerate(costs)]


def test_a_row_has_the_median_its_range_and_a_ratio_with_its_interval() -> None:
    """A block in which the machine is twice as slow changes the range and not the ratio."""
    row = cost_row(runs([15, 30, 15], [10, 20, 10], [100, 200, 100]), OURS)
    assert (row.figure, row.lowest, row.highest) == pytest.approx((15, 15, 30))
    assert row.to_nginx == typical([1.5, 1.5, 1.5])
    assert cells(row, Kind.COST)[2] == "1.50 [1.50–1.50]"
    assert (row.user, row.system) == pytest.approx((11.25, 3.75))


def test_rows_are_sorted_by_cost_with_invalid_ones_last() -> None:
    made = [*runs([15], [10], []), run("haproxy", 0, 1, "3 non-2xx, 0 socket errors")]
    assert [row.peer for row in rows_of(made)] == [NGINX, OURS, "haproxy"]


def test_one_invalid_run_makes_the_row_invalid() -> None:
    """The row has a reason and no figures, and nothing is compared with it."""
    made = [*runs([15, 15], [10], [100, 100]), run(NGINX, 1, 10, "3 non-2xx, 0 socket errors")]
    row = cost_row(made, NGINX)
    assert row.figure is None
    assert "block 2" in row.fault
    assert cost_row(made, OURS).to_nginx is None


def test_void_run_is_left_out() -> None:
    """A row of void runs only is invalid."""
    void = CostRun("half", OURS, 1, 0, 99.0, void="late")
    row = cost_row([CostRun("half", OURS, 0, 0, 1.5), void], OURS)
    assert (row.figure, row.highest, row.runs) == (1.5, 1.5, 1)
    assert cost_row([void], OURS).fault.endswith("late")


def test_warning_of_a_busy_machine() -> None:
    quiet = runs([15], [10], [100])
    assert doubts(quiet) == ""
    assert "took 10% of the cores" in doubts([run(OURS, 0, 15, taken=0.1)])


@pytest.mark.parametrize("width", [80, FULL_WIDTH])
def test_table_fits_the_terminal(width: int) -> None:
    """No cell is cut off; a narrow terminal has the essential columns."""
    made = [
        *runs([35.1] * 2, [17.8] * 2, [213.05] * 2),
        run("steelyard region-round-robin", 0, 1, "no request was answered"),
    ]
    output = StringIO()
    console = Console(width=width, file=output)
    console.print(table_of(rows_of(made), Kind.COST, width))
    text = output.getvalue()
    assert "…" not in text
    assert "11.97 [11.97–11.97]" in text
    assert ("requests/s" in text) is (width == FULL_WIDTH)
    assert "INVALID" in text


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (Kind.COST, ["nginx", "10.0", "1.00", "0", "10.0–10.0", "500", "7.5 + 2.5"]),
        (Kind.TAIL, ["nginx", "10.00", "1.00", "0", "10.00–10.00", "500", "0.00", "0%"]),
        (Kind.MEMORY, ["nginx", "10", "1.00", "0", "10–10"]),
    ],
)
def test_columns_of_each_kind_of_figure(kind: Kind, expected: list[str]) -> None:
    found = cells(cost_row([run(NGINX, 0, 10)], NGINX), kind)
    assert found == expected
    assert len(columns(kind)) == len(expected)
