"""Which failed requests are sent again: every kind of failure with every kind of request.

A cell of the table reads `requests that workers have got/what the client sees`. The first worker fails as the row
says, the second one answers; more than one request at workers means a retry.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from balancer.upstream.connector import FAILURES as BEFORE_BACKOFF
from tests.support.scripts import after_a_request, hang
from tests.support.stage import Stage
from tests.support.wire import (
    Script,
    ScriptedWorker,
    Wire,
    answering,
    get,
    playing,
    post,
    post_chunked,
    response,
)

OK = response(b"fine")
GONE = response(b"not here", b"X-From: bad", status=b"503 Service Unavailable")
LONG = b"x" * 200_000

TABLE = """
failure           GET      HEAD   PUT      long PUT  POST     keyed POST  chunked POST
refused           1/200    1/200  1/200    1/200     1/200    1/200       1/200
reset             2/200    2/200  2/200    1/502     1/502    2/200       1/502
closed            2/200    2/200  2/200    1/502     1/502    2/200       1/502
half a head       2/200    2/200  2/200    1/502     1/502    2/200       1/502
503               2/200    2/200  2/200    1/503     1/503    2/200       1/503
503 in chunks     2/200    2/200  2/200    1/503     1/503    2/200       1/503
503 until close   2/200    2/200  2/200    1/503     1/503    2/200       1/503
502               2/200    2/200  2/200    1/502     1/502    2/200       1/502
504               1/504    1/504  1/504    1/504     1/504    1/504       1/504
500               1/500    1/500  1/500    1/500     1/500    1/500       1/500
garbage           2/200    2/200  2/200    1/502     1/502    2/200       1/502
hangs             2/200    2/200  2/200    1/504     1/504    2/200       1/504
half a body       2/200    1/200  2/200    1/502     1/short  1/short     1/short
half a long body  1/short  1/200  1/short  1/short   1/short  1/short     1/short
"""

REQUESTS = {
    "GET": get(),
    "HEAD": get(method=b"HEAD"),
    "PUT": post(b"body", method=b"PUT"),
    "long PUT": post(LONG, method=b"PUT"),
    "POST": post(b"body"),
    "keyed POST": post(b"body", b"Idempotency-Key: 8e03978e"),
    "chunked POST": post_chunked(b"one", b"two"),
    "chunked PUT": post_chunked(b"one", b"two").replace(b"POST", b"PUT", 1),
    "PATCH": post(b"body", method=b"PATCH"),
    "DELETE": post(b"body", method=b"DELETE"),
    "OPTIONS": get(method=b"OPTIONS"),
}


def answered(status: bytes, *fields: bytes) -> Script:
    """A whole response, which has no body after HEAD."""
    whole = response(b"bad", *fields, status=status)
    return answering(lambda request: whole[:-3] if request.line.startswith(b"HEAD") else whole)


CHUNKED_503 = b"HTTP/1.1 503 No\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nbad\r\n0\r\n\r\n"
FAILURES: dict[str, Script] = {
    "reset": after_a_request(resets=True),
    "closed": after_a_request(),
    "half a head": after_a_request(b"HTTP/1.1 200 O"),
    "503": answered(b"503 Service Unavailable"),
    "503 in chunks": after_a_request(CHUNKED_503),
    "503 until close": after_a_request(b"HTTP/1.1 503 No\r\n\r\nbad"),
    "502": answered(b"502 Bad Gateway"),
    "504": answered(b"504 Gateway Timeout"),
    "500": answered(b"500 No"),
    "garbage": after_a_request(b"SSH-2.0-OpenSSH_9.2\r\n"),
    "hangs": hang,
    "half a body": after_a_request(response(b"x" * 100)[:-50]),
    "half a long body": after_a_request(response(b"x" * 20_000)[:-50]),
}


def cells() -> Iterator[tuple[str, str, int, str]]:
    """Failure, request, requests at workers, what the client sees."""
    (_, *requests), *rows = (re.split(r"  +", line) for line in TABLE.strip().splitlines())
    for failure, *entries in rows:
        for request, entry in zip(requests, entries, strict=True):
            count, _, outcome_at_client = entry.partition("/")
            yield failure, request, int(count), outcome_at_client
    yield from (("closed", request, 2, "200") for request in ("chunked PUT", "DELETE", "OPTIONS"))
    yield "closed", "PATCH", 1, "502"


async def outcome_at_client(client: Wire, *, to_head: bool) -> str:
    try:
        return str((await client.response(to_head=to_head)).status)
    except asyncio.IncompleteReadError:
        return "short"


def requests_at(*workers: ScriptedWorker) -> int:
    return sum(len(worker.requests) for worker in workers)


@pytest.mark.parametrize(("failure", "request_kind", "count", "expected"), [*cells()])
async def test_retry_table(stage: Stage, failure: str, request_kind: str, count: int, expected: str) -> None:
    """Each cell of the table, with the count of retries."""
    well = await stage.worker(OK if request_kind != "HEAD" else OK[: -len(b"fine")])
    bad = [] if failure == "refused" else [await stage.worker(FAILURES[failure])]
    first = bad[0] if bad else stage.dead_port()
    await stage.serve(first, well, retry={"idempotency_key": True}, timeouts={"attempt": 1.0})
    client = await stage.client()
    client.write(REQUESTS[request_kind])
    if failure == "hangs":
        await stage.eventually(lambda: requests_at(*bad))
        await stage.turn()
        stage.advance(1.5)
        stage.advance(24.0 if expected == "504" else 0.0)
    assert await outcome_at_client(client, to_head=request_kind == "HEAD") == expected
    assert requests_at(*bad, well) == count
    is_again = expected == "200" and not (
        request_kind == "HEAD" and failure.startswith("half a") and count == 1
    )
    assert stage.cluster.counts.retried == is_again
    bodies = {request.body for request in [*well.requests, *(worker.requests[0] for worker in bad)]}
    assert len(bodies) == 1


# --- statuses


async def test_503_keeps_its_connection(stage: Stage) -> None:
    """A complete 503 leaves its connection usable, and the second attempt takes an idle one."""
    bad, well = await stage.worker(GONE), await stage.worker(OK)
    await stage.serve(bad, well)
    client = await stage.client()
    for _ in range(8):
        assert (await client.ask(get())).body == b"fine"
    assert (len(bad.connections), len(well.connections)) == (1, 1)
    assert b"X-From" not in client.received
    assert stage.outcomes("w0") == {"error_status": len(bad.requests)}
    assert stage.cluster.counts.retried == len(bad.requests) > stage.cluster.counts.worker_errors == 0


async def test_503_of_the_last_worker_is_forwarded(stage: Stage) -> None:
    """Each worker is tried once, and the last response is forwarded."""
    workers = [await stage.worker(GONE) for _ in range(2)]
    await stage.serve(*workers)
    answer = await stage.ask(get())
    assert (answer.status, answer.body, answer.value(b"X-From")) == (503, b"not here", b"bad")
    assert [len(worker.requests) for worker in workers] == [1, 1]
    assert (stage.cluster.counts.errors, stage.cluster.counts.worker_errors) == ({}, 1)


async def test_a_busy_answer_that_the_client_gets_is_counted(stage: Stage) -> None:
    worker = await stage.worker(response(status=b"429 Busy"))
    await stage.serve(worker, retry={"busy": [429]})
    assert (await stage.ask(get())).status == 429
    assert (stage.outcomes("w0"), stage.cluster.counts.worker_errors) == ({"busy": 1}, 1)


def has_requests(worker: ScriptedWorker, number: int) -> bool:
    return len(worker.requests) == number


async def test_time_at_a_worker_is_no_wait(stage: Stage) -> None:
    """A request that has waited, and whose connection breaks after long, waits again behind the one that has got its
    place."""
    gates = [asyncio.Event() for _ in range(3)]
    last, closing = response(b"last"), response(b"fine", b"Connection: close")
    ends: list[tuple[Any, ...]] = [(gates[0], closing), (gates[1],), (gates[2], closing), (last,)]
    scripts = iter([playing(Wire.request, *steps) for steps in ends])

    async def script(wire: Wire) -> None:
        await next(scripts)(wire)

    worker = await stage.worker(script)
    await stage.serve(worker, max_in_flight=1, timeouts={"queue": 2.0})
    clients = [await stage.asking(worker, get(b"/0"))]
    for number in (1, 2):
        clients.append(await stage.sending(get(b"/%d" % number)))
        await stage.eventually(lambda: len(stage.cluster.queue) == len(clients) - 1)
    for number, passed in ((0, 0.5), (1, 1.3)):
        stage.jump(passed)
        gates[number].set()
        await stage.eventually(partial(has_requests, worker, number + 2))
    assert [request.line.split()[1] for request in worker.requests] == [b"/0", b"/1", b"/2"]
    stage.jump(0.6)
    await stage.turn()
    gates[2].set()
    assert (await clients[1].response()).body == b"last"
    assert (await clients[2].response()).body == b"fine"


async def test_503_of_the_only_worker_is_forwarded(stage: Stage) -> None:
    worker = await stage.serve_worker(GONE)
    assert (await stage.ask(get())).status == 503
    assert (len(worker.requests), stage.cluster.counts.retried) == (1, 0)


async def test_empty_statuses_disable_status_retries(stage: Stage) -> None:
    await stage.serve(await stage.worker(GONE), await stage.worker(OK), retry={"statuses": []})
    assert (await stage.ask(get())).status == 503


async def test_partial_upload_is_retried_after_an_early_503(stage: Stage) -> None:
    """The part of the body that has arrived is sent again, and the rest follows."""
    well = await stage.worker(OK)
    await stage.serve(await stage.worker(playing(Wire.head, GONE, Wire.closed)), well)
    client = await stage.sending(post(b"x" * 100, method=b"PUT")[:-60])
    await stage.eventually(lambda: stage.cluster.counts.retried)
    await client.send(b"x" * 60)
    assert (await client.response()).body == b"fine"
    assert well.requests[0].body == b"x" * 100


@pytest.mark.parametrize("fields", [(b"Connection: close",), ()])
@pytest.mark.parametrize("log", [{}, {"access": "text", "path": "/dev/null"}])
async def test_nothing_of_a_retried_response_reaches_the_client(
    stage: Stage, fields: tuple[bytes, ...], log: dict[str, Any]
) -> None:
    """Neither with `Connection: close` nor with an access log."""
    await stage.serve(await stage.worker(GONE), await stage.worker(OK), log=log)
    client = await stage.client()
    assert (await client.ask(get(b"/", *fields))).body == b"fine"
    assert b"503" not in client.received
    if stage.cluster.process.access_log is not None:
        assert stage.cluster.process.access_log.waiting + stage.cluster.process.access_log.counts.written == 1


async def test_a_retry_that_has_to_wait_is_the_next(stage: Stage) -> None:
    """It came before all that wait: they came while every endpoint was full. The oldest of them gets the place that the
    failed attempt leaves, as a retry prefers another endpoint."""
    go, begun = asyncio.Event(), list[bytes]()

    async def break_the_first(peer: Wire) -> None:
        while True:
            begun.append((await peer.request()).line.split()[1])
            if len(begun) == 1:
                await go.wait()
                return
            await peer.send(OK)

    worker = await stage.worker(break_the_first)
    await stage.serve(worker, max_in_flight=1)
    first = await stage.asking(worker, get(b"/first"))
    second = await stage.sending(get(b"/second"))
    await stage.eventually(lambda: len(stage.cluster.queue) == 1)
    third = await stage.sending(get(b"/third"))
    await stage.eventually(lambda: len(stage.cluster.queue) == 2)
    go.set()
    assert [(await client.response()).status for client in (first, second, third)] == [200, 200, 200]
    assert begun == [b"/first", b"/second", b"/first", b"/third"]


@pytest.mark.parametrize("failure", ["closed", "503", "hangs"])
async def test_late_request_is_not_retried(stage: Stage, failure: str) -> None:
    """Once the client's deadline has passed, it gets what its only worker gave, and the budget is not drawn on."""
    go = asyncio.Event()
    ends: dict[str, Script] = {
        "closed": playing(Wire.request, go),
        "503": playing(Wire.request, go, GONE),
        "hangs": playing(Wire.request, go, OK),
    }
    bad, well = await stage.worker(ends[failure]), await stage.worker(OK)
    await stage.serve(bad, well, queue={"timeout_header": "X-Timeout"}, timeouts={"attempt": 1.0})
    client = await stage.asking(bad, get(b"/", b"X-Timeout: 500"))
    stage.jump(0.6)
    if failure == "hangs":
        stage.advance(1.0)
    go.set()
    assert (await client.response()).status == {"closed": 502, "503": 503, "hangs": 200}[failure]
    assert (requests_at(well), stage.cluster.counts.retried) == (0, 0)


