"""The control plane under /-/: who may use it, what it says, and that its numbers are those of the data path."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.balancer.conftest import Message, Stage, Wire, get, post, response

LOCAL = b"Host: localhost"
TOKEN = "a-token-of-some-length"


def local(
    target: bytes, *fields: bytes, method: bytes = b"GET", body: bytes = b"", host: bytes = LOCAL
) -> bytes:
    length = b"Content-Length: %d" % len(body)
    return b"\r\n".join((b"%b %b HTTP/1.1" % (method, target), host, length, *fields)) + b"\r\n\r\n" + body


def put(document: Any, *fields: bytes) -> bytes:
    body = document if isinstance(document, bytes) else json.dumps(document).encode()
    return local(b"/-/policy", *fields, method=b"PUT", body=body)


async def status(stage: Stage) -> dict[str, Any]:
    answer = await stage.ask(local(b"/-/status"))
    assert answer.status == 200
    told: dict[str, Any] = json.loads(answer.body)
    return told


async def test_health(stage: Stage) -> None:
    """200 while there is somebody to forward to, 503 while there is nobody, and the connection closes."""
    await stage.serve(await stage.worker(response()))
    client = await stage.client()
    answer = await client.ask(local(b"/-/health"))
    assert (answer.status, json.loads(answer.body)) == (200, {"healthy": True})
    assert answer.value(b"Connection") == b"close"
    assert await client.rest() == b""
    stage.unit.router.set_enabled("w0", False)
    assert (await stage.ask(local(b"/-/health"))).status == 503


async def test_status_tells_what_happened(stage: Stage) -> None:
    """Counters of the unit and of each endpoint; connections and outcomes add up."""
    broken = stage.dead_port()
    await stage.serve(await stage.worker(response(b"x" * 10)), broken, home_region="r")
    client = await stage.client()
    for _ in range(4):
        assert (await client.ask(get())).status == 200
    told = await status(stage)
    assert (told["requests"], told["connections"], told["clients"], told["in_flight"]) == (5, 2, 1, 0)
    assert (told["draining"], told["queued"], told["abandoned"], told["errors"]) == (False, 0, 0, {})
    assert told["policy"]["name"] == "round-robin"
    up, down = told["endpoints"]
    assert (up["id"], up["region"], up["weight"], up["available"], up["in_flight"]) == ("w0", "r", 1, True, 0)
    assert up["outcomes"]["ok"] == 4 == up["latency"]["count"]
    connections = up["connections"]
    assert connections["opened"] + connections["reused"] == 4
    assert connections["opened"] - connections["closed"] == connections["idle"]
    assert (connections["leased"], connections["opening"]) == (0, 0)
    assert down["outcomes"]["refused"] == down["connections"]["failed"] == told["retried"] > 0
    assert set(up["latency"]) == {"count", "mean", "p50", "p90", "p99"}
    assert down["latency"]["p50"] is down["latency"]["mean"] is None


async def test_status_while_something_is_in_flight(stage: Stage) -> None:
    """A request on its way is seen, and so is its connection."""
    go = asyncio.Event()

    async def script(wire: Wire) -> None:
        await wire.request()
        await go.wait()
        await wire.send(response())

    worker = await stage.worker(script)
    await stage.serve(worker)
    client = await stage.client()
    await client.send(get())
    await stage.eventually(lambda: worker.requests)
    told = await status(stage)
    assert told["in_flight"] == told["endpoints"][0]["in_flight"] == 1
    assert told["endpoints"][0]["connections"]["leased"] == 1
    go.set()
    assert (await client.response()).status == 200


async def test_metrics_are_prometheus_and_agree_with_status(stage: Stage) -> None:
    """Its own parser reads the text, and the numbers are those of status."""
    await stage.serve(await stage.worker(response()), stage.dead_port())
    for _ in range(4):
        await stage.ask(get())
    await stage.ask(get(b"/", b"Host: twice"))
    told = await status(stage)
    answer = await stage.ask(local(b"/-/metrics"))
    assert (answer.value(b"Content-Type") or b"").startswith(b"text/plain")
    samples = {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(answer.body.decode())
        for sample in family.samples
    }
    assert samples[("steelyard_requests_total",)] == told["requests"] + 1
    assert samples[("steelyard_retries_total",)] == told["retried"]
    assert samples[("steelyard_abandoned_total",)] == 0
    for endpoint in told["endpoints"]:
        labels = (("endpoint", endpoint["id"]),)
        region = ("region", "r")
        for outcome, number in endpoint["outcomes"].items():
            key = ("steelyard_endpoint_outcomes_total", *labels, ("outcome", outcome), region)
            assert samples[key] == number
        for event in ("opened", "reused", "failed", "closed", "lost_idle"):
            key = ("steelyard_endpoint_connection_events_total", *labels, ("event", event), region)
            assert samples[key] == endpoint["connections"][event]
        for state in ("idle", "leased", "opening"):
            key = ("steelyard_endpoint_connections", *labels, region, ("state", state))
            assert samples[key] == endpoint["connections"][state]
        assert samples[("steelyard_endpoint_in_flight", *labels, region)] == 0
        assert samples[("steelyard_endpoint_available", *labels, region)] == 1
        count = endpoint["latency"]["count"]
        assert samples[("steelyard_endpoint_latency_seconds_count", *labels, region)] == count
        bucket = ("steelyard_endpoint_latency_seconds_bucket", *labels, ("le", "+Inf"), region)
        assert samples[bucket] == count


async def test_metrics_count_errors_by_reason(stage: Stage) -> None:
    """Answers of our own, by their machine-readable reason."""
    await stage.serve(stage.dead_port())
    await stage.ask(get())
    answer = await stage.ask(local(b"/-/metrics"))
    assert b'steelyard_errors_total{reason="connect_failed"} 1.0' in answer.body


async def test_put_policy(stage: Stage) -> None:
    """A name or a table of name and options; in force from the next request on, and shown."""
    await stage.serve(await stage.worker(response()))
    for document, name, options in [
        ("random", "random", {}),
        ({"name": "single-region", "region": "r"}, "single-region", {"region": "r"}),
        ({"name": "least-in-flight"}, "least-in-flight", {}),
    ]:
        answer = await stage.ask(put(document))
        told = json.loads(answer.body)
        assert (answer.status, told["name"], told["options"]) == (200, name, options)
        assert (await stage.ask(get())).status == 200
        shown = json.loads((await stage.ask(local(b"/-/policy"))).body)
        assert (shown["name"], shown["demoted"]) == (name, 0)
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
async def test_a_bad_policy_changes_nothing(stage: Stage, document: Any, code: int, named: str) -> None:
    """422 for what is unknown, naming it; 400 for what is not JSON; the old policy stays in force."""
    await stage.serve(await stage.worker(response()))
    answer = await stage.ask(put(document))
    assert answer.status == code
    assert named in json.loads(answer.body)["error"]
    assert (await status(stage))["policy"]["name"] == "round-robin"
    assert (await stage.ask(get())).status == 200


NOT_LOCAL = {
    "proxied": local(b"/-/status", b"X-Forwarded-For: 192.0.2.1"),
    "forwarded": local(b"/-/status", b"Forwarded: for=192.0.2.1"),
    "via": local(b"/-/status", b"Via: 1.1 proxy"),
    "real-ip": local(b"/-/status", b"X-Real-IP: 192.0.2.1"),
    "rebinding": local(b"/-/status", host=b"Host: evil.example"),
    "rebinding-port": local(b"/-/status", host=b"Host: evil.example:8080"),
    "put": put("random", b"X-Forwarded-For: 192.0.2.1"),
}


@pytest.mark.parametrize("name", NOT_LOCAL)
async def test_strangers_see_nothing(stage: Stage, name: str) -> None:
    """404, as if there were nothing here: neither for a proxy's clients, nor for a page that rebinds its name."""
    worker = await stage.worker(response())
    await stage.serve(worker)
    answer = await stage.ask(NOT_LOCAL[name])
    assert (answer.status, b"steelyard" in answer.body) == (404, False)
    assert worker.connections == []
    assert stage.unit.counts.requests == 1


