"""Routes by the model that a body names: what is chosen, what has no model, and what becomes of the body meanwhile."""

from __future__ import annotations

import gzip
import json
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from balancer.__main__ import main
from balancer.config.loading import Settings
from balancer.config.schema.routes import listed
from balancer.config.warnings import route_warnings
from tests.support.admin_requests import status
from tests.support.command_line import complaint
from tests.support.http2_client import fields, http2_client
from tests.support.log_entries import RecordingLog
from tests.support.stage import Stage, pool_of
from tests.support.wire import Message, ScriptedWorker, fault_of, get, post, post_chunked, response

LLAMA: dict[str, Any] = {"model": "llama-3", "cluster": "llama"}
QWEN: dict[str, Any] = {"model": "qwen", "cluster": "qwen"}
OTHERS: dict[str, Any] = {"cluster": "default"}
BOUND = 1 << 20


def naming(model: object, **keys: Any) -> bytes:
    return json.dumps({"prompt": '"model": "qwen"', "model": model, **keys}).encode()


A_LLAMA, A_QWEN = naming("llama-3"), naming("qwen")


async def serve(stage: Stage, *routes: Any, llama: Any = None, **keys: Any) -> dict[str, ScriptedWorker]:
    """Serve two models and a worker for the rest; each worker answers its name."""
    workers = {name: await stage.worker(response(name.encode())) for name in ("main", "llama", "qwen")}
    clusters = {"llama": pool_of(workers["llama"], **(llama or {})), "qwen": pool_of(workers["qwen"])}
    routes = routes or (LLAMA, QWEN, OTHERS)
    await stage.serve(workers["main"], routes=routes, clusters=clusters, **keys)
    return workers


def by(answer: Message) -> str:
    assert answer.status == 200
    return answer.body.decode()


async def test_model_chooses_the_cluster(stage: Stage) -> None:
    """On one connection, with a length, in chunks, and in pieces; workers get the bodies as they came."""
    workers = await serve(stage)
    client = await stage.client()
    odd = b' {"model": "llama-\\u0033", "stream": 1, "prompt": {}}'
    requests = post(odd), post(A_QWEN), post_chunked(A_LLAMA[:9], A_LLAMA[9:])
    answers = [await client.ask(request) for request in requests]
    whole = post(A_QWEN)
    for begin, end in pairwise((0, 30, len(whole) - 5, len(whole))):
        await client.send(whole[begin:end])
        await stage.turn()
    answers.append(await client.response())
    assert [by(answer) for answer in answers] == ["llama", "qwen", "llama", "qwen"]
    assert workers["llama"].requests[0].body == odd
    assert [request.body for request in workers["qwen"].requests] == [A_QWEN] * 2
    assert (await status(stage))["requests"] == 4


async def test_pipelined_requests_are_answered_in_order(stage: Stage) -> None:
    await serve(stage)
    client = await stage.sending(post(A_QWEN) + get() + post_chunked(A_LLAMA) + post(b"{}") + post(A_LLAMA))
    assert [by(await client.response()) for _ in range(5)] == ["qwen", "main", "llama", "main", "llama"]


async def test_streams_of_http2_are_routed_each_by_its_body(stage: Stage) -> None:
    await serve(stage)
    client = await http2_client(stage)
    streams = [client.request(method=b"POST", body=body) for body in (A_LLAMA, A_QWEN)]
    empty = client.request(method=b"POST", body=None)
    late, longest = (client.begin(fields(method=b"POST")) for _ in range(2))
    client.send(longest, naming("llama-3", pad="x" * (BOUND - 100)), is_last=True)
    for piece in (A_QWEN[:10], A_QWEN[10:], b""):
        await stage.turn()
        client.send(late, piece, is_last=not piece)
    answers = [(await client.answer(stream)).body for stream in (*streams, empty, late, longest)]
    assert answers == [b"llama", b"qwen", b"main", b"qwen", b"llama"]


FILE = b"Content-Type: multipart/form-data; boundary=x"
DEEP = b'{"model": "llama-3", "x": %b}' % (b"[" * 10_000 + b"]" * 10_000)
NAMELESS = rb"""
{"model": "llama-3"
{"model": "llama-3"} x
{"model": ["llama-3"]}
{"model": "llama-3", "model": "llama-4"}
{"Model": "llama-3"}
["llama-3"]""".split(b"\n")[1:]
GZIP = gzip.compress(A_LLAMA), b"Content-Encoding: gzip"
FILES = (A_LLAMA, FILE), (b"x" * (BOUND + 1), FILE)


@pytest.mark.parametrize("given", [*zip(NAMELESS), (b'{"model": "llama-\xff"}',), (DEEP,), GZIP, *FILES])
async def test_body_without_a_model_takes_the_next_route(stage: Stage, given: tuple[bytes, ...]) -> None:
    workers = await serve(stage)
    assert by(await stage.ask(post(*given))) == "main"
    assert workers["main"].requests[0].body == given[0]


