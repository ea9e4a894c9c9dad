"""`reproduce headers`: the removal methods agree, costs and shares are computed, and a quick run with processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments.platform.cpu_time import is_known_here
from experiments.report.canvas import to_png
from experiments.reproduce.headers import (
    INTERNAL,
    METHODS,
    OURS,
    PASS,
    PASS_WITH_NAMES,
    SETS,
    Headers,
    Share,
    as_map,
    costs_of,
    fields_of,
    is_in_trie,
    least_cost_of_names,
    shares_of,
    time_methods,
)
from experiments.stats.comparison import Interval
from tests.experiments.reproduced import quick_run

ON_MAPS = list(METHODS)[:3]


@pytest.mark.parametrize("text", SETS)
def test_all_methods_remove_the_same_fields(text: str) -> None:
    left = {name: value for name, value in as_map(text).items() if name not in INTERNAL}
    for name in ON_MAPS:
        prepare, remove = METHODS[name]
        assert remove(prepare(text)) == left, name
    prepare, remove = METHODS[OURS]
    lines = remove(prepare(text)).decode().split("\r\n")[1:-1]
    assert {line.split(": ", 1)[0].lower(): line.split(": ", 1)[1] for line in lines} == left


def test_sizes_of_the_header_sets() -> None:
    """More than 100 names; 10 to 30 fields; under a tenth of them internal, but some."""
    assert len(set(INTERNAL)) == len(INTERNAL) > 100
    sizes = [len(fields_of(text)) for text in SETS]
    assert 10 <= min(sizes) <= max(sizes) <= 30
    internal = sum(name.lower() in INTERNAL for text in SETS for name, _ in fields_of(text))
    assert 0 < internal < sum(sizes) / 10


@pytest.mark.parametrize("name", ["x-worker-toke", "x-worker-tokens", ""])
def test_the_trie_has_whole_names_only(name: str) -> None:
    assert is_in_trie("x-worker-token")
    assert not is_in_trie(name)


def test_every_method_is_timed_once_in_each_round() -> None:
    """Its cost is the geometric mean."""
    found = dict[str, list[float]]()
    time_methods(3, 1, found)
    assert {name: len(values) for name, values in found.items()} == dict.fromkeys(METHODS, 3)
    assert list(costs_of(found)) == list(METHODS)
    assert costs_of({ON_MAPS[0]: [1.0, 4.0, 2.0]})[ON_MAPS[0]].ratio == pytest.approx(2.0)


def test_shares_are_compared_within_a_block() -> None:
    """A block in which everything was slow changes both sides and not the ratio."""
    cases = {
        (removes, repeats): 1.02 if removes else 1.0 for removes in (True, False) for repeats in (True, False)
    }
    found = [{case: micros * factor for case, factor in cases.items()} for micros in (100.0, 300.0, 100.0)]
    shares = shares_of(found)
    assert [one.repeats for one in shares] == [False, True]
    for one in shares:
        assert one.without == pytest.approx(100 * 3 ** (1 / 3))
        assert one.share.ratio == pytest.approx(0.02)
    assert shares_of([]) == []
    reproduction = Headers(True)
    time_methods(1, 1, reproduction._timed)
    reproduction._request_costs = found
    assert to_png(reproduction.figure()).startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("repeats", "interval", "least", "expected"),
    [
        (False, (0.001, 0.003), 0.0, True),
        (False, (0.01, 0.02), 0.0, False),
        (False, (-0.13, -0.11), 0.0, None),
        (True, (-0.13, -0.11), 0.0, None),
        (False, (-0.01, 0.02), 0.0, None),
        (False, (-0.01, 0.02), 2.0, False),
        (False, (-0.01, 0.02), 0.1, None),
        (True, (-0.01, 0.02), 2.0, None),
    ],
)
def test_a_share_is_judged_where_its_interval_is_on_one_side(
    repeats: bool, interval: tuple[float, float], least: float, expected: bool | None
) -> None:
    """Or, for new fields, where the lower bound of the names' own cost exceeds the bound."""
    assert Share(repeats, 50.0, Interval(0.002, *interval, 40)).is_met(least) is expected


def test_least_cost_of_names_is_the_gap_between_intervals() -> None:
    """None where intervals overlap or one is missing."""
    after = {PASS_WITH_NAMES: Interval(2.4, 2.3, 2.5, 9)}
    assert least_cost_of_names({PASS: Interval(2.0, 1.9, 2.1, 9), **after}) == pytest.approx(0.2)
    assert least_cost_of_names({PASS: Interval(2.3, 2.2, 2.4, 9), **after}) == 0.0
    assert least_cost_of_names(after) == 0.0


@pytest.mark.skipif(not is_known_here(), reason="reads CPU time from Linux' accounting")
@pytest.mark.second_tier
@pytest.mark.timeout(180)
def test_quick_run(tmp_path: Path) -> None:
    """Every method and both balancers are measured."""
    found = quick_run("headers", tmp_path)
    assert [row["method"] for row in found["methods"]] == list(METHODS)
    assert [row["repeats"] for row in found["shares"]] == [False, True]
    assert all(row["without"] > 0 for row in found["shares"])
