"""The admin interface under /-/: access, validation of bodies, and figures that agree with the data path."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from aiohttp.http_parser import DeflateBuffer

from tests.support.admin_requests import LOCAL, TOKEN, local, put_policy, samples_of, status
from tests.support.stage import Stage
from tests.support.wire import Message, get, post, response


async def test_probes(stage: Stage) -> None:
    """On the traffic port without a token: 200 while an endpoint is available, else 503; then close."""
    await stage.serve(await stage.worker(response()))
    for path in (b"/-/health", b"/-/ready", b"/-/ready?x=1"):
        client = await stage.client()
        answer = await client.ask(get(path, b"X-Forwarded-For: 192.0.2.1"))
        assert (answer.status, json.loads(answer.body)) == (200, {"healthy": True, "reason": "serving"})
        assert answer.value(b"Connection") == b"close"
        assert await client.rest() == b""
    stage.cluster.router.set_enabled("w0", False)
    client = await stage.client()
    assert (await client.ask(get(b"/-/health"))).status == 503
    client = await stage.client()
    answer = await client.ask(get(b"/-/live"))
    assert (answer.status, json.loads(answer.body)) == (200, {"live": True})
    client = await stage.client()
    assert (await client.ask(get(b"/-/live", method=b"HEAD"), to_head=True)).status == 200
    assert await client.rest() == b""
    for request in (local(b"/-/health"), local(b"/-/ready")):
        assert (await stage.ask(request)).status == 503, "the same on the admin socket"


async def test_status_counters(stage: Stage) -> None:
    """Counters of the balancer and of each endpoint; connections and outcomes add up."""
    broken = stage.dead_port()
    await stage.serve(await stage.worker(response(b"x" * 10)), broken, home_region="r")
    client = await stage.client()
    for _ in range(4):
        assert (await client.ask(get())).status == 200
    report = await status(stage)
    assert (report["requests"], report["connections"], report["clients"], report["in_flight"]) == (4, 1, 1, 0)
    assert (report["draining"], report["queued"], report["abandoned"], report["errors"]) == (False, 0, 0, {})
    assert report["policy"]["name"] == "round-robin"
    up, down = report["endpoints"]
    assert (up["id"], up["region"], up["weight"], up["available"], up["in_flight"]) == ("w0", "r", 1, True, 0)
    assert up["outcomes"]["ok"] == 4 == up["latency"]["count"]
    connections = up["connections"]
    assert connections["opened"] + connections["reused"] == 4
    assert connections["opened"] - connections["closed"] == connections["idle"]
    assert (connections["leased"], connections["opening"]) == (0, 0)
    assert down["outcomes"]["refused"] == down["connections"]["failed"] == report["retried"] > 0
    assert set(up["latency"]) == {"count", "mean", "p50", "p90", "p99"}
    assert down["latency"]["p50"] is down["latency"]["mean"] is None


async def test_admin_requests_are_no_traffic(stage: Stage) -> None:
    """Those of monitoring neither hide that there is none nor keep its counts rising while it is drained."""
    await stage.serve(await stage.worker(response()), admin={"listen": "127.0.0.1:0"})
    await stage.ask(get())
    before = await status(stage)
    for client in (await stage.listen_client(), await stage.admin_client()):
        assert (await client.ask(local(b"/-/metrics"))).status == 200
    assert (await (await stage.client()).ask(get(b"/-/live"))).status == 200
    after = await status(stage)
    assert (before["requests"], after["requests"]) == (1, 1)
    assert (before["connections"], after["connections"]) == (1, 2), "that to the port for traffic"


async def test_metrics_are_prometheus_and_agree_with_status(stage: Stage) -> None:
    """The Prometheus parser accepts the text, and the figures equal those of status."""
    await stage.serve(await stage.worker(response()), stage.dead_port())
    for _ in range(4):
        await stage.ask(get())
    await stage.ask(get(b"/", b"Host: twice"))
    report = await status(stage)
    answer = await stage.ask(local(b"/-/metrics"))
    assert (answer.value(b"Content-Type") or b"").startswith(b"text/plain")
    samples = samples_of(answer.body.decode())
    assert samples["steelyard_requests_total",] == report["requests"]
    assert samples["steelyard_retries_total",] == report["retried"]
    assert samples["steelyard_abandoned_total",] == 0
    for endpoint in report["endpoints"]:
        name, connections, of_endpoint = endpoint["id"], endpoint["connections"], "steelyard_endpoint"
        for outcome, number in endpoint["outcomes"].items():
            assert samples[f"{of_endpoint}_outcomes_total", name, outcome, "r"] == number
        for event in ("opened", "reused", "failed", "closed", "lost_idle"):
            assert samples[f"{of_endpoint}_connection_events_total", name, event, "r"] == connections[event]
        for state in ("idle", "leased", "opening"):
            assert samples[f"{of_endpoint}_connections", name, "r", state] == connections[state]
        assert samples[f"{of_endpoint}_in_flight", name, "r"] == 0
        assert samples[f"{of_endpoint}_available", name, "r"] == 1
        count = endpoint["latency"]["count"]
        assert samples[f"{of_endpoint}_latency_seconds_count", name, "r"] == count
        assert samples[f"{of_endpoint}_latency_seconds_bucket", name, "+Inf", "r"] == count


async def test_put_policy(stage: Stage) -> None:
    """A name, or a table of name and options; in force for the next request and shown by GET."""
    await stage.serve(await stage.worker(response()))
    for document, name, options in [
        ("random", "random", {}),
        ({"name": "single-region", "region": "r"}, "single-region", {"region": "r"}),
        ({"name": "least-in-flight"}, "least-in-flight", {}),
    ]:
        answer = await stage.ask(put_policy(document))
        report = json.loads(answer.body)
        assert (answer.status, report["name"], report["options"]) == (200, name, options)
        assert (await stage.ask(get())).status == 200
        shown = json.loads((await stage.ask(local(b"/-/policy"))).body)
        assert (shown["name"], shown["fallback_picks"]) == (name, 0)
    assert (await status(stage))["policy"]["name"] == "least-in-flight"


@pytest.mark.parametrize(
    ("document", "code", "named"),
    [
        ("p2x", 422, "p2x"),
        ({"name": "p2x"}, 422, "p2x"),
        ({"name": "single-region"}, 422, "region"),
        ({"name": "random", "sped": 3}, 422, "sped"),
        ({"name": 5}, 422, "name"),
        (["random"], 422, ""),
        (5, 422, ""),
        (b"{random", 400, "JSON"),
        (b"", 400, "JSON"),
        (b'"\xff"', 400, "JSON"),
    ],
)
async def test_invalid_policy_changes_nothing(stage: Stage, document: Any, code: int, named: str) -> None:
    """422 names an unknown key or value, 400 is not JSON; the old policy stays in force."""
    await stage.serve(await stage.worker(response()))
    answer = await stage.ask(put_policy(document))
    assert answer.status == code
    assert named in json.loads(answer.body)["error"]
    assert (await status(stage))["policy"]["name"] == "round-robin"
    assert (await stage.ask(get())).status == 200


COMMANDS = {
    "status": local(b"/-/status"),
    "metrics": local(b"/-/metrics"),
    "policy": put_policy("random"),
    "endpoint": local(
        b"/-/endpoints", method=b"POST", body=b'{"id": "evil", "address": "http://192.0.2.1:80"}'
    ),
    "removal": local(b"/-/endpoints/w0", method=b"DELETE"),
    "reload": local(b"/-/reload", method=b"POST"),
    "health by POST": local(b"/-/health", method=b"POST"),
    "nothing": local(b"/-/nothing"),
}
BEARER = b"Authorization: Bearer " + TOKEN.encode()


def with_field(request: bytes, field: bytes) -> bytes:
    return request.replace(b"\r\n", b"\r\n" + field + b"\r\n", 1)


@pytest.mark.parametrize("token", [None, TOKEN])
@pytest.mark.parametrize("name", COMMANDS)
async def test_traffic_port_rejects_commands_without_the_token(
    stage: Stage, name: str, token: str | None
) -> None:
    """404 without the token, also for a loopback peer: a proxy on the same machine has a loopback address too."""
    worker = await stage.serve_worker(response(), admin={"token": token})
    for field in (
        b"X-A: 1",
        b"Authorization: Bearer x",
        b"Authorization: Basic " + TOKEN.encode(),
        BEARER + b"x",
    ):
        client = await stage.client()
        answer = await client.ask(with_field(COMMANDS[name], field))
        assert (answer.status, answer.body) == (404, b"404: Not Found")
        assert answer.value(b"Date") is not None
        assert await client.rest() == b""
    assert worker.connections == []
    assert (stage.control_plane.policy.name, len(stage.cluster.router.states)) == ("round-robin", 1)


@pytest.mark.parametrize("name", ["status", "policy", "endpoint", "reload"])
async def test_traffic_port_accepts_commands_with_the_token(stage: Stage, name: str) -> None:
    """From any address, through any proxy, for any Host; a repeated Authorization field is invalid."""
    await stage.serve(await stage.worker(response()), admin={"token": TOKEN})
    request = with_field(COMMANDS[name].replace(b"localhost", b"evil.example:8080"), b"Via: 1.1 proxy")
    client = await stage.client()
    assert (await client.ask(with_field(with_field(request, BEARER), BEARER))).status == 404
    client = await stage.client()
    answer = await client.ask(with_field(request, BEARER.replace(b"Authorization: B", b"AUTHORIZATION:b")))
    assert answer.status in (200, 201)


@pytest.mark.parametrize("name", ["status", "policy"])
async def test_admin_sockets_require_the_token(stage: Stage, name: str) -> None:
    await stage.serve(await stage.worker(response()), admin={"token": TOKEN, "listen": "127.0.0.1:0"})
    for connect in (stage.admin_client, stage.listen_client):
        wrong = (b"X-A: 1", BEARER + b"x", b"Authorization: Bearer \xff")
        for field, expected in (*((field, 404) for field in wrong), (BEARER, 200)):
            client = await connect()
            assert (await client.ask(with_field(COMMANDS[name], field))).status == expected


@pytest.mark.parametrize(
    "bad", [b"Host: a:99999", b"Host: xn--a", b"Host: [::1", b"Host: \xff", b"Authorization: Bearer \xff"]
)
@pytest.mark.parametrize("token", [None, TOKEN])
async def test_malformed_host_or_token(stage: Stage, bad: bytes, token: str | None) -> None:
    """404 or 400 on each listening socket, and nothing on standard error."""
    await stage.serve(await stage.worker(response()), admin={"token": token, "listen": "127.0.0.1:0"})
    request = COMMANDS["status"]
    request = request.replace(LOCAL, bad) if bad.startswith(b"Host") else with_field(request, bad)
    for connect in (stage.client, stage.listen_client):
        client = await connect()
        status = (await client.ask(request)).status
        assert status in (400, 404) or (
            connect == stage.listen_client and bad.startswith(b"Auth") and not token
        )


REMOTE_FIELDS = {
    "proxied": b"X-Forwarded-For: 192.0.2.1",
    "forwarded": b"Forwarded: for=192.0.2.1",
    "via": b"Via: 1.1 proxy",
    "real-ip": b"X-Real-IP: 192.0.2.1",
    "origin": b"Origin: http://evil.example",
    "opaque origin": b"Origin: null",
    "cross-site": b"Sec-Fetch-Site: cross-site",
    "same-site": b"Sec-Fetch-Site: same-site",
}


@pytest.mark.parametrize("name", ["status", "policy", "endpoint"])
async def test_admin_listen_rejects_proxied_and_cross_site_requests(stage: Stage, name: str) -> None:
    """`admin.listen` refuses requests that were proxied or that another site's page sends."""
    await stage.serve(await stage.worker(response()), admin={"listen": "127.0.0.1:0"})
    for field in REMOTE_FIELDS.values():
        client = await stage.listen_client()
        assert (await client.ask(with_field(COMMANDS[name], field))).status == 404, field
    for host in (b"evil.example", b"evil.example:8080", b"localhost.evil.example"):
        client = await stage.listen_client()
        assert (await client.ask(COMMANDS[name].replace(b"localhost", host))).status == 404
    for field in (b"Origin: http://localhost", b"Sec-Fetch-Site: same-origin", b"Sec-Fetch-Site: none"):
        client = await stage.listen_client()
        assert (await client.ask(with_field(COMMANDS[name], field))).status in (200, 201, 409)