# --- number of attempts


def refusals(stage: Stage, count: int) -> list[int]:
    """Refused attempts of each of the endpoints."""
    return [stage.outcomes(f"w{i}").get("refused", 0) for i in range(count)]


@pytest.mark.parametrize("retries", [1, 2])
@pytest.mark.parametrize("dead", [2, 3, 6])
@pytest.mark.parametrize("kind", ["GET", "POST", "chunked POST"])
async def test_every_endpoint_is_tried_after_refusals(
    stage: Stage, kind: str, dead: int, retries: int
) -> None:
    """A refused connection counts neither against `retries` nor against the budget, whatever the method."""
    ports = [stage.dead_port() for _ in range(dead)]
    await stage.serve(
        *ports, await stage.worker(OK), retries=retries, retry={"share": 0.0, "per_second": 0.0}
    )
    for _ in range(4):
        before = refusals(stage, dead)
        assert (await stage.ask(REQUESTS[kind])).body == b"fine"
        assert all(now - then <= 1 for now, then in zip(refusals(stage, dead), before, strict=True))
    assert (stage.cluster.counts.errors, stage.cluster.retries.budget.denied) == ({}, 0)


async def test_refusals_everywhere_are_answered_after_one_try_each(stage: Stage) -> None:
    await stage.serve(*(stage.dead_port() for _ in range(5)))
    client = await stage.client()
    for times in (1, 2):
        answer = await client.ask(post(b"body", b"X-Request-ID: abc"))
        report = json.loads(answer.body)
        assert (answer.status, report["error"], report["request_id"]) == (502, "connect_failed", "abc")
        assert (refusals(stage, 5), stage.cluster.counts.retried) == ([times] * 5, 4 * times)
    assert stage.cluster.counts.errors == {"connect_failed": 2}


