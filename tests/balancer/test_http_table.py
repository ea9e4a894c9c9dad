"""Every row of the table, through a real socket: what reached the worker, what came back, and the request after it.

Rule of this file: a row that is not so yet stands in `not_yet.py` with the reason. It is struck off when it is: a row
that passes while it stands there is an error too.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import pytest

from tests.balancer.conftest import Stage
from tests.balancer.http_rows.not_yet import NOT_YET
from tests.balancer.http_rows.player import Client, Seen
from tests.balancer.http_rows.recorder import Recorder
from tests.balancer.http_rows.row import Reach, Row
from tests.balancer.http_rows.table import ROWS
from tests.balancer.http_rows.verdicts import changes, observed, of_row, wanted

STEPS = {"at-once": 0, "bytewise": 1}


def cases() -> list[Any]:
    """Each row both ways."""
    reasons = {name: reason for reason, names in NOT_YET.items() for name in names}
    found = []
    for row in ROWS:
        for way, step in STEPS.items():
            reason = reasons.get(row.name) or reasons.get(f"{row.name}-{way}")
            marks = [pytest.mark.xfail(reason=reason, strict=True)] if reason else []
            found.append(pytest.param(row, step, id=f"{row.name}-{way}", marks=marks))
    return found


@pytest.mark.parametrize(("row", "step"), cases())
async def test_row(stage: Stage, row: Row, step: int) -> None:
    """The verdict is the row's; the connection ends as it says; the worker saw these requests and no other."""
    recorder = Recorder()
    settings: dict[str, Any] = {"limits": row.limits} if row.limits else {}
    await stage.serve(await stage.worker(recorder), **settings)
    client = Client(row, await stage.client(), step, is_ahead=not step)
    seen = await client.play(recorder)
    await stage.turn()
    seen.begun, seen.whole = recorder.begun, recorder.whole
    assert observed(row, seen) == wanted(row), [*changes(row, seen)] if of_row(seen.whole) else seen
    has_ended_well(row, seen)


def has_ended_well(row: Row, seen: Seen) -> None:
    """What a verdict leaves out."""
    if row.end == "cut":
        return
    if row.status[0] != 502 or seen.end != "closed":
        assert seen.end == ("kept" if row.status[0] == 502 else row.end)
    targets = [request.target for request in seen.whole]
    assert targets.count(b"/next") == (seen.end == "kept")
    if row.reach is Reach.WHOLE:
        assert len(of_row(seen.begun)) == len(row.lines)


def test_the_table_is_as_long_as_it_should_be() -> None:
    assert len(ROWS) >= 200


def test_rows_have_names_of_their_own() -> None:
    assert [name for name, times in Counter(row.name for row in ROWS).items() if times > 1] == []


def test_every_row_names_its_clause() -> None:
    unnamed = [row.name for row in ROWS if not re.fullmatch(r"RFC \d{4} § ([A-Z]|\d+)(\.\d+)*", row.clause)]
    assert unnamed == []


def test_rows_that_are_not_yet_so_exist() -> None:
    known = {row.name for row in ROWS} | {f"{row.name}-{way}" for row in ROWS for way in STEPS}
    assert {name for names in NOT_YET.values() for name in names} <= known
