"""Spans of requests as a collector receives them: names, parents, times, attributes, and what becomes of failures."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest

from balancer.exchange.observers import RequestTrace
from balancer.http.grpc.status import NAMES
from benchmarks.harness.open_load import without_collections
from tests.support.admin_requests import status
from tests.support.collector import TAKEN, Received, spans_of
from tests.support.grpc_plays import ending, rpc
from tests.support.grpc_plays import serve_grpc as serve_rpcs
from tests.support.http2_client import http2_client
from tests.support.scripted_transports import values
from tests.support.scripts import LATE, QUICK, gated, reset_after_request
from tests.support.stage import Stage
from tests.support.wire import Message, ScriptedWorker, Wire, answering_after, get, playing, post, response

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
SPAN = "00f067aa0ba902b7"
PARENT = f"traceparent: 00-{TRACE}-{SPAN}-01".encode()

BUSY = response(b"no", status=b"503 Service Unavailable")


class Traced:
    """A stage whose sampled requests are exported to `collector`."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.collector: ScriptedWorker

    async def serve(
        self, *workers: ScriptedWorker | int, tracing: dict[str, Any] | None = None, **more: Any
    ) -> None:
        self.collector = await self.stage.worker(TAKEN)
        endpoint = f"http://127.0.0.1:{self.collector.port}"
        keys = {"endpoint": endpoint, "sample": 1.0, "trust": "all"} | (tracing or {})
        await self.stage.serve(*workers, tracing=keys, **more)

    async def spans(self) -> list[Received]:
        return await spans_of(self.stage, self.collector)


@pytest.fixture
def traced(stage: Stage) -> Traced:
    return Traced(stage)


def span_named_by(request: Message) -> str:
    """The span id that a worker has received."""
    return (request.value(b"traceparent") or b"").decode().split("-")[2]


def of_kind(spans: list[Received], kind: str) -> list[Received]:
    return [span for span in spans if span.kind == kind]


def named(spans: list[Received], name: str) -> list[Received]:
    return [span for span in spans if span.name == name]


async def test_request_has_server_attempt_and_connect_spans(stage: Stage, traced: Traced) -> None:
    """In one trace, nested; the worker gets the attempt's span as its parent."""
    go = asyncio.Event()
    worker = await stage.worker(answering_after(go))
    await traced.serve(worker)
    client = await stage.asking(worker, get(b"/a/b?x=1&sig=secret", b"User-Agent: test/1"))
    stage.jump(0.25)
    go.set()
    assert (await client.response()).status == 200
    spans = await traced.spans()
    [server], [attempt], [connect] = (
        of_kind(spans, "server"),
        of_kind(spans, "client"),
        named(spans, "connect"),
    )
    assert {span.trace_id for span in spans} == {server.trace_id}
    assert (server.parent_id, attempt.parent_id, connect.parent_id) == ("", server.id, attempt.id)
    assert worker.requests[0].value(b"traceparent") == f"00-{server.trace_id}-{attempt.id}-03".encode()
    assert [span.duration for span in (server, attempt, connect)] == pytest.approx(
        [0.25, 0.25, 0.0], abs=1e-5
    )
    assert {span.status for span in spans} == {"unset"}
    assert (server.name, attempt.name) == ("GET", "GET")
    assert server.attributes == {
        "http.request.method": "GET",
        "http.response.status_code": 200,
        "url.path": "/a/b",
        "url.query": "x=1&sig=REDACTED",
        "url.scheme": "http",
        "server.address": "example.org",
        "client.address": "127.0.0.1",
        "network.peer.address": "127.0.0.1",
        "network.protocol.version": "1.1",
        "user_agent.original": "test/1",
        "steelyard.request_id": (worker.requests[0].value(b"X-Request-ID") or b"").decode(),
        "steelyard.outcome": "ok",
        "steelyard.policy": "round-robin",
        "steelyard.attempts": 1,
        "steelyard.endpoint": "w0",
        "steelyard.region": "r",
    }
    assert attempt.attributes == {
        "http.request.method": "GET",
        "http.response.status_code": 200,
        "url.full": f"http://127.0.0.1:{worker.port}/a/b?x=1&sig=REDACTED",
        "server.address": "127.0.0.1",
        "server.port": worker.port,
        "steelyard.outcome": "ok",
        "steelyard.policy": "round-robin",
        "steelyard.attempt": "first",
        "steelyard.endpoint": "w0",
        "steelyard.region": "r",
        "steelyard.connection": "new",
        "steelyard.pick.reasons": ["in-turn"],
        "steelyard.pick.explanation": "in-turn(w0) -> w0",
    }
    assert server.resource["service.name"] == "steelyard"


