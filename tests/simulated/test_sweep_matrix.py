"""The policy matrix: the best of each scenario, ties, the text and the map."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from experiments.errors import BadInputError
from experiments.report.palette import ON_DARK, ON_LIGHT
from experiments.report.tables import Cell
from experiments.scenario.oracles import BOUNDS, CLAIRVOYANT, INFORMED
from experiments.sweep import catalogue as catalogues
from experiments.sweep.catalogue import CellRow, State
from experiments.sweep.cells import cells_of
from experiments.sweep.matrix import Matrix, matrix_of
from experiments.sweep.outcome import CellOutcome
from experiments.sweep.page import heat_map, ink_on, strips_of, write_page
from experiments.sweep.sentences import (
    distance_table,
    distances,
    headline,
    is_met,
    overview_table,
    sentences,
    standings,
)
from experiments.sweep.tables import best_table, failure_table, group_table, matrix_table
from tests.simulated.sweeping import small_grid

SEEDS = 12
NOISE = 0.004


def rows(
    p99: Mapping[str, float],
    scenario: str = "steady",
    knobs: Mapping[str, Any] | None = None,
    noise: float = NOISE,
    ok: int = 1000,
    seeds: int = SEEDS,
) -> list[CellRow]:
    """Cells of one scenario: policy -> p99 in seconds, with a little noise by seed."""
    rng = np.random.default_rng(1)
    return [
        row(scenario, policy, seed, p99=value * float(np.exp(rng.normal(0, noise))), knobs=knobs, ok=ok)
        for policy, value in p99.items()
        for seed in range(seeds)
    ]


def row(
    scenario: str,
    policy: str,
    seed: int,
    p99: float = 1.0,
    knobs: Mapping[str, Any] | None = None,
    ok: int = 1000,
    state: State = "done",
    invalid: Sequence[str] = (),
    goodput: float | None = None,
) -> CellRow:
    numbers: dict[str, Any] = {
        "p99": p99,
        "p50": p99 / 10,
        "requests": 1000,
        "ok": ok,
        "goodput": goodput,
        "invalid": json.dumps(list(invalid)),
        "shares": json.dumps({"a-0": 0.5, "b-0": 0.5}),
    }
    named = json.dumps({"name": policy})
    cell = f"{scenario} {policy} {seed} {knobs}"
    return CellRow(cell, scenario, policy, named, json.dumps(knobs or {}), seed, state, numbers)


def marks(matrix: Matrix) -> dict[str, str]:
    return {square.policy: square.mark for square in matrix.column("steady")}


def test_best_is_the_lowest_and_near_ones_are_practically_equal() -> None:
    matrix = matrix_of(rows({"a": 0.200, "b": 0.100, "c": 0.102, "d": 0.150}))
    assert marks(matrix) == {"a": "behind", "b": "best", "c": "equal", "d": "behind"}
    assert matrix.squares["a", "steady"].ratio.ratio == pytest.approx(2, rel=0.01)
    assert matrix.ranked() == ["b", "c", "d", "a"]


def test_observed_best_is_not_the_best_without_proof() -> None:
    """Two policies are alike in noise: the lower one leads, and either may be the best; the third is not."""
    matrix = matrix_of(rows({"a": 0.100, "b": 0.101, "c": 0.9}, noise=0.15))
    leading = matrix.best("steady")
    assert leading is not None
    assert leading.policy in ("a", "b")
    assert marks(matrix) == {"a": "undecided", "b": "undecided", "c": "behind"}
    assert leading.ratio.ratio == leading.ratio.low == 1.0
    assert leading.ratio.high > 1.05
    (line,) = [one for one in sentences(matrix, leading.policy) if one.startswith("steady:")]
    assert "which chance may explain: it may be" in line


def test_goodput_decides_where_the_best_is_at_the_deadline() -> None:
    """All lose more than one request in a hundred: their p99s are equal, and the odds of a miss are not."""
    cells = [
        row("steady", policy, seed, p99=30.0, ok=ok, goodput=ok / 1000)
        for policy, lost in (("a", 100), ("b", 50), ("c", 50))
        for seed in range(SEEDS)
        for ok in [1000 - lost - seed % 3]
    ]
    matrix = matrix_of(cells)
    assert marks(matrix) == {"a": "behind", "b": "equal", "c": "equal"}
    assert {square.judged_by for square in matrix.column("steady")} == {"goodput"}
    assert matrix.squares["a", "steady"].ratio.ratio == pytest.approx((101 / 899) / (51 / 949), rel=0.02)
    assert "odds of a late or failed answer" in " ".join(sentences(matrix, "a"))
    assert matrix_table(matrix).rows[-1][1].text.endswith(" odds")
    some = matrix_of(cells + rows({"d": 0.2}))
    assert marks(some) == {"a": "behind", "b": "behind", "c": "behind", "d": "best"}
    assert {square.judged_by for square in some.column("steady")} == {"p99"}


def test_few_seeds_give_no_verdict() -> None:
    matrix = matrix_of(rows({"a": 0.1, "b": 0.3}, seeds=4))
    assert marks(matrix) == {"a": "no verdict", "b": "no verdict"}
    assert matrix.best("steady") == matrix.squares["a", "steady"]
    assert headline(matrix, "b") == "No verdict: 4 seeds, 8 needed for an interval"
    assert [line for line in sentences(matrix, "b") if "is best" in line] == []
    assert matrix_table(matrix).rows[0][1].mark == "few"
    assert is_met(matrix, "b") is None


def test_only_scenarios_with_enough_seeds_are_compared() -> None:
    """Ratios of the others are shown, and their number is stated."""
    matrix = matrix_of(rows({"a": 0.1, "b": 0.3}) + rows({"a": 0.4, "b": 0.1}, "short", seeds=3))
    assert headline(matrix, "a").replace("\u00a0", " ") == (
        "a is best or practically equal in 1 of 1 scenarios (100 %; wanted 80 %), and at worst × 1.00; "
        "1 more have too few seeds to be judged"
    )
    assert is_met(matrix, "a") is True
    assert [line for line in sentences(matrix, "a") if "short" in line] == []
    assert is_met(matrix, "b") is False


def test_oracle_is_a_bound_and_never_the_best() -> None:
    matrix = matrix_of(rows({"a": 0.1, "oracle-least-work": 0.05}))
    assert marks(matrix)["a"] == "best"
    assert matrix.squares["oracle-least-work", "steady"].ratio.ratio == pytest.approx(0.5, rel=0.01)
    assert marks(matrix)["oracle-least-work"] == "bound"
    assert matrix.ranked() == ["a", "oracle-least-work"]
    assert matrix_table(matrix).rows[1][0].text == "oracle-least-work (bound)"
    assert distances(matrix) == []  # only to those that know most


def test_distance_to_the_bound() -> None:
    """Over scenarios, with the worst of them; one seed of each is enough."""
    cells = [
        *rows({"a": 0.1, "b": 0.3, CLAIRVOYANT: 0.1}, "one", noise=0, seeds=1),
        *rows({"a": 0.4, "b": 0.3, CLAIRVOYANT: 0.1}, "two", noise=0, seeds=1),
        *rows({"a": 0.1}, "three", noise=0, seeds=1),
    ]
    found = distances(matrix_of(cells))
    assert [(one.policy, one.worst_scenario) for one in found] == [("a", "two"), ("b", "one")]
    assert [one.ratio.ratio for one in found] == pytest.approx([2.0, 3.0])
    assert [one.worst for one in found] == pytest.approx([4.0, 3.0])
    table = distance_table(matrix_of(cells))
    assert [cell.text for cell in table.rows[0]][2:] == ["2", "4.00", "two"]


def test_distance_to_each_bound_side_by_side() -> None:
    """With what each knows, in the table and in a sentence; a policy without a common scenario has no ratio."""
    cells = [
        *rows({"a": 0.3, INFORMED: 0.2, CLAIRVOYANT: 0.1}, "one", noise=0, seeds=1),
        *rows({"a": 0.3, "b": 0.3, CLAIRVOYANT: 0.1}, "two", noise=0, seeds=1),
    ]
    matrix = matrix_of(cells)
    found = {(one.policy, one.bound): one.ratio.ratio for one in distances(matrix)}
    assert found == pytest.approx({("a", INFORMED): 1.5, ("a", CLAIRVOYANT): 3.0, ("b", CLAIRVOYANT): 3.0})
    table = distance_table(matrix)
    assert [name for name in table.columns if "/" in name] == [f"p99 / {INFORMED}", f"p99 / {CLAIRVOYANT}"]
    assert [[cell.text for cell in row][2:5] for row in table.rows] == [["1", "1.50", "one"], ["–"] * 3]
    told = [line for line in sentences(matrix, "a") if "bound that" in line]
    for bound, line in zip(BOUNDS, told, strict=True):
        assert f"{bound}, a bound that {BOUNDS[bound]}" in line
        assert BOUNDS[bound] in table.note
    assert {matrix.squares[bound, "one"].mark for bound in BOUNDS} == {"bound"}
    assert not any(square.leads for square in matrix.squares.values() if square.policy in BOUNDS)


def test_standing_over_all_scenarios() -> None:
    """Within 5 and 10 % of the best, mean, 90th and worst; where all are late, goodput decides, and only nearness."""
    cells = [
        *rows({"a": 0.1, "b": 0.104, CLAIRVOYANT: 0.05}, "one", noise=0, seeds=1),
        *rows({"a": 0.1, "b": 0.2}, "two", noise=0, seeds=1),
        *(
            row("lost", policy, 1, p99=5.0, ok=500, goodput=good)
            for policy, good in (("a", 0.4), ("b", 0.395))
        ),
        *(row("gone", policy, 1, p99=5.0, ok=500, goodput=good) for policy, good in (("a", 0.4), ("b", 0.3))),
    ]
    best, other = standings(matrix_of(cells))
    assert (best.policy, best.near, best.mean, best.worst) == ("a", 1.0, 1.0, 1.0)
    assert (other.near, other.fairly_near, other.scenarios) == (0.5, 0.5, 4)
    assert [other.mean, other.worst] == pytest.approx([(1.04 * 2.0) ** 0.5, 2.0])
    assert other.worst_scenario == "two"
    assert [cell.text for cell in overview_table(matrix_of(cells)).rows[0]][:3] == ["a", "4", "100.0%"]
    assert overview_table(matrix_of(cells[:3])).rows == ()


def test_knobs_of_the_load_are_columns_and_those_of_policies_rows() -> None:
    found = matrix_of(
        rows({"a": 0.1}, knobs={"load.rate": 100.0, "policy.choices": 2})
        + rows({"a": 0.2}, knobs={"load.rate": 150, "policy.choices": 3})
    )
    assert found.scenarios == ("steady, load.rate = 100", "steady, load.rate = 150")
    assert found.policies == ("a, choices = 2", "a, choices = 3")


def test_failed_and_invalid_cells_are_counted_and_not_compared() -> None:
    cells = rows({"a": 0.1, "b": 0.2})
    cells += [row("steady", "b", 90, state="failed"), row("steady", "b", 91, state="missing")]
    cells += [row("steady", "b", 92, p99=1e-6, invalid=["lag"])]
    matrix = matrix_of(cells)
    assert matrix.left_out == {"missing": 1, "failed": 1, "invalid": 1}
    assert matrix.squares["b", "steady"].seeds == SEEDS
    assert marks(matrix)["a"] == "best"


def test_invalid_cells_are_marked_and_stand_with_their_reasons() -> None:
    cells = rows({"a": 0.1}) + [row("steady", "b", seed, invalid=["died", "late"]) for seed in range(2)]
    cells = [
        replace(one, numbers=one.numbers | dict.fromkeys(("p95", "max", "throughput"), 1.0)) for one in cells
    ]
    counts = [line[2] for line in group_table(cells).rows]
    assert counts == [Cell(f"{SEEDS}/{SEEDS}"), Cell("2/2, 2 INVALID", "bad")]
    found = [[cell.text for cell in line] for line in failure_table(cells).rows]
    assert found == [["invalid", "died; late", "2", "steady, b, seed 0"]]


def test_missing_cell_does_not_cost_the_first_place() -> None:
    cells = rows({"a": 0.1, "b": 0.2})
    assert marks(matrix_of(cells[1:])) == {"a": "best", "b": "behind"}
    assert marks(matrix_of(cells[SEEDS - 1 :]))["b"] == "best"  # one seed of twelve is none


def test_policy_without_results_has_an_empty_square() -> None:
    matrix = matrix_of([*rows({"a": 0.1}), row("steady", "b", 0, state="failed")])
    assert [square.policy for square in matrix.column("steady")] == ["a"]
    assert matrix_table(matrix).rows[1][1].text == "–"


def test_best_variant_of_ours_is_spoken_of() -> None:
    """Where a knob makes several of it, with or without the values of the knob in `ours`."""
    matrix = matrix_of(
        rows({"ours": 0.2, "other": 0.15}, knobs={"policy.choices": 2})
        + rows({"ours": 0.1, "other": 0.15}, knobs={"policy.choices": 3})
        + rows({"oursels": 0.01}, "elsewhere")
    )
    assert headline(matrix, "ours").startswith(
        "ours, choices = 3, its variant of the lowest mean, is best or practically equal in 1 of 1 scenarios"
    )
    assert is_met(matrix, "ours")
    assert sentences(matrix, "ours")[0].startswith("Its worst is steady: p99 ×\u00a01.00")
    assert "ours, choices = 3" in best_table(matrix, "ours").columns
    assert headline(matrix, "ours, choices = 2").startswith(
        "ours, choices = 2 is best or practically equal in 0"
    )


def losing() -> Matrix:
    """Ours is best once, equal once, and far behind once, where it uses a worker more and loses requests."""
    cells = rows({"ours": 0.1, "other": 0.3}, "one") + rows({"ours": 0.101, "other": 0.1}, "two")
    behind = rows({"ours": 0.2}, "three", ok=990)
    uneven = {"shares": json.dumps({"a-0": 0.7, "b-0": 0.3})}
    cells += [replace(one, numbers=one.numbers | uneven) for one in behind]
    return matrix_of(cells + rows({"other": 0.1}, "three"))


def test_loss_is_described_with_its_differences() -> None:
    matrix = losing()
    assert headline(matrix, "ours") == (
        "ours is best or practically equal in 2 of 3 scenarios (67\u00a0%; wanted 80\u00a0%), and at worst ×\u00a02.00"
    )
    first, *others = [sentence.replace("\u00a0", " ") for sentence in sentences(matrix, "ours")]
    assert first.startswith("Its worst is three: p99 × 2.00 [")
    assert "beyond the bound of × 1.5" in first
    (loss,) = others
    assert re.match(
        r"three: other is best with p99 100 ms; ours has 200 ms, × 2\.00 \[\d\.\d\d–\d\.\d\d\]\. ", loss
    )
    assert "Its median is × 2.00 of the best's." in loss
    assert (
        "Of its requests 1.00 % failed, of the best's 0.00 %; its goodput is 99.00 %, the best's 100.00 %."
        in loss
    )
    assert "It had a-0 answer 70.0 %, the best 50.0 %." in loss
    assert is_met(matrix, "ours") is False
    assert is_met(matrix, "other") is False
    assert headline(matrix, "absent") == "absent takes no part; the best of each scenario stand below"


def test_the_map_shows_every_square_once() -> None:
    policies = [f"policy-{n}" for n in range(5)]
    cells = [r for n in range(7) for r in rows(dict.fromkeys(policies, 0.1 + n), f"scenario-{n}", seeds=8)]
    figure = heat_map(matrix_of(cells[:-8]), "policy-1")
    panels = [axes for axes in figure.axes if axes.get_yticklabels() and axes.patches]
    texts = [text.get_text() for axes in panels for text in axes.texts]
    assert len(texts) == 5 * 7
    assert texts.count("–") == 1
    assert sum(text.startswith("≈") for text in texts) == 5 * 7 - 1
    bold = {
        label.get_text()
        for axes in panels
        for label in axes.get_yticklabels()
        if label.get_fontweight() == "bold"
    }
    assert bold == {"policy-1"}


def test_strips_are_nearly_equal() -> None:
    assert [len(strip) for strip in strips_of([str(n) for n in range(20)], 18)] == [10, 10]
    assert strips_of([], 4) == [[]]


def test_text_is_readable_on_every_shade() -> None:
    assert (ink_on((1, 0.9, 0.2, 1)), ink_on((0, 0.13, 0.3, 1))) == (ON_LIGHT, ON_DARK)


def test_page_is_complete_and_self_contained(tmp_path: Path) -> None:
    grid = small_grid(9, ours="random")
    cells = cells_of(grid, "1")
    values = {"random": 0.1, "round-robin": 0.2}
    with catalogues.to_write(tmp_path / "g.sqlite") as catalogue:
        catalogue.plan(grid, "1", "experiments <sweep>", cells)
        with pytest.raises(BadInputError, match="no cell of 'small' has a result"):
            write_page(catalogue, None, "p99", tmp_path / "out")
        for cell in cells[1:]:
            numbers = {**row("", "", 0).numbers, "p99": values[cell.entry.label]}
            catalogue.record(cell, CellOutcome(numbers, None, 1.0, "here"))
        catalogue.record(cells[0], CellOutcome({}, "ValueError: <no>", 1.0, "here"))
        write_page(catalogue, None, "p99", tmp_path / "out")
    page = (tmp_path / "out" / "matrix.html").read_text(encoding="utf-8")
    assert "random is best or practically equal in 1 of 1 scenarios" in page
    assert "1 of 18 cells failed" in page
    assert "ValueError: &lt;no&gt;" in page
    assert "experiments &lt;sweep&gt;" in page
    assert not re.search(r"""(?:src|href)=["'](?!data:|#)""", page)
    assert not re.search(r"""https?://(?!www\.w3\.org)""", page)
    content = json.loads((tmp_path / "out" / "matrix.json").read_text(encoding="utf-8"))
    assert [square["mark"] for square in content["squares"]] == ["best", "behind"]
    assert (tmp_path / "out" / "matrix.csv").read_text(encoding="utf-8").count("\n") == 3
    assert {file.name for file in (tmp_path / "out" / "figures").iterdir()} == {*("matrix.png", "matrix.svg")}
