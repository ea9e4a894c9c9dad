"""Forward authorisation over real connections: what is asked and copied, and what clients of denied requests get."""

from __future__ import annotations

import asyncio
import tomllib
from collections.abc import Mapping
from textwrap import dedent
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit

import pytest

from balancer.authorization import authorizer
from balancer.config.schema.route_parts import AuthConfig
from balancer.http.h1.client import Client
from balancer.log.formats import outcome
from tests.support.documentation import text_of
from tests.support.http2_client import http2_client
from tests.support.log_entries import RecordingLog
from tests.support.outgoing import outgoing_request
from tests.support.scripts import SWITCHED, UPGRADE_FIELDS, gated, holding
from tests.support.stage import Stage, endpoint, pool_of
from tests.support.wire import (
    Message,
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

MAIN = response(b"main")
NOTHING: Mapping[str, Any] = {}
REDIRECT = response(b"", b"Location: https://login.example/", b"Set-Cookie: s=1", status=b"302 Found")


def granting(*names: bytes) -> bytes:
    return response(b"", *names, status=b"202 Accepted")


async def serve(
    stage: Stage,
    *asked: ScriptedWorker | int,
    host: str = "client",
    script: Script | bytes = MAIN,
    route: Mapping[str, Any] = NOTHING,
    pools: Mapping[str, Any] = NOTHING,
    **auth: Any,
) -> ScriptedWorker:
    """Serve a worker behind a route that asks `asked`, which get `host`; return the worker."""
    main = await stage.worker(script)
    asks = {"endpoints": [endpoint(one, f"a{at}", host=host) for at, one in enumerate(asked)]}
    auth = {"cluster": "auth", "path": "/check?x=1", **auth}
    await stage.serve(
        main, routes=[{"cluster": "default", "auth": auth, **route}], clusters={"auth": asks, **pools}
    )
    return main


def settled(stage: Stage) -> bool:
    """Whether no subrequest is in flight."""
    plane = stage.control_plane.named["auth"]
    pools = plane.cluster.pools.by_id.values()
    return plane.cluster.router.in_flight == 0 and not any(pool.leased for pool in pools)


async def test_subrequest_has_the_fields_of_the_request_but_those_of_its_body(stage: Stage) -> None:
    asked = await stage.worker(granting())
    main = await serve(stage, asked)
    sent = post(
        b"body", b"Cookie: c=d", b"X-Forwarded-Uri: /evil", b"X_Forwarded_Method: PUT", b"If-None-Match: e"
    )
    assert (await stage.ask(sent.replace(b"POST / ", b"POST /a?b=c "))).body == b"main"
    [question], [request] = asked.requests, main.requests
    assert question.line == b"GET /check?x=1 HTTP/1.1"
    assert question.value(b"X-Forwarded-Method") == b"POST"
    assert question.value(b"X-Forwarded-Uri") == b"/a?b=c"
    assert question.value(b"X-Forwarded-For") == b"127.0.0.1"
    assert (question.value(b"Host"), question.value(b"Cookie")) == (request.value(b"Host"), b"c=d")
    assert question.value(b"X-Request-ID") == request.value(b"X-Request-ID")
    assert not {b"content-length", b"if-none-match", b"x_forwarded_method"} & {*question.names}
    assert (request.line, request.body) == (b"POST /a?b=c HTTP/1.1", b"body")
    assert request.value(b"If-None-Match") == b"e"


async def test_host_of_the_asked_endpoint(stage: Stage) -> None:
    """That of the client is in X-Forwarded-Host."""
    asked = await stage.worker(granting())
    main = await serve(stage, asked, host="login.internal")
    await stage.ask(get())
    [question], [request] = asked.requests, main.requests
    assert question.value(b"Host") == b"login.internal"
    assert question.value(b"X-Forwarded-Host") == request.value(b"Host")


async def test_worker_gets_the_fields_of_the_answer_and_never_the_clients(stage: Stage) -> None:
    """Also where the answer does not have them."""
    asked = await stage.worker(
        answering(granting(b"X-User: ann", b"x-user: bob", b"X-Other: no"), granting())
    )
    main = await serve(stage, asked, request_fields=["X-User", "x-role"])
    client = await stage.client()
    forged = (b"X-User: eve", b"x_user: eve", b"X-Role: admin", b"A: b")
    for _ in range(2):
        assert (await client.ask(get(b"/", *forged))).status == 200
    first, second = main.requests
    assert first.values(b"X-User") == [b"ann", b"bob"]
    assert not {b"x_user", b"x-role", b"x-other"} & {*first.names}
    assert not {b"x_user", b"x-role", b"x-user"} & {*second.names}
    assert second.value(b"A") == b"b"


async def test_client_gets_fields_of_the_answer(stage: Stage) -> None:
    asked = await stage.worker(granting(b"Set-Cookie: a=1", b"Set-Cookie: b=2", b"X-Other: no"))
    await serve(stage, asked, response_fields=["set-cookie"])
    answer = await stage.ask(get())
    assert (answer.body, answer.values(b"Set-Cookie")) == (b"main", [b"a=1", b"b=2"])
    assert b"x-other" not in answer.names


@pytest.mark.parametrize(
    "status",
    [b"401 Unauthorized", b"403 Forbidden", b"302 Found", b"303 See Other", b"307 Temporary Redirect"],
)
async def test_denial_goes_to_the_client_and_nothing_to_the_worker(stage: Stage, status: bytes) -> None:
    denial = response(
        b"go away", b"WWW-Authenticate: Basic", b"Location: /login", b"Set-Cookie: a=b", status=status
    )
    main = await serve(stage, await stage.worker(denial))
    stage.cluster.journal = log = RecordingLog()
    client = await stage.client()
    for request in (get(b"/a"), post(b"x" * 1000), get(b"/b")):
        answer = await client.ask(request)
        assert (answer.line, answer.body) == (b"HTTP/1.1 " + status, b"go away")
        assert answer.value(b"WWW-Authenticate") == b"Basic"
        assert answer.value(b"Set-Cookie") == b"a=b"
    assert (await client.ask(get(method=b"HEAD"), to_head=True)).value(b"Content-Length") == b"7"
    assert (await client.ask(get())).body == b"go away"
    assert main.requests == []
    assert stage.cluster.counts.errors == {"denied": 5}
    assert stage.cluster.counts.responses[int(status[:3])] == 5
    logged = [("rejected", int(status[:3]), size) for size in (7, 7, 7, 0, 7)]
    assert [outcome(entry) for entry in log.entries] == logged


async def test_denial_in_chunks_has_a_length(stage: Stage) -> None:
    chunked = b"HTTP/1.1 401 No\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"
    await serve(stage, await stage.worker(chunked))
    answer = await stage.ask(get())
    assert (answer.body, answer.value(b"Content-Length")) == (b"abcde", b"5")
    assert answer.value(b"Transfer-Encoding") is None


UNDECIDED = {
    "dead": b"",
    "long": response(b"x" * 70_000, status=b"403 Forbidden"),
    **{
        status: f"HTTP/1.1 {status} X\r\nContent-Length: 0\r\n\r\n".encode()
        for status in ("404", "429", "500", "304")
    },
}


@pytest.mark.parametrize("kind", UNDECIDED)
async def test_without_a_decision_nothing_is_forwarded(stage: Stage, kind: str) -> None:
    """No answer, another status, or a body that is longer than what is passed on."""
    answer = UNDECIDED[kind]
    main = await serve(stage, await stage.worker(answer) if answer else stage.dead_port())
    refused = await stage.ask(get())
    assert (refused.status, b"authorization_failed" in refused.body) == (503, True)
    assert (main.requests, settled(stage)) == ([], True)


async def test_second_endpoint_is_asked_if_the_first_does_not_answer(stage: Stage) -> None:
    asked = await stage.worker(granting())
    await serve(stage, stage.dead_port(), asked)
    for _ in range(4):
        assert (await stage.ask(get())).body == b"main"
    assert len(asked.requests) == 4


async def test_answer_that_does_not_come_in_time(stage: Stage) -> None:
    asked = await holding(stage, asyncio.Event())
    main = await serve(stage, asked, timeout=2.0)
    client = await stage.sending(get())
    await stage.eventually(lambda: asked.requests)
    stage.advance(1.9)
    await stage.turn()
    assert not settled(stage)
    stage.advance(0.2)
    answer = await client.response()
    assert (answer.status, main.requests, settled(stage)) == (503, [], True)
    assert b"not authorised within 2 s" in answer.body


async def test_late_request_is_not_forwarded(stage: Stage) -> None:
    """The grant comes after the deadline that the client has stated."""
    go = asyncio.Event()
    asked = await stage.worker(gated(go))
    main = await serve(stage, asked)
    await stage.reload(queue={"timeout_header": "X-Timeout"})
    client = await stage.asking(asked, get(b"/", b"X-Timeout: 500"))
    stage.jump(0.6)
    go.set()
    answer = await client.response()
    assert (answer.status, main.requests, settled(stage)) == (503, [], True)
    assert stage.cluster.counts.errors == {"deadline_passed": 1}


async def test_client_that_leaves_ends_the_subrequest(stage: Stage) -> None:
    asked = await holding(stage, asyncio.Event())
    main = await serve(stage, asked)
    client = await stage.asking(asked, get())
    client.reset()
    await stage.eventually(lambda: settled(stage))
    assert (main.requests, stage.cluster.counts.abandoned) == ([], 1)


async def test_body_waits_for_the_answer(stage: Stage) -> None:
    """As far as the buffer of a waiting request goes; the rest stays with the client."""
    go = asyncio.Event()
    asked = await stage.worker(gated(go))
    main = await serve(stage, asked)
    client = await stage.sending(post_chunked(b"a" * 10_000, b"b" * 10_000))
    await stage.eventually(lambda: asked.requests)
    assert main.requests == []
    go.set()
    assert (await client.response()).body == b"main"
    assert main.requests[0].body == b"a" * 10_000 + b"b" * 10_000


async def test_upgrade_is_authorised(stage: Stage) -> None:
    """The answer that switches protocols has the fields for the client, too."""
    asked = await stage.worker(
        answering(response(b"no", status=b"401 Unauthorized"), granting(b"Set-Cookie: a=1"))
    )
    await serve(stage, asked, script=playing(Wire.request, SWITCHED), response_fields=["set-cookie"])
    offer = get(b"/", *UPGRADE_FIELDS, b"Sec-WebSocket-Key: x")
    denied, switched = [await stage.ask(offer) for _ in range(2)]
    assert (denied.status, switched.status, switched.value(b"Set-Cookie")) == (401, 101, b"a=1")
    assert not {b"upgrade", b"connection", b"sec-websocket-key"} & {*asked.requests[0].names}


async def test_over_http2(stage: Stage) -> None:
    asked = await stage.worker(answering(granting(b"X-User: ann", b"Set-Cookie: a=1"), REDIRECT))
    main = await serve(stage, asked, request_fields=["x-user"], response_fields=["set-cookie"])
    client = await http2_client(stage)
    granted = await client.ask((b"x-user", b"eve"), path=b"/a")
    assert (granted.status, granted.body, granted.head[b"set-cookie"]) == (200, b"main", b"a=1")
    assert main.requests[0].values(b"X-User") == [b"ann"]
    denied = await client.ask(path=b"/b")
    assert (denied.status, denied.head[b"location"]) == (302, b"https://login.example/")
    assert len(main.requests) == 1


CACHED: dict[str, Any] = {"cache": 10.0, "request_fields": ["x-user"], "response_fields": ["set-cookie"]}


async def test_grant_is_remembered_for_equal_requests(stage: Stage) -> None:
    """The fields for the worker are, those for the client are not: a cookie is set once."""
    asked = await stage.worker(granting(b"X-User: ann", b"Set-Cookie: a=1"))
    main = await serve(stage, asked, **CACHED)
    cookies = [(await stage.ask(get(b"/a", b"Cookie: c"))).values(b"Set-Cookie") for _ in range(3)]
    assert (len(asked.requests), cookies) == (1, [[b"a=1"], [], []])
    assert [request.value(b"X-User") for request in main.requests] == [b"ann"] * 3
    stage.advance(9.9)
    await stage.ask(get(b"/a", b"Cookie: c"))
    assert len(asked.requests) == 1
    stage.advance(0.2)
    await stage.ask(get(b"/a", b"Cookie: c"))
    assert len(asked.requests) == 2


@pytest.mark.parametrize(
    "other",
    [
        get(b"/a", b"Cookie: d"),
        get(b"/a"),
        get(b"/a", b"Cookie: c", b"Authorization: x"),
        get(b"/b", b"Cookie: c"),
        get(b"/a?q", b"Cookie: c"),
        get(b"/a", b"Cookie: c", method=b"DELETE"),
        get(b"/a", b"Cookie: c").replace(b"Host: ", b"Host: other."),
    ],
)
async def test_grant_holds_for_no_other_request(stage: Stage, other: bytes) -> None:
    asked = await stage.worker(granting())
    await serve(stage, asked, **CACHED)
    await stage.ask(get(b"/a", b"Cookie: c"))
    await stage.ask(other)
    assert len(asked.requests) == 2


async def test_denials_are_not_remembered(stage: Stage) -> None:
    asked = await stage.worker(REDIRECT)
    await serve(stage, asked, **CACHED)
    for number in (1, 2):
        assert (await stage.ask(get())).status == 302
        assert len(asked.requests) == number


async def test_number_of_remembered_grants_is_bounded(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(authorizer, "MOST_REMEMBERED", 3)
    asked = await stage.worker(granting())
    await serve(stage, asked, **CACHED)
    client = await stage.client()
    for path in (b"/1", b"/2", b"/3", b"/4", b"/4", b"/3", b"/2", b"/1"):
        await client.ask(get(path))
    targets = [request.value(b"X-Forwarded-Uri") for request in asked.requests]
    assert targets == [b"/1", b"/2", b"/3", b"/4", b"/1"]


async def test_remembered_answer_is_not_that_of_names_that_cgi_does_not_tell_apart(stage: Stage) -> None:
    asked = await stage.worker(answering(granting(), response(b"", status=b"401 Unauthorized")))
    await serve(stage, asked, cache=60, cache_by=["x-api-key"])
    assert [(await stage.ask(get(b"/", *sent))).status for sent in ([b"X_Api_Key: a"], [])] == [200, 401]


async def test_remembered_answer_is_not_that_of_another_client_certificate(stage: Stage) -> None:
    await serve(stage, stage.dead_port())
    one = authorizer.Authorizer(AuthConfig(cluster="auth", path="/", cache=1.0), stage.cluster)
    lines = (b"Client-Cert: :YQ==:\r\n", b"Client-Cert: :Yg==:\r\n", b"")
    clients = [Client(b"192.0.2.1", b"a:80", certificate=line) for line in lines]
    keys = {one.key_of(outgoing_request(get(), client, b"id"), client) for client in clients}
    assert len(keys) == len(lines)


async def test_trailers_are_no_way_around_the_fields_of_the_answer(stage: Stage) -> None:
    asked = await stage.worker(granting(b"X-User: ann"))
    reading = playing(Wire.head, lambda wire: wire.until(b"\r\n\r\n"), response())
    worker = await serve(stage, asked, script=reading, request_fields=["X-User"])
    request = post_chunked(b"body").removesuffix(b"\r\n") + b"X_User: forged\r\nX-Sum: 1\r\n\r\n"
    assert (await stage.ask(request)).status == 200
    assert b"forged" not in worker.received
    assert b"X-Sum: 1" in worker.received


@pytest.mark.parametrize("request_", [get(b"/", b"X-User: eve"), post(b"a", b"X-User: eve")])
async def test_mirror_gets_what_is_granted_with_the_fields_of_the_answer(
    stage: Stage, request_: bytes
) -> None:
    asked = await stage.worker(answering(response(status=b"401 Unauthorized"), granting(b"X-User: ann")))
    shadow = await stage.worker(response(b"copy"))
    route = {"mirror": {"cluster": "shadow", "share": 1.0, "methods": ["GET", "POST"]}}
    await serve(stage, asked, route=route, pools={"shadow": pool_of(shadow)}, request_fields=["X-User"])
    assert [(await stage.ask(request_)).status for _ in range(2)] == [401, 200]
    [mirror] = stage.control_plane.mirrors.by_route.values()
    await stage.eventually(lambda: not mirror.copies)
    assert mirror.counts.skipped == {"not_authorised": 1}
    [copy] = shadow.requests
    assert copy.values(b"X-User") == [b"ann"]


@pytest.mark.parametrize(
    ("target", "uri"),
    [
        (b"/public/../secret?a=/../b", b"/app/secret?a=/../b"),
        (b"/public/%2e%2e/secret", b"/app/secret"),
        (b"//secret", b"/app/secret"),
    ],
)
async def test_decision_is_on_the_resolved_path_that_a_worker_gets(
    stage: Stage, target: bytes, uri: bytes
) -> None:
    """Else a service that lets all of /public pass would let this pass, too."""
    asked = await stage.worker(granting())
    main = await serve(stage, asked, route={"prefix": "/app", "strip_prefix": True})
    for form in (b"/app", b"http://example.org/app"):
        await stage.ask(get(form + target))
    assert [one.value(b"X-Forwarded-Uri") for one in asked.requests] == [uri] * 2
    assert [one.line.split()[1] for one in main.requests] == [uri.removeprefix(b"/app")] * 2


@pytest.mark.parametrize("protocol", ["HTTP/1.1", "HTTP/2"])
@pytest.mark.parametrize("route", [NOTHING, {"prefix": "/"}, {"host": "example.org"}, {"host": "*.org"}])
async def test_route_without_a_path_sends_the_path_that_was_decided_on(
    stage: Stage, route: Mapping[str, Any], protocol: str
) -> None:
    """A path that workers read in different ways is refused, or they would get another one than the service."""
    asked = await stage.worker(granting())
    main = await serve(stage, asked, route=route)
    paths = (b"/admin/../public/x?a=/../b", b"//public/admin/x", b"/public/%2e%2e/admin", b"/%70ublic//x")
    unclear = (b"/public/..%2fadmin", b"/public/..\\admin", b"/public/..;/admin", b"/a%00", b"/" + b"./" * 65)
    if protocol == "HTTP/2":
        client = await http2_client(stage)
        statuses = [(await client.ask(path=path)).status for path in paths + unclear]
    else:
        statuses = [(await stage.ask(get(path))).status for path in paths + unclear]
    assert statuses == [200] * len(paths) + [400] * len(unclear)
    uris = [one.value(b"X-Forwarded-Uri") for one in asked.requests]
    assert uris == [b"/public/x?a=/../b", b"/public/admin/x", b"/admin", b"/public/x"]
    targets = [one.line.split()[1] for one in main.requests]
    assert targets == [*uris[:3], b"/%70ublic//x"]


async def test_host_without_authorisation_beside_it_gets_paths_as_sent(stage: Stage) -> None:
    main = await serve(stage, await stage.worker(granting()), route={"host": "other.org"})
    for path in (b"/a/../b", b"/a%2Fb"):
        assert (await stage.ask(get(path))).status == 200
        assert main.requests[-1].line.split()[1] == path


def oauth2_proxy(request: Message) -> bytes:
    """What an oauth2-proxy answers with the documented options: 202 or its sign-in page, and its own pages."""
    url = urlsplit(request.line.split()[1].decode())
    if url.path == "/oauth2/start":
        rd = f"https://idp.example/?state={quote(parse_qs(url.query)['rd'][0], safe='')}".encode()
        return response(b"", b"Location: " + rd, b"Set-Cookie: csrf=1", status=b"302 Found")
    if url.path == "/oauth2/callback" and request.value(b"Cookie") == b"csrf=1":
        back = unquote(parse_qs(url.query)["state"][0]).encode()
        return response(b"", b"Location: " + back, b"Set-Cookie: session=ann", status=b"302 Found")
    if url.path == "/" and request.value(b"Cookie") == b"session=ann":
        fields = (
            b"X-Auth-Request-User: ann",
            b"X-Auth-Request-Email: ann@example.org",
            b"Set-Cookie: session=ann",
        )
        return response(b"", *fields, status=b"202 Accepted")
    rd = quote(request.value(b"X-Forwarded-Uri") or b"/", safe="").encode()
    return response(b"/oauth2/start?rd=" + rd, b"Content-Type: text/html", status=b"403 Forbidden")


async def test_documented_configuration_signs_a_browser_in(stage: Stage) -> None:
    """From the page of an unknown client to the one that it has asked for."""
    section = (
        text_of("docs/configuration.md").partition("\n## Authorisation\n")[2].partition("\nThe subrequest")[0]
    )
    document = tomllib.loads(dedent(section[section.index("    [[routes]]") :]))
    login, main = await stage.worker(answering(oauth2_proxy)), await stage.worker(response(b"main"))
    document["clusters"]["login"] = pool_of(login)
    await stage.serve(main, **document)
    forged = b"X-Auth-Request-User: eve"
    page = await stage.ask(get(b"/app?x=1&y", forged))
    assert (page.status, page.body) == (403, b"/oauth2/start?rd=%2Fapp%3Fx%3D1%26y")
    start = await stage.ask(get(page.body))
    assert start.value(b"Set-Cookie") == b"csrf=1"
    state = (start.value(b"Location") or b"").partition(b"?")[2]
    signed_in = await stage.ask(get(b"/oauth2/callback?code=1&" + state, b"Cookie: csrf=1"))
    assert (signed_in.status, signed_in.value(b"Location")) == (302, b"/app?x=1&y")
    answer = await stage.ask(get(b"/app?x=1&y", b"Cookie: session=ann", forged))
    assert (answer.body, answer.value(b"Set-Cookie")) == (b"main", b"session=ann")
    [request] = main.requests
    assert request.values(b"X-Auth-Request-User") == [b"ann"]