async def test_spans_have_unix_time(stage: Stage, traced: Traced) -> None:
    """Whatever the proxy's clock says; a span begins with the head's first byte."""
    await traced.serve(await stage.worker(QUICK))
    spans = stage.cluster.process.tracing
    assert spans is not None
    assert spans.spans is not None
    offset = spans.spans.offset()
    client = await stage.client()
    request = get()
    await client.send(request[:20])
    await stage.eventually(lambda: any(stage.heads_begun()))
    stage.jump(2.0)
    await client.send(request[20:])
    await client.response()
    [server] = of_kind(await traced.spans(), "server")
    assert server.duration == pytest.approx(2.0, abs=1e-5)
    assert server.start == pytest.approx(1000.0 + offset, abs=60.0)


async def test_clients_trace_is_continued(stage: Stage, traced: Traced) -> None:
    """The server span is a child of the client's span, in its trace, with its tracestate."""
    worker = await stage.worker(QUICK)
    await traced.serve(worker, tracing={"sample": 0.0})
    await stage.ask(get(b"/", PARENT, b"tracestate: a=1", b"tracestate: b=2"))
    spans = await traced.spans()
    [server] = of_kind(spans, "server")
    assert (server.trace_id, server.parent_id) == (TRACE, SPAN)
    assert {(span.trace_id, span.tracestate) for span in spans} == {(TRACE, "a=1,b=2")}
    assert worker.requests[0].value(b"tracestate") == b"a=1,b=2"
    assert (
        worker.requests[0].value(b"traceparent") == f"00-{TRACE}-{of_kind(spans, 'client')[0].id}-01".encode()
    )


async def test_unsampled_requests_have_no_spans(stage: Stage, traced: Traced) -> None:
    """Nor an exchange of their own class; the worker gets a traceparent all the same."""
    worker = await stage.worker(QUICK)
    await traced.serve(worker, tracing={"sample": 0.0})
    client = await stage.client()
    for line in ((), (PARENT[:-2] + b"00",), (PARENT, PARENT)):
        assert (await client.ask(get(b"/", *line))).status == 200
    assert [(request.value(b"traceparent") or b"")[-2:] for request in worker.requests] == [
        b"02",
        b"00",
        b"02",
    ]
    assert await traced.spans() == []


async def test_untrusted_client_cannot_force_sampling(stage: Stage, traced: Traced) -> None:
    """Nor choose the id of a trace: by default, only peers in `trusted_proxies` are believed."""
    worker = await stage.worker(QUICK)
    await traced.serve(worker, tracing={"sample": 0.0, "trust": "proxies"})
    await stage.ask(get(b"/", PARENT, b"tracestate: a=1"))
    await stage.reload(trusted_proxies=("127.0.0.0/8",))
    await stage.ask(get(b"/", PARENT))
    traces = [(request.value(b"traceparent") or b"")[3:35] for request in worker.requests]
    assert [trace == TRACE.encode() for trace in traces] == [False, True]
    first = worker.requests[0]
    assert ((first.value(b"traceparent") or b"")[-2:], first.value(b"tracestate")) == (b"02", None)
    assert len(of_kind(await traced.spans(), "server")) == 1


