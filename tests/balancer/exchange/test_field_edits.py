"""Configured fields (`[headers.request]`, `[headers.response]` and those of a route) in everything that is sent.

`test_worker_host.py` has those of retries, hedges and copies, which name their endpoint.
"""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from balancer.config.problems import ConfigError
from balancer.config.schema.field_edits import RequestFieldEdits, ResponseFieldEdits
from balancer.config.schema.sections import HeadersConfig
from balancer.configuration import load
from balancer.exchange.field_edits import HeadEdits
from balancer.http.h1.client import Client
from tests.support.config_files import ENDPOINT, write
from tests.support.documentation import text_of
from tests.support.grpc_plays import ending, rpc, serve_grpc
from tests.support.http2_client import http2_client
from tests.support.outgoing import outgoing_request
from tests.support.scripted_transports import hello, serve_plays, values
from tests.support.stage import Stage, pool_of
from tests.support.wire import Message, Wire, answering, get, playing, post, post_chunked, response

HSTS = {"Strict-Transport-Security": "max-age=63072000"}
EVERY = "{client}|{scheme}|{host}|{tls}|{cluster}|{endpoint}|{request_id}"


# --- what is removed, set and added

BLOCKS: list[tuple[dict[str, Any], list[str], list[str]]] = [
    ({}, ["A: 1"], ["A: 1"]),
    ({"set": {"X": "2"}}, [], ["X: 2"]),
    ({"set": {"X": "2"}}, ["x: 1", "A: 1", "X: 3"], ["A: 1", "X: 2"]),
    ({"add": {"X": "2"}}, ["X: 1"], ["X: 1", "X: 2"]),
    ({"remove": ["X"]}, ["X: 1", "Xa: 1", "x:2"], ["Xa: 1"]),
    ({"remove": ["x-d-*"]}, ["X-D-1: 1", "X-D-: 1", "X-D: 1"], ["X-D: 1"]),
    ({"remove": ["X"], "set": {"X": "2"}, "add": {"x": "3"}}, ["X: 1"], ["X: 2", "x: 3"]),
    ({"set": {"X": "{{a}} }}{{"}}, [], ["X: {a} }{"]),
    ({"remove": ["X-A"]}, ["Cookie: X-A: 1", "x-a: X-A: 1"], ["Cookie: X-A: 1"]),
]


def block(lines: list[str]) -> bytes:
    return "\r\n".join(["", *lines, ""]).encode()


async def edited(stage: Stage, configs: list[Any], lines: list[str], *, in_cgi: bool = False) -> bytes:
    if stage.server is None:
        await stage.serve(stage.dead_port())
    client = Client(b"192.0.2.1", b"a:80")
    request = outgoing_request(get(), client, b"id")
    return HeadEdits(configs, in_cgi=in_cgi).edited(block(lines), request, client, stage.cluster, b"")


@pytest.mark.parametrize("in_cgi", [True, False])
@pytest.mark.parametrize(("config", "lines", "expected"), BLOCKS)
async def test_edited_block(
    stage: Stage, config: dict[str, Any], lines: list[str], expected: list[str], in_cgi: bool
) -> None:
    assert await edited(stage, [ResponseFieldEdits(**config)], lines, in_cgi=in_cgi) == block(expected)


@pytest.mark.parametrize("key", ["set", "remove"])
async def test_request_fields_are_removed_under_names_that_cgi_does_not_tell_apart(
    stage: Stage, key: str
) -> None:
    config = RequestFieldEdits.model_validate({key: {"X-User": "me"} if key == "set" else ["X_User"]})
    lines = ["x_user: 1", "X-User: 2", "X.USER: 3", "X-Users: 4"]
    own = ["X-User: me"] if key == "set" else []
    assert await edited(stage, [config], lines, in_cgi=True) == block(["X-Users: 4", *own])
    if key == "set":
        assert await edited(stage, [config], lines) == block(["x_user: 1", "X.USER: 3", "X-Users: 4", *own])


