"""Bounds and tables of the cost benchmark: ratios within blocks, flatness, verdicts, rows and widths."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console

from benchmarks.cost.bounds import figure_in_words, flatness, ratios, verdicts
from benchmarks.cost.plan import CostRun
from benchmarks.cost.table import cells, columns, cost_row, doubts, rows_of, table_of
from benchmarks.harness.cases import Kind
from experiments.platform.terminal import FULL_WIDTH
from experiments.stats.comparison import average, typical

OURS, NGINX, HAPROXY, SESSION = "steelyard random", "nginx", "haproxy", "aiohttp session"


def runs(case: str = "get", **figures: list[float]) -> list[CostRun]:
    """Figures per block, by the first word of a peer's name."""
    names = {"ours": OURS, "nginx": NGINX, "haproxy": HAPROXY, "session": SESSION}
    return [
        CostRun(case, names[peer], block, 0, figure, 1000, 500.0, 0.75)
        for peer, column in figures.items()
        for block, figure in enumerate(column)
    ]


def test_ratios_are_computed_within_a_block() -> None:
    """A block in which the machine is twice as slow does not change the ratios."""
    made = runs(ours=[15, 30, 15], nginx=[10, 20, 10])
    assert ratios(made, OURS, [NGINX]) == pytest.approx([1.5, 1.5, 1.5])


def test_the_cheaper_peer_is_determined_in_each_block() -> None:
    made = runs(ours=[12, 12], nginx=[10, 12], haproxy=[12, 6])
    assert ratios(made, OURS, [NGINX, HAPROXY]) == pytest.approx([1.2, 2.0])


def test_incomplete_block_gives_no_ratio() -> None:
    """After Ctrl-C the last block is incomplete."""
    assert ratios(runs(ours=[15, 30], nginx=[10]), OURS, [NGINX]) == pytest.approx([1.5])


def test_figures_not_above_zero_give_no_ratio() -> None:
    """Memory may not grow: such a block has no ratio, and the bound in bytes is judged."""
    made = runs("idle", ours=[100, -1, 300], nginx=[50, 10, 0])
    assert ratios(made, OURS, [NGINX]) == pytest.approx([2.0])
    assert [verdict.is_met for verdict in verdicts(made)] == [True]


def test_void_run_excludes_its_block_only() -> None:
    """A late generator is no fault of the peer."""
    void = CostRun("half", NGINX, 1, 0, 99.0, 1000, void="the generator was 1.00 ms late itself")
    made = [
        *runs("half", ours=[1.1, 50, 1.1], nginx=[1.0]),
        void,
        replace(void, block=2, void="", figure=1.0),
    ]
    assert ratios(made, OURS, [NGINX]) == pytest.approx([1.1, 1.1])
    (verdict,) = verdicts(made)
    assert verdict.is_met is True
    assert "over 2 blocks" in verdict.found


@pytest.mark.parametrize(
    ("ours", "met"),
    [
        ([10.0, 10.1, 10.0, 9.9] * 5, True),
        ([10.4, 10.5, 10.4, 10.3] * 5, False),
        ([9.0, 11.5, 10.3] * 5, None),
    ],
)
def test_other_build_is_compared_by_the_interval_of_the_ratio(ours: list[float], met: bool | None) -> None:
    """Met or missed when the whole interval is on one side of 1.02; otherwise not judged."""
    made = [
        *runs(ours=ours),
        *(replace(run, peer=f"{OURS} (other build)") for run in runs(ours=[10.0] * len(ours))),
    ]
    first = verdicts(made)[0]
    assert "the other build" in first.bound
    assert first.is_met is met
    assert not [verdict for verdict in verdicts(made)[1:] if "other build" in verdict.bound]


@pytest.mark.parametrize(("cost", "met"), [(10.05, True), (10.2, False)])
def test_tracing_is_compared_with_its_absence(cost: float, met: bool) -> None:
    """At most 1 % dearer, in the case that measures both."""
    made = runs("traced", ours=[10.0] * 20)
    made = [*made, *(replace(run, peer=f"{run.peer}, traced", figure=cost) for run in made)]
    [verdict] = verdicts(made)
    assert (verdict.is_met, verdict.bound.endswith("traced at most 1.01 × without")) == (met, True)


@pytest.mark.parametrize(
    ("case", "ours", "others", "expected"),
    [
        ("get", 13.0, {"nginx": [10], "haproxy": [11]}, [True, None]),
        ("get", 13.1, {"nginx": [11], "haproxy": [10]}, [False, None]),
        ("get", 13.0, {"session": [65.1]}, [None, True]),
        ("get", 13.0, {"session": [64]}, [None, False]),
        ("tls", 13.0, {"haproxy": [10]}, [True]),
        ("http2", 13.0, {"nginx": [10], "haproxy": [11]}, [True]),
        ("http2x10", 14.1, {"nginx": [20], "haproxy": [10]}, [False]),
        ("get1m", 15.0, {"nginx": [10], "haproxy": [1]}, [True]),
        ("post16k", 15.1, {"nginx": [10]}, [False]),
        ("half", 1.2, {"nginx": [1]}, [True]),
        ("half", 1.21, {"nginx": [1]}, [False]),
        ("idle", 6144.0, {}, [True]),
        ("idle", 6145.0, {"nginx": [9000]}, [False]),
    ],
)
def test_bounds(case: str, ours: float, others: dict[str, list[float]], expected: list[bool | None]) -> None:
    """Each bound at its edge and beyond; without the peers of a bound nothing is judged."""
    twice = {peer: 2 * column for peer, column in others.items()}
    assert [verdict.is_met for verdict in verdicts(runs(case, ours=[ours, ours], **twice))] == expected


