"""Failing workers: the response to the client, the counted outcome, and retries.

`test_retries.py` has the table of retries, `test_cancellation.py` each step of a request.
"""

from __future__ import annotations

import json

from tests.support.scripts import send_then_disconnect
from tests.support.stage import Stage
from tests.support.wire import Message, Script, Wire, get, playing, post, response

OK = response(b"fine")


def check_error(answer: Message, status: int, reason: str) -> None:
    """Assert a JSON error with reason, detail and request id."""
    assert (answer.status, answer.value(b"Content-Type")) == (status, b"application/json")
    report = json.loads(answer.body)
    assert set(report) == {"error", "detail", "request_id"}
    assert report["error"] == reason
    assert report["detail"]
    assert report["request_id"]


# --- no connection


async def test_retries_can_be_disabled(stage: Stage) -> None:
    """`retries = 0`: the first failure is final."""
    worker = await stage.worker(OK)
    await stage.serve(stage.dead_port(), worker, retries=0)
    check_error(await stage.ask(get()), 502, "connect_failed")
    assert worker.requests == []


async def test_body_without_a_connection_is_bounded(stage: Stage) -> None:
    """At most the hold limit and one read are buffered; the error response still arrives."""
    await stage.serve(stage.dead_port())
    client = await stage.client()
    client.write(post(b"x" * (8 << 20)))
    check_error(await client.response(), 502, "connect_failed")
    assert client.unsent > 1 << 20


# --- before the first byte of a response


async def test_stale_connection_under_a_post(stage: Stage) -> None:
    """502 after one attempt."""
    worker = await stage.serve_worker(answering_then_dying(1))
    client = await stage.client()
    assert (await client.ask(get())).body == b"fine"
    check_error(await client.ask(post(b"body")), 502, "connection_broken")
    assert [request.line for request in worker.requests].count(b"POST / HTTP/1.1") == 1


def answering_then_dying(count: int) -> Script:
    """Answer `count` requests, read one more, and close."""
    return playing(*(Wire.request, OK) * count, Wire.request)


async def test_retry_uses_a_new_connection(stage: Stage) -> None:
    """A retry does not use an idle connection, which may be stale too."""
    workers = [await stage.worker(answering_then_dying(1)), await stage.worker(OK)]
    await stage.serve(*workers)
    client = await stage.client()
    for _ in range(3):
        assert (await client.ask(get())).body == b"fine"
    assert stage.cluster.counts.retried == 1
    assert [len(worker.connections) for worker in workers] == [1, 2]


# --- after the response head


async def test_retry_after_an_interim_response(stage: Stage) -> None:
    """After a 103 no final byte has been sent, so a GET is retried."""
    hinting = await stage.worker(send_then_disconnect(b"HTTP/1.1 103 Early Hints\r\n\r\n"))
    await stage.serve(hinting, await stage.worker(OK))
    client = await stage.client()
    assert (await client.ask(get())).status == 103
    assert (await client.response()).body == b"fine"


async def test_unread_body_does_not_block_the_next_request(stage: Stage) -> None:
    """The body came with its head and exceeds the buffer; the next request on the connection is read."""
    await stage.serve(await stage.worker(OK), limits={"buffer": 1024})
    stage.cluster.router.set_enabled("w0", False)
    client = await stage.client()
    check_error(await client.ask(post(b"x" * 4096)), 503, "no_endpoint_available")
    stage.cluster.router.set_enabled("w0", True)
    assert (await client.ask(get())).body == b"fine"