async def test_edits_of_a_route_apply_to_the_result_of_the_global_ones(stage: Stage) -> None:
    everywhere = ResponseFieldEdits(set={"A": "1", "B": "1", "C-x": "1"}, add={"D": "1"}, remove=("E",))
    route = ResponseFieldEdits(set={"b": "2", "E": "2"}, add={"D": "2"}, remove=("a", "c-*"))
    assert await edited(stage, [everywhere, route], ["A: 0", "B: 0", "E: 0", "F: 0"]) == block(
        ["F: 0", "D: 1", "b: 2", "E: 2", "D: 2"]
    )


# --- requests


async def ask_with(stage: Stage, request: bytes = b"", **settings: Any) -> tuple[Message, Message]:
    """One request and its response, as the worker and the client get them."""
    worker = await stage.serve_worker(response(b"ok", b"Server: w", b"X-Old: 1"), **settings)
    answer = await stage.ask(request or get())
    return worker.requests[0], answer


def routes_of(**keys: Any) -> list[dict[str, Any]]:
    return [{"prefix": "/", "cluster": "default", **keys}]


async def test_fields_of_the_configuration_and_of_the_route(stage: Stage) -> None:
    request, answer = await ask_with(
        stage,
        get(b"/", b"x_a: client", b"X-B: client", b"X-Keep: 1", b"X-Gone: 1", b"X-Request-ID: id"),
        headers={
            "request": {"set": {"X-A": EVERY, "X-B": "1"}, "remove": ["X-Gone"]},
            "response": {"set": HSTS | {"X-Id": "{request_id}"}, "remove": ["Server"]},
        },
        routes=routes_of(
            request_fields={"set": {"X-B": "2"}, "add": {"X-Keep": "2"}},
            response_fields={"set": {"X-Old": EVERY}, "add": {"X-Id": "2"}},
        ),
    )
    every = b"127.0.0.1|http|example.org||default|w0|id"
    assert request.values(b"X-A") == answer.values(b"X-Old") == [every]
    assert (request.values(b"X-B"), request.values(b"X-Keep")) == ([b"2"], [b"1", b"2"])
    assert request.value(b"x_a") is request.value(b"X-Gone") is answer.value(b"Server") is None
    assert answer.value(b"Strict-Transport-Security") == b"max-age=63072000"
    assert answer.values(b"X-Id") == [b"id", b"2"]


@pytest.mark.parametrize("is_trusted", [True, False])
async def test_client_and_scheme_are_those_that_a_trusted_proxy_states(
    stage: Stage, is_trusted: bool
) -> None:
    request, _ = await ask_with(
        stage,
        get(b"/", b"X-Forwarded-For: 192.0.2.7, 10.0.0.1", b"X-Forwarded-Proto: https"),
        headers={"request": {"set": {"X-Real-IP": "{client}", "X-Scheme": "{scheme}"}}},
        trusted_proxies=["127.0.0.1", "10.0.0.0/8"] if is_trusted else [],
    )
    expected = (b"192.0.2.7", b"https") if is_trusted else (b"127.0.0.1", b"http")
    assert (request.value(b"X-Real-IP"), request.value(b"X-Scheme")) == expected


async def test_a_field_without_a_value_is_not_sent(stage: Stage) -> None:
    """`{tls}` of a request in clear text: that of the client does not pass either."""
    request, answer = await ask_with(
        stage,
        get(b"/", b"X-Tls: forged"),
        headers={
            "request": {"set": {"X-Tls": "{tls}", "X-Both": "{scheme} {tls}"}},
            "response": {"set": {"X-Tls": "{tls}"}},
        },
    )
    assert request.value(b"X-Tls") is answer.value(b"X-Tls") is None
    assert b"X-Both: http\r\n" in stage.started_workers[0].received


async def test_trailers_of_a_request_are_no_way_around(stage: Stage) -> None:
    worker = await stage.worker(playing(Wire.head, lambda wire: wire.until(b"\r\n\r\n"), response()))
    await stage.serve(worker, headers={"request": {"set": {"X-User": "me"}}})
    request = post_chunked(b"body").removesuffix(b"\r\n") + b"X_User: forged\r\nX-Sum: 1\r\n\r\n"
    assert (await stage.ask(request)).status == 200
    assert b"forged" not in worker.received
    assert b"X-Sum: 1" in worker.received


