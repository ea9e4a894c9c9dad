"""Ways of removing internal fields: they agree, the sets are what they are said to be, and a share is judged."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments.cpu_time import is_known_here
from experiments.report.canvas import to_png
from experiments.reproduce.header_sets import INTERNAL, SETS, block_of, fields_of
from experiments.reproduce.header_share import Share, Turn, length_in, shares_of
from experiments.reproduce.headers import standing
from experiments.reproduce.keepalive_figure import ways_figure
from experiments.reproduce.removal import (
    ANYWAY,
    WAYS,
    WITH_NAMES,
    Cost,
    RemovalMethod,
    as_map,
    costs_of,
    is_in_trie,
    least_of,
    turns,
)
from tests.experiments.reproduced import quick_sitting

MAPPED, OURS = WAYS[:3], WAYS[3]


@pytest.mark.parametrize("text", SETS)
def test_all_ways_remove_the_same(text: str) -> None:
    left = {name: value for name, value in as_map(text).items() if name not in INTERNAL}
    for way in MAPPED:
        assert way.act(way.prepare(text)) == left, way.name
    lines = OURS.act(OURS.prepare(text)).decode().split("\r\n")[1:-1]
    assert {line.split(": ", 1)[0].lower(): line.split(": ", 1)[1] for line in lines} == left


def test_sets_are_what_they_are_said_to_be() -> None:
    """More than 100 names; 10 to 30 fields; under a tenth of them internal, but some."""
    assert len(set(INTERNAL)) == len(INTERNAL) > 100
    sizes = [len(fields_of(text)) for text in SETS]
    assert 10 <= min(sizes) <= max(sizes) <= 30
    internal = sum(name.lower() in INTERNAL for text in SETS for name, _ in fields_of(text))
    assert 0 < internal < sum(sizes) / 10


def test_a_block_has_a_crlf_around_each_line() -> None:
    assert block_of("A: 1\nB: 2\n") == b"\r\nA: 1\r\nB: 2\r\n"


def test_the_trie_knows_whole_names_only() -> None:
    assert is_in_trie("x-worker-token")
    assert not is_in_trie("x-worker-toke")
    assert not is_in_trie("x-worker-tokens")
    assert not is_in_trie("")


def test_every_way_has_its_turn() -> None:
    """Once in each round, and its cost is the median."""
    found = list(turns(3, seed=1))
    assert [[way for way, _ in found].count(way) for way in WAYS] == [3] * len(WAYS)
    costs = costs_of([(WAYS[0], 1e-6), (WAYS[0], 9e-6), (WAYS[0], 2e-6)])
    assert [cost.way for cost in costs] == [WAYS[0].name]
    assert costs[0].micros == pytest.approx(2.0)
    assert to_png(ways_figure(costs_of(found))).startswith(b"\x89PNG")


def test_a_way_without_turns_has_no_row() -> None:
    assert costs_of([]) == []
    assert isinstance(WAYS[0], RemovalMethod)


def test_shares_are_compared_within_a_block() -> None:
    """A block in which everything was slow moves both sides and not the ratio."""
    found = []
    for block, pace in ((0, 100.0), (1, 300.0), (2, 100.0)):
        found += [Turn(block, False, False, pace), Turn(block, True, False, pace * 1.02)]
    (share,) = shares_of([*found, Turn(3, False, False, 1.0)])
    assert (share.repeats, share.without) == (False, 100.0)
    assert share.share == pytest.approx(0.02)
    assert shares_of([]) == []


@pytest.mark.parametrize(
    ("interval", "is_met"), [((0.001, 0.003), True), ((0.01, 0.02), False), ((-0.01, 0.02), None)]
)
def test_a_share_is_judged_where_its_interval_is_on_one_side(
    interval: tuple[float, float], is_met: bool | None
) -> None:
    assert standing(Share(False, 50.0, 0.1, 0.002, interval)) is is_met


def test_what_is_timed_alone_is_a_part_of_new_fields() -> None:
    """Whatever two units differ by; one that has seen the fields remembers what they come to."""
    lost_in_noise = Share(False, 50.0, 0.1, 0.002, (-0.01, 0.02))
    assert standing(lost_in_noise, least=2.0) is False
    assert standing(lost_in_noise, least=0.1) is None
    assert standing(Share(True, 50.0, 0.1, 0.002, (-0.01, 0.02)), least=2.0) is None


def test_names_cost_what_the_pass_takes_longer() -> None:
    """At least: where intervals overlap that is nothing, and without both nothing is known."""
    before, after = Cost(ANYWAY, 2.0, (1.9, 2.1), None), Cost(WITH_NAMES, 2.4, (2.3, 2.5), None)
    assert least_of([before, after]) == pytest.approx(0.2)
    assert least_of([after, Cost(ANYWAY, 2.3, (2.2, 2.4), None)]) == 0.0
    assert least_of([after]) == 0.0


def test_the_length_of_an_answer() -> None:
    assert length_in(b"HTTP/1.1 200 OK\r\nA: b\r\nContent-Length: 12\r\nC: d") == 12


@pytest.mark.skipif(not is_known_here(), reason="reads processor time as Linux accounts for it")
@pytest.mark.second_tier
@pytest.mark.timeout(180)
def test_a_quick_sitting(tmp_path: Path) -> None:
    """Both units answer, every way is measured, and what is written can be read."""
    found = quick_sitting("headers", tmp_path)
    assert [row["way"] for row in found["ways"]] == [way.name for way in WAYS]
    assert [row["repeats"] for row in found["shares"]] == [False, True]
    assert all(row["without"] > 0 for row in found["shares"])
    assert (tmp_path / "headers.png").read_bytes().startswith(b"\x89PNG")