async def test_wait_in_the_queue_has_a_span(stage: Stage, traced: Traced) -> None:
    """It ends when the attempt begins."""
    go = asyncio.Event()
    worker = await stage.worker(gated(go))
    await traced.serve(worker, max_in_flight=1)
    first, second = await stage.client(), await stage.client()
    await first.send(get(b"/first"))
    await stage.eventually(lambda: worker.requests)
    await second.send(get(b"/second"))
    await stage.eventually(lambda: len(stage.cluster.queue) == 1)
    stage.jump(0.5)
    go.set()
    assert (await second.response()).body == b"/second"
    assert (await first.response()).body == b"/first"
    spans = await traced.spans()
    [queue] = named(spans, "queue")
    [server] = [span for span in of_kind(spans, "server") if span.attributes["url.path"] == "/second"]
    [attempt] = [span for span in of_kind(spans, "client") if span.parent_id == server.id]
    assert (queue.parent_id, queue.kind) == (server.id, "internal")
    assert queue.duration == pytest.approx(0.5, abs=1e-5)
    assert queue.attributes == {"steelyard.outcome": "served", "steelyard.level": 0}
    assert attempt.start == pytest.approx(queue.end, abs=1e-5)


async def test_wait_in_vain(stage: Stage, traced: Traced) -> None:
    """The queue's span and the request's say why; there is no attempt."""
    go = asyncio.Event()
    worker = await stage.worker(gated(go))
    await traced.serve(worker, max_in_flight=1, timeouts={"queue": 1.0}, trusted_proxies=("127.0.0.1",))
    first, second, third = await stage.client(), await stage.client(), await stage.client()
    await first.send(get(b"/first"))
    await stage.eventually(lambda: worker.requests)
    await second.send(get(b"/second"))
    await third.send(get(b"/third"))
    await stage.eventually(lambda: len(stage.cluster.queue) == 2)
    third.leave()
    await stage.eventually(lambda: len(stage.cluster.queue) == 1)
    stage.advance(1.1)
    assert (await second.response()).status == 503
    go.set()
    await first.response()
    spans = await traced.spans()
    assert {span.attributes["steelyard.outcome"]: span.status for span in named(spans, "queue")} == {
        "queue_timeout": "error",
        "abandoned": "unset",
    }
    ends = {span.attributes["url.path"]: span for span in of_kind(spans, "server")}
    assert ends["/second"].attributes["error.type"] == "queue_timeout"
    assert (ends["/second"].status, ends["/second"].description) == (
        "error",
        "queue_timeout: every endpoint stayed full for 1 s",
    )
    assert ends["/third"].attributes["steelyard.outcome"] == "abandoned"
    assert "http.response.status_code" not in ends["/third"].attributes
    assert len(of_kind(spans, "client")) == 1


async def test_hedged_and_retried_request(stage: Stage, traced: Traced) -> None:
    """Late at w0, hedged at w1; w1 says 503 and w0 breaks, so w2 is tried. Every worker gets a span of its own."""
    go = asyncio.Event()
    reset_late = playing(Wire.request, go, Wire.reset)
    workers = [await stage.worker(reset_late), await stage.worker(BUSY), await stage.worker(QUICK)]
    await traced.serve(*workers, hedging={"enabled": True}, retries=3)
    client = await stage.sending(get(b"/", PARENT))
    await stage.eventually(lambda: workers[0].requests)
    stage.advance(LATE)
    await stage.eventually(lambda: stage.outcomes("w1") == {"error_status": 1})
    stage.jump(0.2)
    go.set()
    assert (await client.response()).body == b"quick"
    spans = await traced.spans()
    [server], attempts = of_kind(spans, "server"), of_kind(spans, "client")
    assert [span_named_by(worker.requests[0]) for worker in workers] == [span.id for span in attempts]
    assert len({span.id for span in spans}) == len(spans)
    assert {span.parent_id for span in attempts} == {server.id}
    names = ("endpoint", "attempt", "outcome")
    assert [tuple(span.attributes[f"steelyard.{name}"] for name in names) for span in attempts] == [
        ("w0", "first", "reset"),
        ("w1", "hedge", "error_status"),
        ("w2", "retry", "ok"),
    ]
    assert [span.attributes.get("http.request.resend_count") for span in attempts] == [None, 1, 2]
    assert [span.attributes.get("error.type") for span in attempts] == ["connection_broken", "503", None]
    assert [span.status for span in attempts] == ["error", "error", "unset"]
    assert (server.status, server.attributes["steelyard.attempts"]) == ("unset", 3)
    assert server.attributes["steelyard.endpoint"] == "w2"


