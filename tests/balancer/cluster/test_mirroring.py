"""Mirroring over real connections: what is copied, what becomes of copies, and what is counted."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from balancer.control.admin.status_command import lines_of
from balancer.mirroring.copy_attempt import READ_LIMIT, READ_TIME
from balancer.mirroring.mirror import Mirror, copied_head
from tests.support.admin_requests import metrics, status
from tests.support.http2_client import http2_client
from tests.support.scripted_transports import Play, over_http2, values
from tests.support.scripts import holding
from tests.support.stage import Stage, endpoint, pool_of
from tests.support.wire import Wire, answering, get, playing, post, post_chunked, response

ALL = {"cluster": "shadow", "share": 1.0}
EVERY_METHOD = ["GET", "HEAD", "OPTIONS", "POST", "PUT"]


def routed(**mirror: Any) -> list[dict[str, Any]]:
    """The only route: all requests go to the top level, and are mirrored."""
    return [{"cluster": "default", "mirror": {**ALL, **mirror}}]


async def serve(stage: Stage, shadow: Any, *, keys: dict[str, Any] | None = None, **mirror: Any) -> Mirror:
    """Serve a pool that answers "main", mirrored to the pool `shadow`; returns its mirror."""
    main = await stage.worker(response(b"main"))
    if isinstance(shadow, int):
        pool: dict[str, Any] = {
            "endpoints": [{"id": "a0", "address": f"http://127.0.0.1:{shadow}", "region": "r"}]
        }
    else:
        pool = pool_of(shadow)
    await stage.serve(main, routes=routed(**mirror), clusters={"shadow": {**pool, **(keys or {})}})
    return the_mirror(stage)


def the_mirror(stage: Stage) -> Mirror:
    [mirror] = stage.control_plane.mirrors.by_route.values()
    return mirror


async def ended(stage: Stage, mirror: Mirror) -> None:
    """Wait for all copies, and assert that the mirror's pool has nothing in flight."""
    await stage.eventually(lambda: not mirror.copies)
    assert mirror.cluster.router.in_flight == 0
    await stage.eventually(lambda: not any(pool.leased for pool in mirror.cluster.pools.by_id.values()))


def sweep(stage: Stage, seconds: float) -> None:
    stage.advance(seconds)
    stage.running.named_clusters.sweep(stage.clock.at)


def outcomes(mirror: Mirror) -> dict[str, int]:
    found = mirror.cluster.router.find("a0").outcomes
    return {kind.value: number for kind, number in found.items() if number}


def reasons(mirror: Mirror) -> tuple[dict[str, int], dict[str, int]]:
    return dict(mirror.counts.skipped), dict(mirror.counts.failed)


def test_head_of_a_copy() -> None:
    """All fields stay in order but Expect; the mark of an earlier mirror is not repeated."""
    head = b"PUT /x HTTP/1.1\r\nHost: a\r\nexpect: 100-continue\r\nX-MIRRORED: no\r\nB: c\r\n\r\n"
    assert copied_head(head) == b"PUT /x HTTP/1.1\r\nX-Mirrored: 1\r\nHost: a\r\nB: c\r\n\r\n"


async def test_copy_is_the_request_with_a_mark(stage: Stage) -> None:
    """Same target and fields, id included; the answer is discarded."""
    shadow = await stage.worker(response(b"shadow"))
    mirror = await serve(stage, shadow)
    assert (await stage.ask(get(b"/a?b", b"A: b"))).body == b"main"
    await ended(stage, mirror)
    [copy], [original] = shadow.requests, stage.started_workers[1].requests
    assert copy.line == original.line == b"GET /a?b HTTP/1.1"
    assert copy.fields == ((b"X-Mirrored", b"1"), *original.fields)
    counts = mirror.counts
    assert (counts.sent, counts.answered, counts.classes) == (1, 1, {(2, 2): 1})
    assert reasons(mirror) == ({}, {})
    assert outcomes(mirror) == {"ok": 1}
    assert (mirror.cluster.counts.requests, stage.cluster.counts.requests) == (0, 1)