async def test_a_traced_request_has_fields_and_its_span(stage: Stage) -> None:
    request, _ = await ask_with(
        stage, headers={"request": {"set": {"X-To": "{endpoint}", "X-A": "1"}}}, tracing={"enabled": True}
    )
    assert (request.value(b"X-To"), request.value(b"X-A")) == (b"w0", b"1")
    assert request.fields[-1][0] == b"traceparent"
    assert len(request.fields[-1][1]) == 55


async def test_fields_over_http2_on_both_sides(stage: Stage) -> None:
    fields = {"request": {"set": {"X-To": EVERY}}, "response": {"set": HSTS, "remove": ["X-Pow*"]}}
    plays = await serve_plays(stage, hello, headers=fields)
    client = await http2_client(stage)
    for _ in range(2):
        answer = await client.ask((b"x_to", b"forged"), (b"x-request-id", b"id"))
        assert answer.head[b"strict-transport-security"] == b"max-age=63072000"
    assert values(plays[1].fields, b"x-to") == [b"127.0.0.1|http|example.org||default|w0|id"]
    assert values(plays[1].fields, b"x_to") == []


# --- responses


async def test_balancers_own_answers_have_them(stage: Stage) -> None:
    """Redirects, fixed answers, errors of a route and of no route, heads that cannot be read."""
    worker = await stage.worker(response())
    routes: list[dict[str, Any]] = [
        {"path": "/r", "redirect": {"scheme": "https"}, "response_fields": {"set": {"X-Route": "{host}"}}},
        {"path": "/a", "answer": {"body": "a"}, "response_fields": {"remove": ["X-Frame-Options"]}},
        {"path": "/dead", "cluster": "dead", "response_fields": {"set": {"X-Route": "{cluster} {endpoint}"}}},
        {"path": "/ok", "cluster": "api"},
    ]
    await stage.serve(
        endpoints=[], routes=routes, clusters={"api": pool_of(worker), "dead": pool_of(stage.dead_port())},
        headers={"response": {"set": HSTS | {"X-Frame-Options": "DENY"}}},
    )  # fmt: skip

    async def asked(request: bytes) -> tuple[Any, ...]:
        answer = await stage.ask(request)
        names = (b"Strict-Transport-Security", b"X-Frame-Options", b"X-Route")
        return answer.status, *(answer.value(name) for name in names)

    hsts = b"max-age=63072000"
    assert await asked(get(b"/ok")) == (200, hsts, b"DENY", None)
    assert await asked(get(b"/r")) == (308, hsts, b"DENY", b"example.org")
    assert await asked(get(b"/a")) == (200, hsts, None, None)
    assert await asked(get(b"/dead")) == (502, hsts, b"DENY", b"dead a0")
    assert await asked(get(b"/none")) == (404, hsts, b"DENY", None)
    assert await asked(b"GET / HTTP/1.1\r\n\r\n") == (400, hsts, b"DENY", None)
    assert (await stage.ask(get(b"/-/live"))).value(b"X-Frame-Options") is None
    client = await http2_client(stage)
    assert (await client.ask(path=b"/none")).head[b"x-frame-options"] == b"DENY"
    assert (await client.ask(method=b"TRACE")).head[b"x-frame-options"] == b"DENY"


@pytest.mark.parametrize("is_chunked", [True, False])
async def test_413_has_them_and_the_id_of_its_request(stage: Stage, tmp_path: Path, is_chunked: bool) -> None:
    """Whether the body announces its length or shows it, over HTTP/1.1 and HTTP/2."""
    fields = {"set": {"Access-Control-Allow-Origin": "*", "X-Rid": "{request_id}"}}
    log = tmp_path / "access.log"
    await stage.serve(
        endpoints=[], routes=[{"prefix": "/", "cluster": "up", "response_fields": fields}],
        clusters={"up": pool_of(await stage.worker(response()), limits={"body": 10})},
        log={"access": "json", "path": str(log)},
    )  # fmt: skip
    request = post_chunked(b"x" * 11) if is_chunked else post(b"x" * 11)
    answer = await stage.ask(request.replace(b"\r\n\r\n", b"\r\nX-Request-ID: mine\r\n\r\n", 1))
    names = (b"Access-Control-Allow-Origin", b"X-Rid", b"Connection")
    assert (answer.status, *(answer.value(name) for name in names)) == (413, b"*", b"mine", b"close")
    stated = () if is_chunked else ((b"content-length", b"11"),)
    client = await http2_client(stage)
    other = await client.ask((b"x-request-id", b"other"), *stated, body=b"x" * 11, method=b"POST")
    assert (other.status, other.head[b"access-control-allow-origin"], other.head[b"x-rid"]) == (
        413,
        b"*",
        b"other",
    )
    await client.wire.close()
    await stage.running.stop()
    entries = [json.loads(line) for line in log.read_text().splitlines()]
    assert [(each["reason"], each["cluster"], each["request_id"]) for each in entries] == [
        ("body_too_large", "up", "mine"), ("body_too_large", "up", "other"),
    ]  # fmt: skip