async def test_losing_attempt_ends_after_the_request(stage: Stage, traced: Traced) -> None:
    """Its span is marked, and as long as the worker took."""
    go = asyncio.Event()
    workers = [await stage.worker(answering_after(go)), await stage.worker(QUICK)]
    await traced.serve(*workers, hedging={"enabled": True})
    client = await stage.sending(get())
    await stage.eventually(lambda: workers[0].requests)
    stage.advance(LATE)
    assert (await client.response()).body == b"quick"
    stage.jump(2.0)
    go.set()
    await stage.eventually(lambda: stage.outcomes("w0") == {"ok": 1})
    spans = await traced.spans()
    [server], [lost, won] = of_kind(spans, "server"), of_kind(spans, "client")
    assert (lost.attributes["steelyard.attempt"], won.attributes["steelyard.attempt"]) == ("first", "hedge")
    assert (lost.attributes["steelyard.lost"], "steelyard.lost" in won.attributes) == (True, False)
    assert lost.duration == pytest.approx(LATE + 2.0, abs=1e-5)
    assert (lost.parent_id, lost.trace_id, lost.status) == (server.id, server.trace_id, "unset")
    assert server.end < lost.end


async def test_refused_connection(stage: Stage, traced: Traced) -> None:
    """The connect span fails with its attempt; the retry succeeds."""
    await traced.serve(stage.dead_port(), await stage.worker(QUICK))
    assert (await stage.ask(get())).status == 200
    spans = await traced.spans()
    failed, retried = of_kind(spans, "client")
    connects = {span.parent_id: span for span in named(spans, "connect")}
    assert (connects[failed.id].status, connects[retried.id].status) == ("error", "unset")
    assert "refused" in connects[failed.id].description.lower()
    assert (failed.attributes["steelyard.outcome"], failed.attributes["error.type"]) == (
        "refused",
        "connect_failed",
    )
    assert failed.attributes["steelyard.connection"] == "-"
    assert "http.response.status_code" not in failed.attributes


async def test_reused_connection_has_no_connect_span(stage: Stage, traced: Traced) -> None:
    await traced.serve(await stage.worker(QUICK))
    client = await stage.client()
    await client.ask(get())
    await client.ask(get())
    spans = await traced.spans()
    assert [span.attributes["steelyard.connection"] for span in of_kind(spans, "client")] == ["new", "reused"]
    assert len(named(spans, "connect")) == 1


FAILURES: dict[str, tuple[Any, bytes, int, str, str | None, str, str]] = {
    "worker's error": (BUSY, get(), 503, "error_status", "503", "error", "error"),
    "client's mistake": (response(b"", status=b"404 Not Found"), get(), 404, "ok", None, "unset", "error"),
    "broken": (reset_after_request, post(b"x"), 502, "reset", "connection_broken", "error", "error"),
}