@pytest.mark.parametrize("body", [b"x", b"0123456789" * 1000])
async def test_bodies_are_copied(stage: Stage, body: bytes) -> None:
    """With a length, and in chunks, whose boundaries may move."""
    shadow = await stage.worker(response())
    mirror = await serve(stage, shadow, methods=EVERY_METHOD)
    assert (await stage.ask(post(body, b"Expect: 100-continue"))).body == b"main"
    await ended(stage, mirror)
    assert (await stage.ask(post_chunked(body[:1], body[:3], body))).body == b"main"
    await ended(stage, mirror)
    one, two = shadow.requests
    assert (one.body, two.body) == (body, body[:1] + body[:3] + body)
    assert one.value(b"Expect") is None
    assert one.value(b"Content-Length") == b"%d" % len(body)
    assert two.value(b"Transfer-Encoding") == b"chunked"


async def test_trailers_are_copied_as_to_the_worker(stage: Stage) -> None:
    """A chunked copy is one chunk; forbidden trailers are removed."""
    shadow = await stage.worker(response())
    mirror = await serve(stage, shadow, methods=["POST"])
    sent = get(b"/", b"Transfer-Encoding: chunked", method=b"POST")
    await stage.ask(sent + b"2\r\nab\r\n1\r\nc\r\n0\r\nA: b\r\nHost: evil\r\n\r\n")
    await ended(stage, mirror)
    assert shadow.received.endswith(b"\r\n\r\n3\r\nabc\r\n0\r\nA: b\r\n\r\n")


async def test_only_safe_methods_unless_configured(stage: Stage) -> None:
    shadow = await stage.worker(response())
    mirror = await serve(stage, shadow)
    client = await stage.client()
    for request in (post(b"x"), get(method=b"PUT"), get(method=b"OPTIONS"), get()):
        await client.ask(request)
    await client.ask(get(method=b"HEAD"), to_head=True)
    await ended(stage, mirror)
    assert [request.line[:3] for request in shadow.requests] == [b"OPT", b"GET", b"HEA"]
    assert mirror.counts.answered == 3


async def test_upgrades_are_not_copied(stage: Stage) -> None:
    shadow = await stage.worker(response())
    mirror = await serve(stage, shadow)
    await stage.ask(get(b"/", b"Connection: upgrade", b"Upgrade: websocket"))
    await stage.ask(get(b"/last"))
    await ended(stage, mirror)
    assert [request.line for request in shadow.requests] == [b"GET /last HTTP/1.1"]


async def test_share_is_drawn_for_each_request(stage: Stage) -> None:
    """Seeded: the same requests every time."""
    shadow = await stage.worker(response())
    mirror = await serve(stage, shadow, share=0.25)
    client = await stage.client()
    for number in range(200):
        await client.ask(get(b"/%d" % number))
    await ended(stage, mirror)
    copied = [request.line for request in shadow.requests]
    assert len(copied) == mirror.counts.answered
    assert 30 <= len(copied) <= 70
    assert mirror.counts.original_latency.count == len(copied)


async def test_too_long_a_body_is_not_copied(stage: Stage) -> None:
    """Known from its length, or found as it passes."""
    shadow = await stage.worker(response())
    mirror = await serve(stage, shadow, methods=["POST"], body=10)
    client = await stage.client()
    for request in (
        post(b"x" * 11),
        post_chunked(b"x" * 6, b"x" * 5),
        post(b"x" * 10),
        post_chunked(b"x" * 10),
    ):
        assert (await client.ask(request)).body == b"main"
    await ended(stage, mirror)
    assert reasons(mirror) == ({"body_too_long": 2}, {})
    assert [request.body for request in shadow.requests] == [b"x" * 10] * 2