async def test_endpoints_in_backoff_are_not_tried_one_by_one(stage: Stage) -> None:
    """Once connects to thirty dead endpoints are known to fail, a request does not go through all of them."""
    await stage.serve(
        *(stage.dead_port() for _ in range(30)), outlier_detection={"failures": 0, "success_rate": 0.0}
    )
    for _ in range(BEFORE_BACKOFF):
        assert (await stage.ask(get())).status == 502
    assert refusals(stage, 30) == [BEFORE_BACKOFF] * 30
    retried = stage.cluster.counts.retried
    assert (await stage.ask(get())).status == 502
    assert stage.cluster.counts.retried - retried <= 1
    stage.advance(60.0)  # every backoff allows a connect again
    assert (await stage.ask(get())).status == 502
    assert [stage.pool(f"w{i}").counts.failed for i in range(30)] == [BEFORE_BACKOFF + 1] * 30


async def test_refusal_after_a_broken_connection(stage: Stage) -> None:
    """A request that dies with its worker passes all the others that died with it."""
    ports = [stage.dead_port() for _ in range(3)]
    await stage.serve(await stage.worker(after_a_request(resets=True)), *ports, await stage.worker(OK))
    for _ in range(5):  # the round robin begins at each of them once
        assert (await stage.ask(get())).body == b"fine"
    resets = stage.outcomes("w0")["reset"]
    assert stage.cluster.counts.retried == resets + sum(refusals(stage, 4)) > resets > 0