@pytest.mark.parametrize("host", [b"localhost", b"LOCALHOST:80", b"127.0.0.1", b"[::1]:80"])
async def test_admin_listen_accepts_loopback_hosts(stage: Stage, host: bytes) -> None:
    """Loopback addresses and `localhost` are accepted as Host."""
    await stage.serve(await stage.worker(response()), admin={"listen": "127.0.0.1:0"})
    client = await stage.listen_client()
    assert (await client.ask(local(b"/-/status", host=b"Host: " + host))).status == 200


@pytest.mark.parametrize(
    ("authority", "host", "expected"),
    [
        (b"localhost", b"localhost", 200),
        (b"127.0.0.1:80", b"evil.example", 200),
        (b"evil.example", b"localhost", 404),
        (b"evil.example:80", b"127.0.0.1", 404),
    ],
)
async def test_admin_listen_judges_the_authority_of_an_absolute_target(
    stage: Stage, authority: bytes, host: bytes, expected: int
) -> None:
    """It replaces Host (RFC 9112 § 3.2.2)."""
    await stage.serve(await stage.worker(response()), admin={"listen": "127.0.0.1:0"})
    client = await stage.listen_client()
    head = b"GET http://%b/-/status HTTP/1.1\r\nHost: %b\r\n\r\n" % (authority, host)
    assert (await client.ask(head)).status == expected