@pytest.mark.parametrize("name", NOT_LOCAL)
async def test_strangers_with_the_token_may(stage: Stage, name: str) -> None:
    """Authorization: Bearer, and the token of the configuration."""
    await stage.serve(await stage.worker(response()), control={"token": TOKEN})
    bearer = b"Authorization: Bearer " + TOKEN.encode()
    request = NOT_LOCAL[name]
    assert (await stage.ask(request)).status == 404
    assert (await stage.ask(request.replace(b"\r\n", b"\r\n" + bearer + b"\r\n", 1))).status == 200
    for wrong in (b"Authorization: Bearer x", b"Authorization: Basic " + TOKEN.encode(), bearer + b"x"):
        assert (await stage.ask(request.replace(b"\r\n", b"\r\n" + wrong + b"\r\n", 1))).status == 404


@pytest.mark.parametrize("host", [b"localhost", b"localhost:80", b"127.0.0.1", b"[::1]:80"])
async def test_names_of_this_machine(stage: Stage, host: bytes) -> None:
    """Its addresses and `localhost` are not another site's name."""
    await stage.serve(await stage.worker(response()))
    assert (await stage.ask(local(b"/-/health", host=b"Host: " + host))).status == 200


async def test_unknown_pages_and_methods(stage: Stage) -> None:
    """404 and 405; nothing under /-/ is ever forwarded."""
    worker = await stage.worker(response())
    await stage.serve(worker)
    assert (await stage.ask(local(b"/-/nothing"))).status == 404
    assert (await stage.ask(local(b"/-/"))).status == 404
    assert (await stage.ask(local(b"/-/status", method=b"DELETE"))).status == 405
    assert worker.connections == []