async def test_an_authorised_request_and_its_denial_have_them(stage: Stage) -> None:
    """The authorizer gets the fields, too, and what it grants replaces them."""
    grants = response(b"", b"X-User: her"), response(b"no", status=b"401 Unauthorized")
    worker, login = await stage.worker(response()), await stage.worker(answering(*grants))
    auth = {"cluster": "login", "path": "/check", "request_fields": ["x-user"]}
    fields = {"request": {"set": {"X-User": "nobody", "X-To": "{endpoint}"}}, "response": {"set": HSTS}}
    await stage.serve(worker, clusters={"login": pool_of(login)}, routes=routes_of(auth=auth), headers=fields)
    for status in (200, 401):
        answer = await stage.ask(get())
        assert answer.status == status
        assert answer.value(b"Strict-Transport-Security") == b"max-age=63072000"
    (request,) = worker.requests
    assert (request.value(b"X-User"), request.value(b"X-To")) == (b"her", b"w0")
    assert [each.value(b"X-User") for each in login.requests] == [b"nobody"] * 2


@pytest.mark.parametrize("status", [b"0", b"12"])
async def test_responses_and_own_errors_of_rpcs_have_them(stage: Stage, status: bytes) -> None:
    """12 of an endpoint that speaks HTTP/1.1."""
    headers = {"response": {"set": {"X-By": "{endpoint}"}}}
    if status == b"0":
        await serve_grpc(stage, ending(0), headers=headers)
    else:
        await stage.serve(stage.dead_port(), headers=headers)
    client = await http2_client(stage)
    answer = await client.answer(rpc(client))
    assert (answer.head[b"grpc-status"], answer.head[b"x-by"]) == (status, b"w0")


async def test_interim_responses_lose_fields_and_get_none(stage: Stage) -> None:
    hints = b"HTTP/1.1 103 Early Hints\r\nServer: w\r\nLink: </a>\r\n\r\n"
    worker = await stage.worker(hints + response(b"ok", b"Server: w"))
    await stage.serve(worker, headers={"response": {"set": HSTS, "remove": ["Server"]}})
    client = await stage.client()
    interim = await client.ask(get())
    assert (interim.status, interim.names) == (103, [b"link"])
    assert b"strict-transport-security" in (await client.response()).names


async def test_the_101_of_a_tunnel_has_them(stage: Stage) -> None:
    switch = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade\r\nServer: w\r\n\r\nhi"
    worker = await stage.worker(playing(Wire.request, switch, lambda wire: wire.until(b"bye")))
    fields = {"request": {"set": {"X-To": "{endpoint}"}}, "response": {"set": HSTS, "remove": ["Server"]}}
    await stage.serve(worker, headers=fields)
    client = await stage.client()
    answer = await client.ask(get(b"/", b"Upgrade: x", b"Connection: Upgrade"))
    assert (answer.status, answer.value(b"Server")) == (101, None)
    assert answer.value(b"Strict-Transport-Security") == b"max-age=63072000"
    assert await client.exactly(2) == b"hi"
    assert worker.requests[0].value(b"X-To") == b"w0"
    await client.send(b"bye")
    await client.closed()


async def test_trailers_of_a_response_lose_fields(stage: Stage) -> None:
    chunks = (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nX-Old: 1\r\nX-Sum: 1\r\n\r\n"
    )
    await stage.serve(await stage.worker(chunks), headers={"response": {"remove": ["X-Old"]}})
    client = await stage.client()
    await client.ask(get())
    assert bytes(client.received).endswith(b"0\r\nX-Sum: 1\r\n\r\n")


