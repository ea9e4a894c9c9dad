"""Ratios within blocks, rows that are invalid, bounds that are met, missed or not judged."""

from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console

from experiments.bench_runs import Run
from experiments.bench_table import FULL_WIDTH, doubts, ratios, row_of, rows_of, table_of, verdicts

OURS, NGINX, SESSION = "steelyard random", "nginx", "aiohttp session"


def run(peer: str, block: int, cost: float, fault: str = "", taken: float = 0.0) -> Run:
    """A run of a thousand requests that cost `cost` µs each, three quarters of it in user mode."""
    return Run(peer, block, 0, 1000, 500.0, cost / 1e3, 0.75, taken, fault)


def runs(ours: list[float], nginx: list[float], session: list[float]) -> list[Run]:
    """Costs per block."""
    columns = {OURS: ours, NGINX: nginx, SESSION: session}
    return [run(peer, block, cost) for peer, costs in columns.items() for block, cost in enumerate(costs)]


def test_ratios_are_made_within_a_block() -> None:
    """The machine was twice as slow in the second block, and no ratio shows it."""
    made = runs([15, 30, 15], [10, 20, 10], [100, 200, 100])
    assert ratios(made, OURS, NGINX) == pytest.approx([1.5, 1.5, 1.5])
    row = row_of(made, OURS)
    assert (row.cost, row.lowest, row.highest) == pytest.approx((15, 15, 30))
    assert row.to_nginx == pytest.approx((1.5, 1.5, 1.5))
    assert (row.user, row.system) == pytest.approx((11.25, 3.75))


def test_a_block_that_lacks_a_side_gives_no_ratio() -> None:
    """After Ctrl-C the last block is incomplete."""
    assert ratios(runs([15, 30], [10], []), OURS, NGINX) == pytest.approx([1.5])


def test_rows_come_cheapest_first_and_invalid_last() -> None:
    made = [*runs([15], [10], []), run("haproxy", 0, 1, "3 non-2xx, 0 socket errors")]
    assert [row.peer for row in rows_of(made)] == [NGINX, OURS, "haproxy"]


def test_one_bad_run_makes_the_row_invalid() -> None:
    """It has no figures, its reason is shown, and nothing is compared with it."""
    made = [*runs([15, 15], [10], [100, 100]), run(NGINX, 1, 10, "3 non-2xx, 0 socket errors")]
    row = row_of(made, NGINX)
    assert row.cost is None
    assert row.fault == "block 2: 3 non-2xx, 0 socket errors"
    assert ratios(made, OURS, NGINX) == []
    assert row_of(made, OURS).to_nginx is None


@pytest.mark.parametrize(
    ("nginx", "session", "expected"),
    [([10], [75], [True, True]), ([9], [74], [False, False]), ([], [80], [None, True])],
)
def test_bounds(nginx: list[float], session: list[float], expected: list[bool | None]) -> None:
    """1.6 times nginx at most, 5 times cheaper than the session; an absent side leaves nothing to judge."""
    assert [verdict.met for verdict in verdicts(runs([15], nginx, session))] == expected


def test_an_invalid_side_misses_the_bound() -> None:
    """A unit that answers with errors must not pass for lack of figures."""
    made = [run(OURS, 0, 15, "no request was answered"), run(NGINX, 0, 10)]
    first, second = verdicts(made)
    assert first.met is False
    assert "steelyard random is invalid" in str(first)
    assert second.met is False


def test_a_busy_machine_is_told_of() -> None:
    """Others that take part of the core raise costs; a quiet machine is not mentioned."""
    quiet = runs([15], [10], [100])
    assert doubts(quiet) == ""
    assert "others took 10% of the proxy's core" in doubts([run(OURS, 0, 15, taken=0.1)])


@pytest.mark.parametrize("width", [80, FULL_WIDTH])
def test_the_table_fits(width: int) -> None:
    """Nothing is cut off, the essential columns are always there."""
    made = [
        *runs([35.1], [17.8], [213.05]),
        run("steelyard region-round-robin", 0, 1, "no request was answered"),
    ]
    output = StringIO()
    console = Console(width=width, file=output)
    console.print(table_of(rows_of(made), width))
    text = output.getvalue()
    assert "…" not in text
    assert "11.97 (11.97–11.97)" in text
    assert ("requests/s" in text) is (width == FULL_WIDTH)
    assert "INVALID" in text
