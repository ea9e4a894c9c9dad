"""`reproduce keepalive`: theory, statistics of measurements, and a quick run with processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments.report.canvas import to_png
from experiments.reproduce.keepalive import (
    CASES,
    DIRECT,
    Block,
    Keepalive,
    KeepaliveCase,
    KeepalivePlan,
    Measurement,
    http2_to_http1,
    network_delay,
    oversleep_of,
    row_of,
)
from tests.experiments.reproduced import quick_run

PLAN = KeepalivePlan(one_way=0.015, service=0.0)


def blocks_of(factor: float = 1.0, http2: float = 1.0, computed: float = 0.0) -> list[Block]:
    """Theory times a factor, another one for HTTP/2; first calls also compute for so many seconds."""
    block = {}
    for case in CASES:
        first, later = network_delay(case, PLAN)
        share = factor * (http2 if case.http == "2" else 1.0)
        block[case] = Measurement(share * (first + computed), (share * later,) * 2)
        block[case.near] = Measurement(computed, (0.0, 0.0))
    return [block] * 3


def keepalive_of(found: list[Block]) -> Keepalive:
    reproduction = Keepalive(True)
    reproduction._plan, reproduction._found = PLAN, found
    return reproduction


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
    rows = keepalive_of(blocks_of(factor))._rows
    assert list(rows) == list(CASES)
    assert {row.is_met(False) for row in rows.values()} == {is_met}
    assert {row.is_met(True) for row in rows.values()} == {is_met or None}  # a busy machine only adds time


def test_computation_explains_a_miss_and_stays_one() -> None:
    """The counterpart without distance shows it."""
    for row in keepalive_of(blocks_of(computed=0.02))._rows.values():
        assert (row.is_met(False), row.is_explained) == (False, True)
        assert row.first.expected == pytest.approx(row.first.theory + 20)
        assert row.later.expected == pytest.approx(row.later.theory)
    assert not any(row.is_explained for row in keepalive_of(blocks_of(1.06, computed=0.02))._rows.values())


def test_nothing_is_found_before_a_block_has_ended() -> None:
    """As after an interruption."""
    found = keepalive_of([])
    assert [*found.findings(), *found.verdicts(), *found.content()["rows"]] == []


def test_http2_is_compared_within_a_block_and_a_tls_version() -> None:
    found = http2_to_http1(blocks_of(http2=1.09))
    assert (found.ratio, found.low, found.high) == pytest.approx((1.09, 1.09, 1.09))


def test_time_saved_by_keep_alive() -> None:
    _, *sentences = keepalive_of(blocks_of()).findings()
    saved = [str(one).partition(" (")[0] for one in sentences if "saves" in str(one)]
    assert saved == [
        "Keep-alive saves 90.0 ms per later call with TLS 1.2",
        "Keep-alive saves 60.0 ms per later call with TLS 1.3",
    ]


def test_the_source_gives_a_lower_bound_of_a_new_connection() -> None:
    row = row_of(CASES[0], blocks_of(), PLAN)
    assert (row.first.cells[-1], row.later.cells[-1]) == ("≥ 135", "30")


def test_oversleep_is_the_ninth_decile() -> None:
    found = [{CASES[0]: Measurement(1.0, (1.0,), oversleep=n / 1000)} for n in range(11)]
    assert oversleep_of(found) == pytest.approx(0.009)
    assert oversleep_of([]) == 0.0


def test_the_figure_is_drawn() -> None:
    assert to_png(keepalive_of(blocks_of()).figure()).startswith(b"\x89PNG")


@pytest.mark.second_tier
@pytest.mark.timeout(180)
def test_quick_run(tmp_path: Path) -> None:
    """Every case is measured and none is faster than theory; a busy machine only adds time."""
    found = quick_run("keepalive", tmp_path)
    assert [row["name"] for row in found["rows"]] == [case.name for case in CASES]
    for row in found["rows"]:
        assert row["first"] >= row["first_theory"]
        assert row["later"] >= row["later_theory"]