async def test_a_control_request_behind_a_forwarded_one(stage: Stage) -> None:
    """It is answered in its turn, and is the last on its connection."""
    worker = await stage.worker(response(b"first"))
    await stage.serve(worker)
    client = await stage.client()
    await client.send(get() + put("random") + get(b"/ghost"))
    assert (await client.response()).body == b"first"
    answer = await client.response()
    assert json.loads(answer.body)["name"] == "random"
    await client.closed()
    assert [request.line for request in worker.requests] == [b"GET / HTTP/1.1"]


async def test_a_chunked_control_request_in_pieces(stage: Stage) -> None:
    """Gathered whole before it is handed over; offers to upgrade or to continue are dropped."""
    await stage.serve(await stage.worker(response()))
    client = await stage.client()
    head = b"PUT /-/policy HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\nExpect: 100-continue\r\n\r\n"
    for piece in (head, b'4\r\n"ran\r\n', b'4\r\ndom"\r\n', b"0\r\n", b"\r\n"):
        await client.send(piece)
        await stage.turn(5)
    assert json.loads((await client.response()).body)["name"] == "random"


async def test_a_control_body_has_a_bound(stage: Stage) -> None:
    """More than 1 MiB for the name of a policy is an attack: the connection is reset."""
    await stage.serve(await stage.worker(response()))
    client = await stage.client()
    client.write(put(b'"' + b"x" * (2 << 20) + b'"'))
    with pytest.raises(ConnectionError):
        await client.response()


async def test_a_broken_control_request(stage: Stage) -> None:
    """A malformed chunk: 400 like anywhere else, and nothing stays behind."""
    await stage.serve(await stage.worker(response()))
    client = await stage.client()
    await client.send(
        b"PUT /-/policy HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"
    )
    assert (await client.response()).status == 400
    client.half_close()
    await client.closed()
    await stage.eventually(lambda: not stage.unit.downstreams)


async def test_a_client_that_leaves_in_the_middle_of_a_control_request(stage: Stage) -> None:
    """Nothing was begun."""
    await stage.serve(await stage.worker(response()))
    client = await stage.client()
    await client.send(put("random")[:-3])
    await stage.eventually(lambda: stage.unit.in_flight)
    stage.advance(1)
    client.reset()
    await stage.eventually(lambda: not stage.unit.downstreams)
    assert (await status(stage))["policy"]["name"] == "round-robin"


async def test_a_control_request_gives_its_place_to_the_next_client(stage: Stage) -> None:
    """With room for one client, the one after a control request is served at once."""
    await stage.serve(await stage.worker(response()), limits={"clients": 1})
    for _ in range(3):
        assert (await stage.ask(local(b"/-/health"))).status == 200
        assert (await stage.ask(get())).status == 200


async def answered(stage: Stage, request: bytes) -> Message:
    """The answer, and then nothing."""
    client = await stage.client()
    answer = await client.ask(request)
    await client.close()
    return answer


async def test_a_post_to_a_worker_is_not_taken_for_control(stage: Stage) -> None:
    """Only paths that begin with /-/ are ours."""
    worker = await stage.worker(response())
    await stage.serve(worker)
    for target in (b"/-", b"/-x/status", b"//-/status", b"/a/-/status", b"/?/-/"):
        assert (await answered(stage, get(target))).status == 200
    assert (await answered(stage, post(b"/-/status"))).status == 200
    assert len(worker.requests) == 6