async def test_retries_limit_the_attempts_that_were_sent(stage: Stage) -> None:
    workers = [await stage.worker(after_a_request(resets=True)) for _ in range(4)]
    await stage.serve(*workers, retries=2)
    assert (await stage.ask(get())).status == 502
    assert requests_at(*workers) == 3


async def test_retry_budget(stage: Stage) -> None:
    """One retry per ten seconds here; the next request gets the worker's 503 or the balancer's 502."""
    refusing, well = await stage.worker(GONE), await stage.worker(OK)
    await stage.serve(refusing, well, retry={"share": 0.0, "per_second": 0.1})
    statuses = [(await stage.ask(get())).status for _ in range(3)]
    assert sorted(statuses) == [200, 200, 503]
    assert (stage.cluster.counts.retried, stage.cluster.retries.budget.denied) == (1, 1)
    stage.advance(10.0)
    assert 200 in [(await stage.ask(get())).status for _ in range(2)]
    assert stage.cluster.counts.retried == 2


# --- idempotency keys, bodies, attempt timeout


async def test_idempotency_key_is_ignored_by_default(stage: Stage) -> None:
    """Only the operator knows whether the workers honour keys across all of them."""
    workers = [await stage.worker(after_a_request()), await stage.worker(OK)]
    await stage.serve(*workers)
    assert (await stage.ask(REQUESTS["keyed POST"])).status == 502
    assert requests_at(*workers) == 1