@pytest.mark.parametrize(
    ("ours", "met", "shown"),
    [
        ([12, 12.2, 12.1, 11.9, 12], True, "1.20 ×, interval 1.19–1.22 over 5 blocks"),
        ([14, 14.2, 14.1, 13.9, 14], False, "1.40 ×, interval 1.39–1.42"),
        ([12, 20, 12], None, "1.42 ×, interval"),
        ([12], None, "1.20 × over 1 block"),
    ],
)
def test_the_interval_decides_and_is_shown(ours: list[float], met: bool | None, shown: str) -> None:
    """On both sides of a bound, or of a single block, nothing is judged."""
    first, _ = verdicts(runs(ours=ours, nginx=[10.0] * len(ours)))
    assert (first.is_met, shown in first.found) == (met, True)


def test_invalid_run_misses_the_bound() -> None:
    """A proxy that answers with errors must not pass because it has no figures."""
    made = [
        CostRun("get", OURS, 0, 0, 15.0, fault="no request was answered"),
        *runs(nginx=[10], session=[80]),
    ]
    first, second = verdicts(made)
    assert first.is_met is False
    assert OURS in first.found
    assert second.is_met is False


def sized(*columns: list[float]) -> list[CostRun]:
    """Figures per block of 2, 10, … endpoints."""
    return [
        CostRun("endpoints", f"steelyard random, {size} endpoints", block, 0, figure)
        for size, column in zip((1000, 2, 10), columns, strict=False)
        for block, figure in enumerate(column)
    ]


@pytest.mark.parametrize(
    ("columns", "met", "shown"),
    [
        (([21.8, 43.7, 21.9], [20, 40, 20.2], [21, 42, 21]), True, "1.09 ×, interval 1.08–1.10 over 3 blocks"),
        (([23, 46], [20, 40], [20, 40]), False, "1.15 ×, interval 1.15–1.15 over 2 blocks; 2: 1.00, 10: 1.00, 1"),
        (([22, 22, 22], [20, 20, 20], [21, 42, 90]), None, "2.15 ×, interval 0.35–13.11"),
        (([23], [20], [20]), None, "1.15 × over 1 block"),
    ],
)  # fmt: skip
def test_flatness_is_judged_by_the_interval_of_the_slope(
    columns: tuple[list[float], ...], met: bool | None, shown: str
) -> None:
    """A slow block raises all sizes alike; noise of one size, or a single block, is neither flat nor a slope."""
    (verdict,) = verdicts(sized(*columns))
    assert verdict.is_met is met
    assert "from 2 to 1000 endpoints" in verdict.bound
    assert shown in verdict.found


def test_sizes_with_errors_or_without_a_complete_block() -> None:
    """An error misses the bound; without a complete block it is not judged."""
    broken = [
        *sized([20], [20]),
        CostRun("endpoints", "steelyard random, 10 endpoints", 0, 0, fault="2 non-2xx"),
    ]
    assert [verdict.is_met for verdict in flatness(broken)] == [False]
    stopped = [run for run in sized([20, 20], [20, 20]) if (run.block == 0) == ("1000" in run.peer)]
    assert [verdict.is_met for verdict in flatness(stopped)] == [None]


def test_units_of_figures() -> None:
    assert figure_in_words(typical([1.251, 1.2, 1.3]), "×") == "1.25 ×, interval 1.13–1.38 over 3 blocks"
    assert figure_in_words(average([3437.4]), "bytes") == "3437 bytes over 1 block"


# --- tables


def run(peer: str, block: int, cost: float, fault: str = "", taken: float = 0.0) -> CostRun:
    """A run of a thousand requests that cost `cost` µs each, three quarters of it in user mode."""
    return CostRun("get", peer, block, 0, cost, 1000, 500.0, 0.75, taken, fault=fault)


def test_a_row_has_the_median_its_range_and_a_ratio_with_its_interval() -> None:
    """A block in which the machine is twice as slow changes the range and not the ratio."""
    row = cost_row(runs(ours=[15, 30, 15], nginx=[10, 20, 10], session=[100, 200, 100]), OURS)
    assert (row.figure, row.lowest, row.highest) == pytest.approx((15, 15, 30))
    assert row.to_nginx == typical([1.5, 1.5, 1.5])
    assert cells(row, Kind.COST)[2] == "1.50 [1.50–1.50]"
    assert (row.user, row.system) == pytest.approx((11.25, 3.75))


def test_rows_are_sorted_by_cost_with_invalid_ones_last() -> None:
    made = [*runs(ours=[15], nginx=[10]), run("haproxy", 0, 1, "3 non-2xx, 0 socket errors")]
    assert [row.peer for row in rows_of(made)] == [NGINX, OURS, "haproxy"]


def test_one_invalid_run_makes_the_row_invalid() -> None:
    """The row has a reason and no figures, and nothing is compared with it."""
    made = [
        *runs(ours=[15, 15], nginx=[10], session=[100, 100]),
        run(NGINX, 1, 10, "3 non-2xx, 0 socket errors"),
    ]
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
    quiet = runs(ours=[15], nginx=[10], session=[100])
    assert doubts(quiet) == ""
    assert "took 10% of the cores" in doubts([run(OURS, 0, 15, taken=0.1)])


@pytest.mark.parametrize("width", [80, FULL_WIDTH])
def test_table_fits_the_terminal(width: int) -> None:
    """No cell is cut off; a narrow terminal has the essential columns."""
    made = [
        *runs(ours=[35.1] * 2, nginx=[17.8] * 2, session=[213.05] * 2),
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