async def test_a_reload_applies_to_the_next_request_of_a_connection(stage: Stage) -> None:
    await stage.serve(await stage.worker(response()))
    client = await stage.client()
    assert b"x-a" not in (await client.ask(get())).names
    await stage.reload(headers={"response": {"set": {"X-A": "1"}}})
    assert b"x-a" in (await client.ask(get())).names
    await stage.reload(headers={})
    assert b"x-a" not in (await client.ask(get())).names


# --- recipes of docs/configuration.md

SECTION = text_of("docs/configuration.md").partition("### Fields\n")[2].partition("\n### ")[0]
EXAMPLE, HSTS_RECIPE, CORS_RECIPE = (
    tomllib.loads(dedent(block)) for block in re.findall(r"(?:^ {4}.*\n(?:\n(?= {4}))*)+", SECTION, re.M)
)
ORIGIN = b"https://app.example.org"


async def serve_recipe(stage: Stage, recipe: dict[str, Any], name: str) -> Any:
    worker = await stage.worker(response(b"ok", b"Vary: Accept", b"Server: w"))
    await stage.serve(worker, clusters={name: pool_of(worker)}, **recipe)
    return worker


async def test_example(stage: Stage) -> None:
    worker = await serve_recipe(stage, EXAMPLE, "web")
    answer = await stage.ask(get(b"/embed", b"X_Debug_A: 1", b"X-Request-ID: id"))
    (request,) = worker.requests
    assert request.value(b"Authorization") == b"Bearer s3cret"
    assert (request.value(b"X-Cluster"), request.value(b"X_Debug_A")) == (b"web", None)
    assert answer.values(b"Vary") == [b"Accept", b"Cookie"]
    assert (answer.value(b"X-Request-ID"), answer.value(b"Server")) == (b"id", None)


async def test_hsts(stage: Stage) -> None:
    """On the route of the host alone."""
    await serve_recipe(stage, HSTS_RECIPE | {"trusted_proxies": ["127.0.0.1"]}, "web")
    secure = get(b"/", b"X-Forwarded-Proto: https")
    for request, expected in (
        (secure.replace(b"example.org", b"www.example.org"), b"max-age=31536000; includeSubDomains"),
        (get().replace(b"example.org", b"www.example.org"), None),
        (secure, None),
    ):
        assert (await stage.ask(request)).value(b"Strict-Transport-Security") == expected


async def test_cors(stage: Stage) -> None:
    """A preflight is answered here, other origins get no field, and caches keep the answers apart."""
    worker = await serve_recipe(stage, CORS_RECIPE, "api")
    asked = get(b"/api", b"Origin: " + ORIGIN, b"Access-Control-Request-Method: PUT", method=b"OPTIONS")
    preflight = await stage.ask(asked)
    assert (preflight.status, preflight.value(b"Access-Control-Max-Age")) == (204, b"600")
    assert preflight.value(b"Access-Control-Allow-Origin") == ORIGIN
    assert not worker.requests
    allowed = await stage.ask(get(b"/api", b"Origin: " + ORIGIN))
    assert allowed.value(b"Access-Control-Allow-Origin") == ORIGIN
    assert allowed.values(b"Vary") == [b"Accept", b"Origin"]
    other = await stage.ask(get(b"/api", b"Origin: https://evil.example.org"))
    assert other.value(b"Access-Control-Allow-Origin") is None
    assert other.values(b"Vary")[-1] == b"Origin"


# --- the configuration


@pytest.mark.parametrize("value", ["a\\r\\nb", "", " a", "é"])
def test_values_are_printable(tmp_path: Path, value: str) -> None:
    text = f'{ENDPOINT}[headers.response.set]\nX-A = "{value}"\n'
    with pytest.raises(ConfigError, match=r"headers\.response\.set\.X-A: "):
        load(write(tmp_path, text), {})


OF_FRAMING = ("Content-Length", "Transfer-Encoding", "Connection", "Keep-Alive", "TE", "Trailer", "Upgrade")


def test_every_field_of_framing_is_refused() -> None:
    for name in OF_FRAMING:
        for kind in ("request", "response"):
            for edit in ({"set": {name: "1"}}, {"add": {name: "1"}}, {"remove": [name]}):
                with pytest.raises(ValueError, match="forwarding's own"):
                    HeadersConfig.model_validate({kind: edit})