@pytest.mark.parametrize(("limit", "status"), [(1000, 502), (300_000, 200), (0, 502)])
async def test_retry_body_limits_the_kept_body(stage: Stage, limit: int, status: int) -> None:
    workers = [await stage.worker(after_a_request()), await stage.worker(OK)]
    await stage.serve(*workers, retry={"body": limit})
    assert (await stage.ask(post(LONG if limit != 1000 else b"x" * 1001, method=b"PUT"))).status == status
    assert requests_at(*workers) == (2 if status == 200 else 1)


async def test_attempt_timeout_needs_another_endpoint(stage: Stage) -> None:
    """`timeouts.attempt` ends an attempt only if another can follow."""
    go = asyncio.Event()
    worker = await stage.serve_worker(playing(Wire.request, go, OK), timeouts={"attempt": 1.0})
    client = await stage.asking(worker, get())
    for _ in range(10):
        stage.advance(1.0)
    go.set()
    assert (await client.response()).body == b"fine"
    assert stage.cluster.retries.budget.denied == 0


async def test_denied_attempt_timeout_is_counted_once(stage: Stage) -> None:
    """A denied retry is counted once, not once per sweep."""
    worker = await stage.worker(hang)
    await stage.serve(
        worker, stage.dead_port(), timeouts={"attempt": 1.0}, retry={"share": 0, "per_second": 0}
    )
    client = await stage.asking(worker, get())
    for _ in range(10):
        stage.advance(1.0)
    assert (stage.cluster.retries.budget.denied, stage.cluster.counts.retried) == (1, 0)
    stage.advance(20.0)
    assert (await client.response()).status == 504