# --- bodies


def bomb(size: int) -> bytes:
    return gzip.compress(b'"' + b" " * size + b'"', 9)


@pytest.mark.parametrize("coding", [b"gzip", b"deflate", b"br", b"identity"])
async def test_compressed_bodies_are_not_decompressed(stage: Stage, coding: bytes) -> None:
    """404 without authorization, 415 with it; aiohttp would decompress a body that it drains."""
    await stage.serve(await stage.worker(response()), admin={"token": TOKEN, "listen": "127.0.0.1:0"})
    body = bomb(1 << 20)
    request = local(b"/-/policy", b"Content-Encoding: " + coding, method=b"PUT", body=body)
    with inflating() as inflated:
        for connect in (stage.client, stage.admin_client, stage.listen_client):
            for asked, status in ((request, 404), (with_field(request, BEARER), 415)):
                client = await connect()
                assert (await client.ask(asked)).status == status
                await client.close()
    assert inflated == []
    assert stage.control_plane.policy.name == "round-robin"


@contextmanager
def inflating() -> Iterator[list[int]]:
    """Record the calls of aiohttp's decompressor."""
    calls: list[int] = []
    before = DeflateBuffer.feed_data

    def counted(self: DeflateBuffer, chunk: bytes, size: int) -> bool:
        calls.append(len(chunk))
        return before(self, chunk, size)

    DeflateBuffer.feed_data = counted  # type: ignore[method-assign]
    try:
        yield calls
    finally:
        DeflateBuffer.feed_data = before  # type: ignore[method-assign]