async def test_a_request_refused_for_its_length_is_not_copied(stage: Stage) -> None:
    """By the limit of its pool, which is lower than the mirror's; in HTTP/1.1 and HTTP/2, by length or as it passes."""
    main, shadow = await stage.worker(response(b"main")), await stage.worker(response())
    await stage.serve(
        main, routes=routed(methods=["POST"]), clusters={"shadow": pool_of(shadow)}, limits={"body": 10}
    )
    mirror = the_mirror(stage)
    for request in (post(b"x" * 11), post_chunked(b"x" * 6, b"x" * 5)):
        assert (await stage.ask(request)).status == 413
    client = await http2_client(stage)
    for fields in ((), ((b"content-length", b"11"),)):
        assert (await client.ask(*fields, method=b"POST", body=b"x" * 11)).status == 413
    assert not mirror.copies
    assert reasons(mirror) == ({"incomplete": 2}, {})
    assert (await stage.ask(post(b"x" * 10))).body == b"main"
    await ended(stage, mirror)
    assert [request.body for request in shadow.requests] == [b"x" * 10]


async def test_copies_in_flight_are_bounded(stage: Stage) -> None:
    go = asyncio.Event()
    shadow = await holding(stage, go)
    mirror = await serve(stage, shadow, max_in_flight=2)
    for _ in range(4):
        assert (await stage.ask(get())).body == b"main"
    assert len(mirror.copies) == 2
    assert reasons(mirror) == ({"busy": 2}, {})
    go.set()
    await ended(stage, mirror)
    assert mirror.counts.answered == 2


async def test_full_and_unavailable_pools_are_skipped(stage: Stage) -> None:
    """Nothing waits in the mirror pool's queue."""
    go = asyncio.Event()
    mirror = await serve(stage, await holding(stage, go), keys={"limits": {"in_flight": 1}})
    for _ in range(3):
        await stage.ask(get())
    await stage.eventually(lambda: mirror.counts.skipped["full"] == 2)
    assert len(mirror.cluster.queue) == 0
    go.set()
    await ended(stage, mirror)
    mirror.cluster.router.set_enabled("a0", False)
    await stage.ask(get())
    await ended(stage, mirror)
    assert reasons(mirror) == ({"full": 2, "no_endpoint_available": 1}, {})


async def test_without_a_free_descriptor_no_connection_is_opened(stage: Stage) -> None:
    mirror = await serve(stage, await stage.worker(response()))
    group = mirror.cluster.pools.group
    assert len(group) == 2
    client = await stage.client()
    await client.ask(get(b"/1"))
    await ended(stage, mirror)
    mirror.cluster.pools.by_id["a0"].close_idle()
    for pools in group:
        pools.limit = 1
    assert (await client.ask(get(b"/2"))).body == b"main"
    await ended(stage, mirror)
    assert reasons(mirror) == ({"descriptors": 1}, {})
    assert stage.cluster.pools.open_connections == 1


async def test_failures_are_counted_by_reason(stage: Stage) -> None:
    """They are charged to the endpoint, and not tried again."""
    mirror = await serve(stage, stage.dead_port())
    assert (await stage.ask(get())).body == b"main"
    await ended(stage, mirror)
    assert reasons(mirror) == ({}, {"connect_failed": 1})
    assert mirror.counts.sent == 1


