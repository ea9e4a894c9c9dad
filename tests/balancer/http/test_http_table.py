"""Every row of the HTTP table over a real socket: requests at the worker, the response, and the request after it.

A row that is not satisfied yet is listed in `http_rows/not_yet.py` with the reason; a listed row that passes is an
error.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import pytest

from tests.balancer.http.http_rows.not_yet import NOT_YET
from tests.balancer.http.http_rows.player import Client, Seen
from tests.balancer.http.http_rows.recorder import Recorder
from tests.balancer.http.http_rows.row import Reach, Row
from tests.balancer.http.http_rows.table import ROWS
from tests.balancer.http.http_rows.verdicts import changes, observed, of_row, wanted
from tests.support.stage import Stage

STEPS = {"at-once": 0, "bytewise": 1}


def cases() -> list[Any]:
    """Each row in one write and, in the second tier, byte by byte."""
    reasons = {name: reason for reason, names in NOT_YET.items() for name in names}
    found = []
    for row in ROWS:
        for way, step in STEPS.items():
            reason = reasons.get(row.name) or reasons.get(f"{row.name}-{way}")
            marks = [pytest.mark.xfail(reason=reason, strict=True)] if reason else []
            marks += [pytest.mark.second_tier] if step else []
            found.append(pytest.param(row, step, id=f"{row.name}-{way}", marks=marks))
    return found


@pytest.mark.parametrize(("row", "step"), cases())
async def test_row(stage: Stage, row: Row, step: int) -> None:
    """Verdict and connection end as in the row; the worker sees these requests and no other."""
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
    if row.end == "cut":
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


def test_exceptions_name_existing_rows() -> None:
    known = {row.name for row in ROWS} | {f"{row.name}-{way}" for row in ROWS for way in STEPS}
    assert {name for names in NOT_YET.values() for name in names} <= known