async def test_without_another_route_it_is_404(stage: Stage) -> None:
    """The body was read, so the connection stays; after a malformed one it does not."""
    await serve(stage, LLAMA, OTHERS | {"prefix": "/x"})
    await stage.reload(endpoints=[], routes=[LLAMA])
    client = await stage.client()
    for request in (post(A_QWEN), post_chunked(b"{}"), get()):
        assert fault_of(await client.ask(request))[:2] == (404, "no_route")
    assert by(await client.ask(post(A_LLAMA))) == "llama"
    malformed = await client.ask(post_chunked(b"{}").replace(b"}", b"}}"))
    assert fault_of(malformed)[:2] == (400, "malformed_body")


async def test_own_errors_have_the_form_of_openai_where_all_clusters_are_for_inference(stage: Stage) -> None:
    """Those of the listener, too, which has no endpoints itself; and they say that no route matches the model."""
    worker = (await serve(stage, LLAMA, QWEN))["llama"]
    llm = pool_of(worker, kind="inference", policy="random")
    for clusters, is_openai in (({"llama": llm}, True), ({"llama": llm, "web": pool_of(worker)}, False)):
        await stage.reload(endpoints=[], routes=[LLAMA], clusters=clusters)
        client = await stage.client()
        for request, code, end in (
            (post(A_QWEN), "no_route", "path and model"),
            (get(), "no_route", "host and path"),
            (post(naming("llama-3", prompt="x" * BOUND)), "body_too_large", "bytes of body"),
        ):
            told = json.loads((await client.ask(request)).body)
            found = (
                (told["error"]["code"], told["error"]["message"])
                if is_openai
                else (told["error"], told["detail"])
            )
            assert found[0] == code
            assert end in found[1]


async def test_most_specific_route_is_taken(stage: Stage) -> None:
    """A model counts less than a field or a longer path, and more than a method; of others no body is awaited."""
    gold = {"headers": {"x-tier": "gold"}, "cluster": "qwen"}
    await serve(stage, LLAMA, {"methods": ["POST"], "cluster": "qwen"}, gold, {"prefix": "/files", **OTHERS})
    assert by(await stage.ask(post(A_LLAMA))) == "llama"
    assert by(await stage.ask(post(b"{}"))) == "qwen"
    assert by(await stage.ask(post(A_LLAMA, b"X-Tier: gold"))) == "qwen"
    client = await stage.client()
    await client.send(get(b"/files", b"Content-Length: 5", b"Expect: 100-continue", method=b"POST"))
    await stage.eventually(lambda: stage.cluster.router.in_flight)
    await client.send(b"hello")
    assert by(await client.response()) == "main"


async def test_body_is_asked_for_with_100_continue(stage: Stage) -> None:
    workers = await serve(stage)
    client = await stage.sending(post(A_LLAMA, b"Expect: 100-continue")[: -len(A_LLAMA)])
    assert (await client.head()).status == 100
    await client.send(A_LLAMA)
    assert by(await client.response()) == "llama"
    assert workers["llama"].requests[0].value(b"Expect") is None


@pytest.mark.parametrize("framing", [b"Content-Length: %d" % (BOUND + 1), b"Transfer-Encoding: chunked"])
async def test_body_beyond_the_bound_is_413(stage: Stage, framing: bytes) -> None:
    workers = await serve(stage)
    client = await stage.sending(get(b"/", framing, method=b"POST") + b"100001\r\n")
    assert fault_of(await client.response()) == (413, "body_too_large", f"at most {BOUND} bytes of body")
    await client.closed()
    assert not any(worker.connections for worker in workers.values())


async def test_bound_is_that_of_the_cluster_of_a_route(stage: Stage) -> None:
    """It may be raised by `buffering.request`; a lower `limits.body` of the chosen one holds, with its counts."""
    await serve(stage, LLAMA, QWEN, llama={"buffering": {"request": 2 * BOUND}}, limits={"body": 3 * BOUND})
    assert by(await stage.ask(post(naming("llama-3", pad="x" * BOUND)))) == "llama"
    clusters = stage.settings.model_dump(exclude_unset=True)["clusters"]
    await stage.reload(clusters=clusters | {"qwen": {**clusters["qwen"], "limits": {"body": 9}}})
    assert fault_of(await stage.ask(post(A_QWEN))) == (413, "body_too_large", "at most 9 bytes of body")
    assert stage.control_plane.named["qwen"].cluster.counts.errors["body_too_large"] == 1


@pytest.mark.parametrize("routes", [(LLAMA,), (LLAMA, OTHERS)])
async def test_limit_of_a_cluster_is_none_of_other_models(stage: Stage, routes: Any) -> None:
    await serve(stage, *routes, llama={"limits": {"body": 9}})
    assert by(await stage.ask(post(A_QWEN))) == "main"
    assert fault_of(await stage.ask(post(A_LLAMA))) == (413, "body_too_large", "at most 9 bytes of body")


