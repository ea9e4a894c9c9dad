"""Every row of the HTTP table over a real socket: requests at the worker, the response, and the request after it."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import pytest

from tests.balancer.http.http_rows.player import Client, Seen
from tests.balancer.http.http_rows.recorder import Recorder
from tests.balancer.http.http_rows.row import Reach, Row
from tests.balancer.http.http_rows.table import ROWS
from tests.balancer.http.http_rows.verdicts import UNFINISHED, changes, observed, of_row, wanted
from tests.support.stage import Stage

BYTEWISE = pytest.param(1, id="bytewise", marks=pytest.mark.second_tier)


@pytest.mark.parametrize("step", [pytest.param(0, id="at-once"), BYTEWISE])
@pytest.mark.parametrize("row", ROWS, ids=[row.name for row in ROWS])
async def test_row(stage: Stage, row: Row, step: int) -> None:
    """In one write and byte by byte: verdict and connection end as in the row; the worker sees these requests and no
    other.
    """
    recorder = Recorder()
    settings: dict[str, Any] = {"limits": row.limits} if row.limits else {}
    await stage.serve(await stage.worker(recorder), admin={"socket": "off"}, **settings)
    client = Client(row, await stage.client(), step, is_ahead=not step)
    seen = await client.play(recorder)
    await stage.turn()
    seen.begun, seen.whole = recorder.begun, recorder.whole
    assert observed(row, seen) == wanted(row), [*changes(row, seen)] if of_row(seen.whole) else seen
    assert_ending(row, seen)


def assert_ending(row: Row, seen: Seen) -> None:
    """The end of the connection, and the next request."""
    if row.end in UNFINISHED and row.reach is Reach.WHOLE:
        return
    if row.status[0] != 502 or seen.end != "closed":
        assert seen.end == ("kept" if row.status[0] == 502 else row.end)
    targets = [request.target for request in seen.whole]
    assert targets.count(b"/next") == (seen.end == "kept")
    if row.reach is Reach.WHOLE:
        assert len(of_row(seen.begun)) == len(row.lines)


def test_table_has_its_minimum_length() -> None:
    assert len(ROWS) >= 200


def test_row_names_are_unique() -> None:
    assert [name for name, times in Counter(row.name for row in ROWS).items() if times > 1] == []


def test_every_row_names_its_clause() -> None:
    unnamed = [row.name for row in ROWS if not re.fullmatch(r"RFC \d{4} § ([A-Z]|\d+)(\.\d+)*", row.clause)]
    assert unnamed == []