async def test_unauthorized_body_is_not_buffered(stage: Stage) -> None:
    """The response precedes the body, and the rest of the body is discarded."""
    await stage.serve(await stage.worker(response()), admin={"token": TOKEN})
    client = await stage.client()
    head = b"POST /-/endpoints HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1048576\r\n\r\n"
    assert (await client.ask(head)).status == 404
    (downstream,) = stage.downstreams
    assert not downstream.answering
    client.write(b"x" * 500_000)
    await client.rest()
    await client.close()


async def test_expect_100_continue(stage: Stage) -> None:
    """`Expect: 100-continue` gets 100 with the token and the final status without it."""
    await stage.serve(await stage.worker(response()), admin={"token": TOKEN})
    expecting = with_field(put_policy("random"), b"Expect: 100-continue").removesuffix(b'"random"')
    client = await stage.client()
    assert (await client.ask(expecting)).status == 404
    client = await stage.client()
    assert (await client.ask(with_field(expecting, BEARER))).status == 100
    assert json.loads((await client.ask(b'"random"')).body)["name"] == "random"


@pytest.mark.parametrize(
    ("body", "fields", "status"),
    [
        (b"[" * 100_000 + b"]" * 100_000, (), 400),
        (b"[" * 900 + b"]" * 900, (), 400),
        (b'{"name": "random", "options": ' + b"[" * 40 + b"]" * 40 + b"}", (), 400),
        (b'"random"', (b"Content-Type: application/json; charset=foo",), 200),
        (b"1" * 5000, (), 400),
        (b'"\xff"', (b"Content-Type: application/json; charset=latin-1",), 400),
    ],
)
async def test_hostile_json(stage: Stage, body: bytes, fields: tuple[bytes, ...], status: int) -> None:
    """Deep nesting, an unknown charset, a number of 5000 digits: a one-line 4xx, never 500."""
    await stage.serve(await stage.worker(response()))
    answer = await stage.ask(put_policy(body, *fields))
    assert answer.status == status
    assert status == 200 or len(json.loads(answer.body)["error"].splitlines()) == 1
    answer = await stage.ask(local(b"/-/endpoints", *fields, method=b"POST", body=body))
    assert 400 <= answer.status < 500