async def test_body_beyond_the_budget_is_503(stage: Stage) -> None:
    await serve(stage, buffering={"total": 1024})
    client = await stage.sending(get(b"/", b"Content-Length: 5000", method=b"POST"))
    await stage.turn()
    await client.send(b"x" * 2000)
    assert fault_of(await client.response())[:2] == (503, "bytes_exhausted")


async def test_slow_body_times_out(stage: Stage) -> None:
    await serve(stage, timeouts={"request_idle": 5.0})
    stage.cluster.journal = log = RecordingLog()
    client = await stage.sending(post(A_LLAMA)[:-4])
    await stage.eventually(lambda: stage.cluster.receiving)
    stage.advance(6.0)
    assert fault_of(await client.response())[:2] == (408, "body_timeout")
    document = await status(stage)
    assert (document["requests"], document["errors"]) == (1, {"body_timeout": 1})
    assert [entry.fault.reason for entry in log.entries if entry.fault] == ["body_timeout"]


@pytest.mark.parametrize("is_http2", [False, True])
async def test_client_leaves_before_its_model_is_known(stage: Stage, is_http2: bool) -> None:
    await serve(stage)
    if is_http2:
        peer = await http2_client(stage)
        peer.send(peer.begin(fields(method=b"POST")), A_LLAMA)
    client = peer.wire if is_http2 else await stage.sending(post(A_LLAMA)[:-4])
    await stage.eventually(lambda: stage.cluster.receiving)
    client.reset()
    await stage.eventually(lambda: not stage.cluster.receiving)
    assert stage.cluster.counts.requests == stage.cluster.counts.abandoned == 1


async def test_authorised_mirrored_and_limited_route(stage: Stage) -> None:
    """Each is done once, with the whole body; the limit refuses what is beyond it."""
    asked, copied = [await stage.worker(response()) for _ in range(2)]
    route = LLAMA | {
        "auth": {"cluster": "auth", "path": "/check"},
        "mirror": {"cluster": "copies", "share": 1.0, "methods": ["POST"]},
        "rate_limit": "two",
        "request_fields": {"set": {"X-Model": "llama"}},
    }
    workers = await serve(stage, OTHERS)
    clusters = stage.settings.model_dump(exclude_unset=True)["clusters"]
    await stage.reload(
        routes=[route, OTHERS],
        clusters=clusters | {"auth": pool_of(asked), "copies": pool_of(copied)},
        rate_limits=[{"name": "two", "requests": 2, "period": 60}],
    )
    client = await stage.client()
    assert [by(await client.ask(post(A_LLAMA))) for _ in range(2)] == ["llama", "llama"]
    assert fault_of(await client.ask(post(A_LLAMA)))[:2] == (429, "rate_limited")
    assert by(await client.ask(post(A_QWEN))) == "main"
    await stage.eventually(lambda: len(copied.requests) == 2)
    assert [request.body for request in copied.requests] == [A_LLAMA] * 2
    assert len(asked.requests) == len(workers["llama"].requests) == 2
    assert workers["llama"].requests[0].value(b"X-Model") == b"llama"


async def test_reload_while_the_body_comes(stage: Stage) -> None:
    """The route is that of the moment at which the body is whole."""
    await serve(stage)
    client = await stage.sending(post(A_LLAMA)[:-4])
    await stage.eventually(lambda: stage.cluster.receiving)
    await stage.reload(routes=[{"model": "llama-3", "cluster": "qwen"}, OTHERS])
    await client.send(A_LLAMA[-4:])
    assert by(await client.response()) == "qwen"
    await stage.reload(routes=[OTHERS])
    assert by(await client.ask(post(A_LLAMA))) == "main"


def test_missing_extra_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "msgspec", None)
    file = tmp_path / "model.toml"
    file.write_text('[[routes]]\nmodel = "m"\nanswer = { status = 200 }\n')
    line = complaint(main, "balancer", "serve", "--config", str(file))
    assert line.endswith(": needs msgspec, which is not installed: pip install '.[inference]'\n")


def test_check_lists_models_and_warns() -> None:
    answer: Any = {"answer": {"status": 200}}
    routes: Any = [answer, {"model": "m", **answer}, {"model": "n", "methods": ["GET", "HEAD"], **answer}]
    settings = Settings(routes=routes)
    lines = [line.split("  ")[1] for line in [*listed(settings.routes, has_default=False)][1:4]]
    assert lines == ["*://*/* GET,HEAD model=n", "*://*/* model=m", "*://*/*"]
    [warning] = route_warnings(settings)
    assert warning == "routes.2.model: is in the body, and requests with GET, HEAD have none"