@pytest.mark.parametrize("kind", FAILURES)
async def test_status_of_spans(stage: Stage, traced: Traced, kind: str) -> None:
    """4xx is an error of an attempt, not of the balancer's own span (semantic conventions)."""
    script, request, status, outcome, error, *statuses = FAILURES[kind]
    await traced.serve(await stage.worker(script), retries=0)
    assert (await stage.ask(request)).status == status
    spans = await traced.spans()
    [server], [attempt] = of_kind(spans, "server"), of_kind(spans, "client")
    assert [server.status, attempt.status] == statuses
    assert server.attributes["http.response.status_code"] == status
    assert server.attributes["steelyard.outcome"] == outcome
    assert server.attributes.get("error.type") == error


async def test_unknown_method(stage: Stage, traced: Traced) -> None:
    """It cannot name spans."""
    await traced.serve(await stage.worker(QUICK))
    await stage.ask(get(method=b"PROPFIND"))
    [server] = of_kind(await traced.spans(), "server")
    assert (server.name, server.attributes["http.request.method"]) == ("HTTP", "_OTHER")
    assert server.attributes["http.request.method_original"] == "PROPFIND"


async def test_trusted_proxy_tells_client_and_scheme(stage: Stage, traced: Traced) -> None:
    await traced.serve(await stage.worker(QUICK), trusted_proxies=("127.0.0.1",))
    await stage.ask(get(b"/", b"X-Forwarded-For: 203.0.113.9, 10.0.0.1", b"X-Forwarded-Proto: https, http"))
    [server] = of_kind(await traced.spans(), "server")
    assert server.attributes["client.address"] == "203.0.113.9"
    assert server.attributes["network.peer.address"] == "127.0.0.1"
    assert server.attributes["url.scheme"] == "https"


async def test_picks_are_explained_for_sampled_requests_only(stage: Stage, traced: Traced) -> None:
    """Tracing leaves no explanation switched on, and uses the one that is."""
    await traced.serve(await stage.worker(QUICK))
    await stage.ask(get())
    assert stage.cluster.router.trace is None
    stage.control_plane.explanations.start(60.0, 10)
    await stage.ask(get())
    assert stage.control_plane.explanations.trace.picks == 1
    spans = await traced.spans()
    assert [span.attributes["steelyard.pick.reasons"] for span in of_kind(spans, "client")] == [
        ["in-turn"]
    ] * 2


async def test_streams_of_http2(stage: Stage, traced: Traced) -> None:
    """Each stream continues its own trace; the fields of the client's last request are cached."""
    worker = await stage.worker(QUICK)
    await traced.serve(worker, tracing={"sample": 0.0})
    client = await http2_client(stage)
    name, other = b"traceparent", PARENT[13:].replace(b"4bf", b"5bf")
    for value in (PARENT[13:], other, PARENT[13:-2] + b"00"):
        assert (await client.ask((name, value), (b"tracestate", b"a=1"))).status == 200
    spans = await traced.spans()
    servers, attempts = of_kind(spans, "server"), of_kind(spans, "client")
    assert [span.trace_id for span in servers] == [TRACE, TRACE.replace("4bf", "5bf")]
    assert {span.attributes["network.protocol.version"] for span in servers} == {"2"}
    assert [span.id for span in attempts] == [span_named_by(request) for request in worker.requests[:2]]
    assert [request.value(b"tracestate") for request in worker.requests] == [b"a=1"] * 3


async def test_rpc_has_its_status(stage: Stage, traced: Traced) -> None:
    """A status that HTTP has as 5xx is an error, though HTTP's own is 200."""
    collector = await stage.worker(TAKEN)
    tracing = {"endpoint": f"http://127.0.0.1:{collector.port}", "sample": 1.0}
    (plays,) = await serve_rpcs(stage, ending(NAMES.index("UNAVAILABLE")), tracing=tracing, retries=0)
    client = await http2_client(stage)
    await client.answer(rpc(client))
    spans = await spans_of(stage, collector)
    [server], [attempt] = of_kind(spans, "server"), of_kind(spans, "client")
    assert server.attributes["rpc.response.status_code"] == "UNAVAILABLE"
    assert server.attributes["http.response.status_code"] == 200
    assert (server.status, attempt.status) == ("error", "error")
    assert attempt.attributes["steelyard.outcome"] == "error_status"
    (parent,) = values(plays[0].fields, b"traceparent")
    assert parent.decode().split("-")[2] == attempt.id