@pytest.mark.parametrize(
    ("data", "reason", "outcome"),
    [
        (b"", "connection_broken", "reset"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc", "connection_broken", "reset"),
        (b"not HTTP\r\n\r\n", "malformed_response", "reset"),
        (b"HTTP/1.1 101 S\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n", "malformed_response", "reset"),
    ],
)
async def test_broken_answers(stage: Stage, data: bytes, reason: str, outcome: str) -> None:
    mirror = await serve(stage, await stage.worker(playing(Wire.request, data)))
    assert (await stage.ask(get())).body == b"main"
    await ended(stage, mirror)
    assert reasons(mirror) == ({}, {reason: 1})
    assert outcomes(mirror) == {outcome: 1}
    assert not mirror.counts.classes


async def test_a_worker_that_hangs_is_charged_with_a_timeout(stage: Stage) -> None:
    shadow = await holding(stage, asyncio.Event())
    mirror = await serve(stage, shadow, keys={"timeouts": {"first_byte": 3}})
    assert (await stage.ask(get())).body == b"main"
    await stage.eventually(lambda: shadow.requests)
    sweep(stage, 2.5)
    assert mirror.copies
    sweep(stage, 1.0)
    assert reasons(mirror) == ({}, {"response_timeout": 1})
    await ended(stage, mirror)


async def test_long_and_endless_answers_are_cut(stage: Stage) -> None:
    """Their status and latency are known; the connection is closed, and the endpoint is not blamed."""
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    endless = b"%x\r\n%b\r\n" % (65_536, b"x" * 65_536)

    async def script(wire: Wire) -> None:
        request = await wire.request()
        await wire.send(head)
        if request.line.startswith(b"GET /slow"):
            await wire.rest()
        while True:
            await wire.send(endless)

    mirror = await serve(stage, await stage.worker(script))
    assert (await stage.ask(get(b"/long"))).body == b"main"
    await ended(stage, mirror)
    assert mirror.counts.cut == 1
    assert (await stage.ask(get(b"/slow"))).body == b"main"
    attempt = next(iter(mirror.copies))._attempt
    await stage.eventually(lambda: attempt is not None and attempt.first_byte_at)
    sweep(stage, READ_TIME + 0.5)
    await ended(stage, mirror)
    assert (mirror.counts.cut, mirror.counts.answered, mirror.counts.classes) == (2, 2, {(2, 2): 2})
    assert outcomes(mirror) == {"ok": 2}
    assert READ_LIMIT < 20 * 65_536


async def test_copy_is_compared_with_the_final_response(stage: Stage) -> None:
    """After a retry, that of the second endpoint; an answer of the balancer's own counts, too."""
    main = [await stage.worker(response(status=b"503 S")), await stage.worker(response(b"main"))]
    shadow = await stage.worker(answering(response(status=b"404 N"), response(status=b"500 I")))
    await stage.serve(*main, routes=routed(), clusters={"shadow": pool_of(shadow)})
    mirror = the_mirror(stage)
    assert (await stage.ask(get())).body == b"main"
    await ended(stage, mirror)
    assert mirror.counts.classes == {(2, 4): 1}
    for endpoint_id in ("w0", "w1"):
        stage.cluster.router.set_enabled(endpoint_id, False)
    assert (await stage.ask(get())).status == 503
    await ended(stage, mirror)
    assert mirror.counts.classes == {(2, 4): 1, (5, 5): 1}


async def test_without_a_response_there_is_nothing_to_compare(stage: Stage) -> None:
    """The client leaves before its answer: its copy runs on."""
    go = asyncio.Event()
    main, shadow = await holding(stage, go), await stage.worker(response())
    await stage.serve(main, routes=routed(), clusters={"shadow": pool_of(shadow)})
    mirror = the_mirror(stage)
    client = await stage.asking(main, get())
    await ended(stage, mirror)
    client.reset()
    await stage.eventually(lambda: stage.cluster.counts.abandoned)
    assert (mirror.counts.answered, mirror.counts.classes.total()) == (1, 0)
    go.set()


async def test_an_incomplete_request_is_not_copied(stage: Stage) -> None:
    """Malformed, or given up by its client."""
    shadow = await stage.worker(response())
    mirror = await serve(stage, shadow, methods=["POST"])
    head = get(b"/", b"Transfer-Encoding: chunked", method=b"POST")
    assert (await stage.ask(head + b"2\r\nabX")).status == 400
    client = await stage.sending(head + b"2\r\nab\r\n")
    await stage.eventually(lambda: mirror.copies)
    client.reset()
    await ended(stage, mirror)
    assert reasons(mirror) == ({"incomplete": 2}, {})
    assert shadow.received == b""


async def test_log_and_mirror_both_learn_the_end(stage: Stage, tmp_path: Any) -> None:
    log = tmp_path / "access.log"
    main, shadow = await stage.worker(response(b"main")), await stage.worker(response())
    await stage.serve(
        main, routes=routed(), clusters={"shadow": pool_of(shadow)}, log={"access": "text", "path": str(log)}
    )
    await stage.ask(get())
    await ended(stage, the_mirror(stage))
    assert the_mirror(stage).counts.classes == {(2, 2): 1}
    await stage.running.stop()
    assert len(log.read_text().splitlines()) == 1


async def test_status_and_metrics(stage: Stage) -> None:
    mirror = await serve(stage, await stage.worker(response(status=b"500 I")))
    await stage.ask(get())
    await ended(stage, mirror)
    document = await status(stage)
    [found] = document["mirrors"]
    lines = lines_of(document)
    latency = found.pop("latency")
    assert found == {
        "name": "*://*/* to shadow", "cluster": "shadow", "share": 1.0, "in_flight": 0, "skipped": {}, "sent": 1,
        "answered": 1, "cut": 0, "failed": {}, "compared": 1, "same_class": 0, "classes": {"2xx 5xx": 1},
    }  # fmt: skip
    assert latency["original"]["count"] == latency["copy"]["count"] == 1
    assert (document["requests"], document["responses"]) == (1, {"200": 1})
    *_, first, second = lines
    assert first == ("mirror *://*/* to shadow: share 1, in flight 0, sent 1, skipped: none, failed: none")
    assert second.startswith("  compared 1: same status class 0.00%, p50 ")
    text = await metrics(stage)
    of_mirror = 'mirror="shadow"'
    assert (
        f'steelyard_mirror_copies_total{{{of_mirror},reason="",result="answered",route="*://*/*"}} 1.0'
        in text
    )
    assert (
        f'steelyard_mirror_compared_total{{copy="5xx",{of_mirror},original="2xx",route="*://*/*"}} 1.0'
        in text
    )
    await stage.reload(routes=[{"cluster": "default"}])
    assert "mirrors" not in await status(stage)
    assert "steelyard_mirror" not in await metrics(stage)


async def test_reload_applies_and_keeps_counts(stage: Stage) -> None:
    """A copy that has begun ends in the pool it was sent to, also if that is removed."""
    go = asyncio.Event()
    shadow, other = await holding(stage, go), await stage.worker(response())
    mirror = await serve(stage, shadow)
    await stage.ask(get())
    await stage.eventually(lambda: shadow.requests)
    await stage.reload(routes=routed(methods=["HEAD"]))
    assert the_mirror(stage) is mirror
    await stage.ask(get())
    assert mirror.counts.sent == 1
    pools = {"other": {"endpoints": [endpoint(other, "b0")]}}
    await stage.reload(routes=[{"cluster": "default", "mirror": {**ALL, "cluster": "other"}}], clusters=pools)
    await stage.ask(get())
    await ended(stage, the_mirror(stage))
    assert len(other.requests) == 1
    server = stage.running
    server.named_clusters.sweep(stage.clock.at)
    assert len(server.named_clusters.every) == 2
    go.set()
    await ended(stage, mirror)
    assert mirror.counts.answered == 1
    server.named_clusters.sweep(stage.clock.at)
    assert len(server.named_clusters.every) == 1


async def test_shutdown_does_not_wait_for_copies(stage: Stage) -> None:
    """They are abandoned, and the endpoint is not blamed."""
    mirror = await serve(stage, await holding(stage, asyncio.Event()))
    await stage.ask(get())
    await stage.eventually(lambda: mirror.copies)
    assert await stage.running.stop()
    assert not mirror.copies
    assert reasons(mirror) == ({}, {"abandoned": 1})
    assert outcomes(mirror) == {"abandoned": 1}


async def test_copies_over_http2(stage: Stage) -> None:
    """The endpoint's transport carries copies as it carries requests."""
    plays: list[Play] = []
    bodies: list[bytes] = []

    async def script(play: Play) -> None:
        bodies.append((await play.read())[0])
        await play.head(204)
        await play.end()

    worker = over_http2(script, plays)
    await stage.start(worker)
    pool = {"endpoints": [endpoint(worker, "a0", transport="http2")]}
    await stage.serve(
        await stage.worker(response(b"main")), routes=routed(methods=EVERY_METHOD), clusters={"shadow": pool}
    )
    mirror = the_mirror(stage)
    for request in (get(), post(b"abc"), post_chunked(b"abc", b"de")):
        assert (await stage.ask(request)).body == b"main"
        await ended(stage, mirror)
    assert bodies == [b"", b"abc", b"abcde"]
    assert [values(play.fields, b"x-mirrored") for play in plays] == [[b"1"]] * 3
    assert (mirror.counts.answered, mirror.counts.classes) == (3, {(2, 2): 3})
