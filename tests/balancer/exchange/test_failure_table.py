"""The table "What one failure does" of docs/design.md: each cell is compared with what the mechanisms do."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from math import inf
from typing import NamedTuple

import pytest

from policies import EndpointState, Outcome, OutcomeKind, Overloaded, RequestFacts, Router
from policies.contract import ManualClock
from policies.endpoint.concurrency_limit import Concurrency, ConcurrencyRules
from policies.health.outlier_detection import OVERLOADED_FOR
from policies.overload.shedding import DEEP_WAIT, MIN_LOST, UNBOUNDED_WAIT
from tests.policies.pools import Pool
from tests.support.root import ROOT
from tests.support.scripts import LATE, QUICK, after_a_request, hang, reset_after_request
from tests.support.stage import Stage
from tests.support.steelyard_routers import endpoint, measure, outcome, router
from tests.support.wire import (
    Script,
    ScriptedWorker,
    Wire,
    answering,
    answering_after,
    get,
    playing,
    post,
    response,
)

HEADING = "## What one failure does\n"
COLUMNS = [
    "outcome",
    "counts as",
    "eject",
    "penalty",
    "retried",
    "hedged",
    "concurrency",
    "steelyard",
    "shedding",
]
NOTHING = "–"


class Row(NamedTuple):
    """A kind of outcome, the status and whether a response has begun; what the worker of such an attempt does."""

    kind: OutcomeKind
    status: int | None
    worker: Script | None
    has_begun: bool = False

    def outcome(self, sent_at: float, first_byte_at: float, ended_at: float) -> Outcome:
        return Outcome(self.kind, self.status, sent_at, first_byte_at if self.has_begun else None, ended_at)


def answered(status: bytes) -> Script:
    return answering(response(b"bad", status=status))


LONG = response(b"x" * 20_000)[:-50]
SWITCH = b"HTTP/1.1 101 Go On\r\nConnection: upgrade\r\nUpgrade: chat/1\r\n\r\n"
UPGRADE = (b"Connection: upgrade", b"Upgrade: chat/1")
ATTEMPT, FIRST_BYTE = 1.0, 30.0
BUSY = {"busy": [429]}

ROWS = {
    "answered, below 400": Row(OutcomeKind.OK, 200, answered(b"200 OK"), True),
    "client error: 4xx": Row(OutcomeKind.OK, 404, answered(b"404 Not Found"), True),
    "refused": Row(OutcomeKind.REFUSED, None, None),
    "broken before a response": Row(OutcomeKind.RESET, None, reset_after_request),
    "broken within a response": Row(OutcomeKind.RESET, 200, after_a_request(LONG), True),
    "timed out before a response": Row(OutcomeKind.TIMEOUT, None, hang),
    "timed out within a response": Row(
        OutcomeKind.TIMEOUT, 200, playing(Wire.request, LONG, Wire.closed), True
    ),
    "busy: 503": Row(OutcomeKind.ERROR_STATUS, 503, answered(b"503 Service Unavailable"), True),
    "refused as busy": Row(OutcomeKind.BUSY, 429, answered(b"429 Too Many Requests"), True),
    "error: 5xx": Row(OutcomeKind.ERROR_STATUS, 500, answered(b"500 No"), True),
    "left by the client": Row(OutcomeKind.ABANDONED, None, hang),
    "tunnelled": Row(OutcomeKind.TUNNELLED, 101, playing(Wire.request, SWITCH), True),
}


def table() -> Iterator[tuple[str, dict[str, str]]]:
    """The rows of the table: the attempt, and its cells."""
    _, _, rest = (ROOT / "docs" / "design.md").read_text(encoding="utf-8").partition(HEADING)
    lines = [line for line in rest.partition("\n## ")[0].splitlines() if line.startswith("|")]
    for line in lines[2:]:
        name, *cells = (cell.strip() for cell in line.strip("|").split("|"))
        yield name, dict(zip(COLUMNS, cells, strict=True))


CELLS = dict(table())
each_row = pytest.mark.parametrize("name", list(ROWS))


def test_table_has_every_row() -> None:
    assert list(CELLS) == list(ROWS)
    assert {row.kind for row in ROWS.values()} == set(OutcomeKind)
    assert {CELLS[name]["outcome"] for name in ROWS} == {f"`{kind.value}`" for kind in OutcomeKind}


def test_only_refusals_and_a_whole_503_are_busy() -> None:
    busy = [kind for kind in OutcomeKind if Outcome(kind, 503, 0.0, 0.0, 0.0).is_busy]
    assert busy == [OutcomeKind.ERROR_STATUS, OutcomeKind.BUSY]


# --- health and policies


def counted(row: Row) -> tuple[str, str]:
    """What one such outcome counts as, and whether there is a penalty."""
    pool = Pool(3)
    state = pool["a0"]
    pool.ends("a0", row.kind, status=row.status)
    counted_as = {(1, 0): "success", (0, 1): "failure", (0, 0): "neither"}[state.successes, state.failures]
    return counted_as, "yes" if state.failure_penalty(pool.clock.time) else "no"


def ejected_for(row: Row) -> str:
    pool = Pool(3)
    state = pool["a0"]
    pool.ends("a0", *[row.kind] * 5, status=row.status)
    suffix = ""
    if not state.is_ejected:
        suffix = f", after {OVERLOADED_FOR:g} s"
        pool.clock.time += OVERLOADED_FOR
        pool.ends("a0", row.kind, status=row.status)
    return f"{state.record.cause.value}{suffix}" if state.record.cause is not None else NOTHING


def learned(row: Row) -> str:
    concurrency = Concurrency(ConcurrencyRules())
    for second in range(30):
        concurrency.learn(row.outcome(second, second + 1.0, second + 3.0), 0)
    return {inf: NOTHING, 1.0: "first byte", 3.0: "duration"}[concurrency.short]


NEAR = RequestFacts(region="near", tried=frozenset({"slow"}))


def measured() -> tuple[Router, EndpointState, ManualClock]:
    """A fast and a slow endpoint, both measured, and the former."""
    r, clock = router(endpoint("near"), endpoint("slow"), explore=0.0)
    measure(r, clock, near=0.001, slow=0.1)
    return r, r.find("near"), clock


def end_one(r: Router, clock: ManualClock, row: Row) -> None:
    now = clock.time
    r.settle(r.route(NEAR), row.outcome(now - 0.001, now, now))


def seen(row: Row) -> str:
    """What steelyard takes it for: an answer ends the doubt after a failure, a full queue is avoided without doubt."""
    r, near, clock = measured()
    end_one(r, clock, ROWS["broken before a response"])
    assert r.doubts(near)
    end_one(r, clock, row)
    if not r.doubts(near):
        return "answer"
    r, near, clock = measured()
    r.route(NEAR)
    end_one(r, clock, row)
    found = ["failure"] if r.doubts(near) else []
    r, near, clock = measured()
    for _ in range(20):
        r.route(NEAR)
    end_one(r, clock, row)
    if not r.doubts(near) and r.route(RequestFacts(region="near")).state is not near:
        found.append("full queue")
    return ", or ".join(found) or NOTHING


SERVICE = 0.02


def sheds(row: Row, waiting: int) -> bool:
    """Whether requests are rejected after some have ended so behind `waiting` others at an endpoint that serves one at
    a time."""
    r, clock = router(endpoint("near"), explore=0.0)
    for _ in range(5):
        measure(r, clock, 10, near=SERVICE)
        clock.time += 10.0
    requests = [r.route(NEAR) for _ in range(waiting)]
    for _ in range(150):
        clock.time += SERVICE
        oldest = requests.pop(0)
        r.settle(oldest, outcome(oldest.routed_at, clock.time))
        requests.append(r.route(NEAR))
    clock.time += 7.0 * SERVICE  # so that each has waited for longer than those that were answered
    for _ in range(int(MIN_LOST) + 1):
        clock.time += 0.002
        oldest = requests.pop(0)
        r.settle(oldest, row.outcome(oldest.routed_at, oldest.routed_at + SERVICE, clock.time))
    try:
        r.route(NEAR)
    except Overloaded:
        return True
    return False


def shed_from(row: Row) -> str:
    for services in (DEEP_WAIT, UNBOUNDED_WAIT):
        is_enough = [sheds(row, int(services + more)) for more in (MIN_LOST - 2.0, 3.0 * MIN_LOST)]
        if any(is_enough):
            assert is_enough == [False, True]
            return f"{services:g} services"
    return NOTHING


@each_row
def test_health_and_policies(name: str) -> None:
    row, cells = ROWS[name], CELLS[name]
    assert counted(row) == (cells["counts as"], cells["penalty"])
    assert ejected_for(row) == cells["eject"]
    assert learned(row) == cells["concurrency"]
    assert seen(row) == cells["steelyard"]
    assert shed_from(row) == cells["shedding"]


# --- retries and hedging


async def end(stage: Stage, name: str, client: Wire, worker: ScriptedWorker | int) -> None:
    """Have an attempt that was sent to the worker end as the row says, where that is not up to the worker."""
    row = ROWS[name]
    if isinstance(worker, int):
        return
    await stage.eventually(lambda: worker.requests)
    if row.kind is OutcomeKind.TIMEOUT:
        if row.has_begun:
            await client.head()
        await stage.turn()
        stage.advance(ATTEMPT + 1.0)
        await stage.turn()
        stage.advance(FIRST_BYTE + 1.0)
    elif row.kind is OutcomeKind.TUNNELLED:
        await client.head()
        client.leave()
    elif row.kind is OutcomeKind.ABANDONED:
        client.leave()


@pytest.mark.parametrize("method", [b"GET", b"POST"])
@each_row
async def test_retries(stage: Stage, name: str, method: bytes) -> None:
    row = ROWS[name]
    worker = stage.dead_port() if row.worker is None else await stage.worker(row.worker)
    timeouts = {"attempt": ATTEMPT, "first_byte": FIRST_BYTE, "body_idle": 1.0}
    await stage.serve(worker, await stage.worker(QUICK), timeouts=timeouts, retry=BUSY)
    client = await stage.client()
    request = get(b"/", *UPGRADE, method=method) if row.kind is OutcomeKind.TUNNELLED else None
    client.write(request or (get() if method == b"GET" else post(b"body")))
    await end(stage, name, client, worker)
    await stage.eventually(lambda: stage.outcomes("w0") == {row.kind.value: 1})
    assert CELLS[name]["outcome"] == f"`{row.kind.value}`"
    methods = {"all methods": (b"GET", b"POST"), "idempotent": (b"GET",), "no": ()}[CELLS[name]["retried"]]
    assert stage.cluster.counts.retried == (method in methods)
    client.leave()


@each_row
async def test_hedged_attempts(stage: Stage, name: str) -> None:
    """The second attempt ends as the row says while the first one waits."""
    row, go = ROWS[name], asyncio.Event()
    slow = await stage.worker(answering_after(go, response(b"slow")))
    worker = stage.dead_port() if row.worker is None else await stage.worker(row.worker)
    timeouts = {"first_byte": FIRST_BYTE, "body_idle": 1.0}
    await stage.serve(slow, worker, hedging={"enabled": True}, timeouts=timeouts, retry=BUSY)
    counts = stage.cluster.counts
    client = await stage.asking(slow, get(b"/", *UPGRADE) if row.kind is OutcomeKind.TUNNELLED else get())
    await stage.turn()
    stage.advance(LATE)
    if not counts.hedged:
        found = "none is sent"
    else:
        await end(stage, name, client, worker)
        await stage.eventually(lambda: stage.outcomes("w1"))
        assert stage.outcomes("w1") == {row.kind.value: 1}
        found = "wins" if counts.hedges_won else "ends both" if stage.outcomes("w0") else "the other goes on"
    go.set()
    if found == "the other goes on":
        assert (await client.response()).body == b"slow"
        assert counts.errors == {}
    assert counts.retried == 0
    client.leave()
    assert found == CELLS[name]["hedged"]