async def test_route_to_a_pool(stage: Stage, traced: Traced) -> None:
    """The pool has a name; the request keeps the path that the client asked for, the attempt has the worker's."""
    worker = await stage.worker(QUICK)
    pool = {"endpoints": [{"id": "a", "address": f"http://127.0.0.1:{worker.port}"}], "policy": "random"}
    route = {"prefix": "/api", "cluster": "api", "strip_prefix": True}
    await traced.serve(await stage.worker(QUICK), routes=[route], clusters={"api": pool})
    await stage.ask(get(b"/api/x?y=1", b"tracestate: a=1", PARENT))
    spans = await traced.spans()
    [server], [attempt] = of_kind(spans, "server"), of_kind(spans, "client")
    assert (server.attributes["url.path"], server.attributes["url.query"]) == ("/api/x", "y=1")
    assert attempt.attributes["url.full"] == f"http://127.0.0.1:{worker.port}/x?y=1"
    assert server.attributes["steelyard.cluster"] == attempt.attributes["steelyard.cluster"] == "api"
    assert attempt.attributes["steelyard.policy"] == "random"
    assert worker.requests[0].line == b"GET /x?y=1 HTTP/1.1"
    assert span_named_by(worker.requests[0]) == attempt.id
    assert server.trace_id == TRACE
    document = await status(stage)
    assert document["tracing"] is not None
    assert "tracing" not in document["clusters"][0], "the spans are those of the process"


async def mirrored(stage: Stage) -> tuple[ScriptedWorker, dict[str, Any]]:
    """A worker that gets copies of all requests, and the configuration for that."""
    shadow = await stage.worker(QUICK)
    pool = {"endpoints": [{"id": "a", "address": f"http://127.0.0.1:{shadow.port}"}]}
    routes = [{"cluster": "default", "mirror": {"cluster": "shadow", "share": 1.0}}]
    return shadow, {"routes": routes, "clusters": {"shadow": pool}}


async def test_mirrored_copy_names_a_span_of_its_own(stage: Stage) -> None:
    """In the same trace, if nothing is exported."""
    shadow, keys = await mirrored(stage)
    worker = await stage.worker(QUICK)
    await stage.serve(worker, tracing={"enabled": True, "trust": "all"}, **keys)
    await stage.ask(get(b"/", PARENT))
    await stage.eventually(lambda: shadow.requests)
    [original], [copy] = worker.requests, shadow.requests
    assert len({SPAN, span_named_by(original), span_named_by(copy)}) == 3
    assert (copy.value(b"traceparent") or b"").startswith(b"00-" + TRACE.encode())


async def test_mirrored_copy_is_within_the_exported_request(stage: Stage, traced: Traced) -> None:
    """A copy has no span: one that only its worker knew would be missing in the trace."""
    shadow, keys = await mirrored(stage)
    await traced.serve(await stage.worker(QUICK), **keys)
    await stage.ask(get(b"/", PARENT))
    await stage.eventually(lambda: shadow.requests)
    [server] = of_kind(await traced.spans(), "server")
    assert span_named_by(shadow.requests[0]) == server.id


async def test_nothing_is_left_behind(stage: Stage, traced: Traced) -> None:
    """A traced exchange is freed without the garbage collector, as every exchange is."""
    await traced.serve(await stage.worker(QUICK))
    client = await stage.client()
    await client.ask(get())
    with without_collections():
        await client.ask(get())
        await client.ask(get())
        assert [one for one in gc.get_objects() if isinstance(one, RequestTrace)] == []