async def test_unknown_paths_and_methods(stage: Stage) -> None:
    """404 and 405; nothing under /-/ is forwarded."""
    worker = await stage.serve_worker(response())
    assert (await stage.ask(local(b"/-/nothing"))).status == 404
    assert (await stage.ask(local(b"/-/", method=b"POST"))).status == 405
    assert (await stage.ask(local(b"/-/status", method=b"DELETE"))).status == 405
    assert worker.connections == []


async def test_pipelined_admin_request(stage: Stage) -> None:
    """Answered in order, and the last request on its connection."""
    worker = await stage.serve_worker(response(b"first"), admin={"token": TOKEN})
    client = await stage.sending(get() + put_policy("random", BEARER) + get(b"/ghost"))
    assert (await client.response()).body == b"first"
    answer = await client.response()
    assert json.loads(answer.body)["name"] == "random"
    await client.closed()
    assert [request.line for request in worker.requests] == [b"GET / HTTP/1.1"]


async def test_chunked_admin_request_in_several_reads(stage: Stage) -> None:
    """Buffered completely before it is dispatched; an Upgrade field is ignored."""
    await stage.serve(await stage.worker(response()), admin={"token": TOKEN})
    client = await stage.client()
    head = b"PUT /-/policy HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\nUpgrade: x\r\n\r\n"
    head = with_field(head, BEARER)
    for piece in (head, b'4\r\n"ran\r\n', b'4\r\ndom"\r\n', b"0\r\n", b"\r\n"):
        await client.send(piece)
        await stage.turn(5)
    assert json.loads((await client.response()).body)["name"] == "random"


async def test_admin_body_is_limited(stage: Stage) -> None:
    """A body above 1 MiB resets the connection."""
    await stage.serve(await stage.worker(response()), admin={"token": TOKEN})
    client = await stage.client()
    client.write(put_policy(b'"' + b"x" * (2 << 20) + b'"', BEARER))
    with pytest.raises(ConnectionError):
        await client.response()


async def test_malformed_chunk_in_an_admin_request(stage: Stage) -> None:
    """A malformed chunk gets 400, and the connection is released."""
    await stage.serve(await stage.worker(response()))
    client = await stage.client()
    await client.send(
        b"PUT /-/policy HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"
    )
    assert (await client.response()).status == 400
    client.half_close()
    await client.closed()
    await stage.eventually(lambda: not stage.downstreams)


async def test_client_disconnects_within_an_admin_request(stage: Stage) -> None:
    """The command is not executed."""
    await stage.serve(await stage.worker(response()), admin={"token": TOKEN})
    client = await stage.sending(put_policy("random", BEARER)[:-3])
    await stage.eventually(lambda: stage.cluster.process.in_flight)
    stage.advance(1)
    client.reset()
    await stage.eventually(lambda: not stage.downstreams)
    assert stage.control_plane.policy.name == "round-robin"


async def test_admin_request_releases_its_client_slot(stage: Stage) -> None:
    """With `limits.clients = 1`, the client after an admin request is served at once."""
    await stage.serve(await stage.worker(response()), limits={"clients": 1}, admin={"token": TOKEN})
    for request in (get(b"/-/health"), with_field(COMMANDS["status"], BEARER), get(b"/-/status")):
        client = await stage.client()
        assert (await client.ask(request)).status in (200, 404)
        await client.close()
        assert (await stage.ask(get())).status == 200


async def answered(stage: Stage, request: bytes) -> Message:
    """The response to a request on a connection of its own."""
    client = await stage.client()
    answer = await client.ask(request)
    await client.close()
    return answer


async def test_similar_paths_are_forwarded(stage: Stage) -> None:
    """Only paths that begin with /-/ are admin requests."""
    worker = await stage.serve_worker(response())
    for target in (b"/-", b"/-x/status", b"//-/status", b"/a/-/status", b"/?/-/"):
        assert (await answered(stage, get(target))).status == 200
    assert (await answered(stage, post(b"/-/status"))).status == 200
    assert len(worker.requests) == 6
