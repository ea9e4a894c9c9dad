"""Routes and named clusters over real connections: each pool with its own endpoints, policy, limits and status."""

from __future__ import annotations

import asyncio
import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.support.admin_requests import command, local, metrics, status
from tests.support.scripts import holding
from tests.support.stage import API, Stage, endpoint, pool_of, serve_api
from tests.support.wire import Message, get, post, response


async def pool_status(stage: Stage, name: str = "api") -> dict[str, Any]:
    [pool] = [pool for pool in (await status(stage))["clusters"] if pool["name"] == name]
    return dict(pool)


async def test_requests_go_to_their_pools(stage: Stage) -> None:
    """On one connection, each by its own route."""
    worker = await stage.worker(response(b"api"))
    await serve_api(stage, pool_of(worker))
    client = await stage.client()
    answers = [
        (await client.ask(get(target))).body for target in (b"/", b"/api", b"/api/x", b"/apix", b"/api")
    ]
    assert answers == [b"main", b"api", b"api", b"main", b"api"]
    document = await status(stage)
    assert document["requests"] == 5
    assert (await pool_status(stage))["requests"] == 3
    assert [each["outcomes"]["ok"] for each in document["endpoints"]] == [2]


async def test_without_a_default_pool_the_rest_gets_404(stage: Stage, tmp_path: Path) -> None:
    """The connection stays open; in the access log as unrouted."""
    log = tmp_path / "access.log"
    worker = await stage.worker(response(b"api"))
    await stage.serve(
        endpoints=[],
        routes=[API],
        clusters={"api": pool_of(worker)},
        log={"access": "json", "path": str(log), "admin": False},
    )
    client = await stage.client()
    answer = await client.ask(get(b"/"))
    assert answer.status == 404
    assert json.loads(answer.body)["error"] == "no_route"
    assert (await client.ask(get(b"/", method=b"HEAD"), to_head=True)).status == 404
    assert (await client.ask(get(b"/api"))).body == b"api"
    document = await status(stage)
    assert document["errors"] == {"no_route": 2}
    assert document["responses"] == {"200": 1, "404": 2}
    assert document["health"]["healthy"] is True
    await client.close()
    await stage.running.stop()
    ends = [(entry["status"], entry["end"]) for entry in map(json.loads, log.read_text().splitlines())]
    assert ends == [(404, "unrouted"), (404, "unrouted"), (200, "ok")]


AS_SENT = (b"/http://foo/%7Eu/%c3%a9", b"/x/y", b"/new//x")


async def test_prefix_is_stripped_or_replaced(stage: Stage) -> None:
    """The worker learns what was removed; the query and the rest stay as sent, unless they could be read as a URL."""
    worker = await stage.worker(response())
    routes: list[dict[str, Any]] = [
        {"prefix": "/api/v1", "cluster": "api", "strip_prefix": True},
        {"prefix": "/old/", "cluster": "api", "replace_prefix": "/new"},
        {"prefix": "/keep", "cluster": "api"},
    ]
    await serve_api(stage, pool_of(worker), routes=routes, normalise={"encoded_slash": "keep"})
    client = await stage.client()
    for target in (
        b"/api/v1",
        b"/api/v1/",
        b"/api/v1/x?q=/api/v1",
        b"/old/x",
        b"/old",
        b"//api//v1/a%2Fb",
        b"/api/v1/http://foo/%7Eu/%c3%a9",
        b"/api/v1//x//y",
        b"/old//x",
        b"/keep/x",
    ):
        await client.ask(get(target))
    lines = [request.line.split(b" ")[1] for request in worker.requests]
    assert lines == [b"/", b"/", b"/x?q=/api/v1", b"/new/x", b"/new", b"/a%2Fb", *AS_SENT, b"/keep/x"]
    prefixes = [request.value(b"X-Forwarded-Prefix") for request in worker.requests]
    assert prefixes == [
        b"/api/v1",
        b"/api/v1",
        b"/api/v1",
        b"/old",
        b"/old",
        *[b"/api/v1"] * 3,
        b"/old",
        None,
    ]


@pytest.mark.parametrize("rest", [b"/\\evil.com/x", b"/.//\\evil.com/x", b"/\\/evil.com", b"/\\\\evil.com"])
async def test_rest_behind_a_prefix_is_no_url_by_a_backslash(stage: Stage, rest: bytes) -> None:
    """Browsers take it for a slash, and so does `new URL` of Node."""
    worker = await stage.worker(response())
    routes: list[dict[str, Any]] = [
        {"prefix": "/to", "redirect": {"replace_prefix": "/"}},
        {"prefix": "/strip", "cluster": "api", "strip_prefix": True},
    ]
    await serve_api(stage, pool_of(worker), routes=routes, normalise={"backslash": "keep"})
    plain = b"/%5C" + rest[rest.index(b"\\") + 1 :]
    assert (await stage.ask(get(b"/to" + rest))).value(b"Location") == plain
    await stage.ask(get(b"/strip" + rest))
    assert worker.requests[0].line.split()[1] == plain


async def test_targets_without_a_path_are_not_rewritten(stage: Stage) -> None:
    """`OPTIONS *` and CONNECT match the prefix / and have none."""
    worker = await stage.worker(response())
    routes: list[dict[str, Any]] = [
        {"prefix": "/", "cluster": "api", "replace_prefix": "/v1"},
        {"host": "strip.org", "prefix": "/", "cluster": "api", "strip_prefix": True},
    ]
    await serve_api(stage, pool_of(worker), routes=routes, http={"allow": ["CONNECT"]})
    await stage.ask(get(b"*", method=b"OPTIONS"))
    await stage.ask(get(b"*", method=b"OPTIONS").replace(b"example.org", b"strip.org"))
    await stage.sending(get(b"h:443", method=b"CONNECT"))
    await stage.eventually(lambda: len(worker.requests) == 3)
    assert [request.line.split(b" ")[1] for request in worker.requests] == [b"*", b"*", b"h:443"]


@pytest.mark.parametrize(("trusted", "prefixes"), [(["127.0.0.1"], [b"/a", b"/b"]), ([], [b"/b"])])
async def test_prefix_of_a_trusted_proxy_comes_first(
    stage: Stage, trusted: list[str], prefixes: list[bytes]
) -> None:
    """The prefixes in the order of the proxies, as in the client's path; another client cannot state one."""
    worker = await stage.worker(response())
    routes = [{"prefix": "/b", "cluster": "api", "strip_prefix": True}]
    await serve_api(stage, pool_of(worker), routes=routes, trusted_proxies=trusted)
    await stage.ask(get(b"/b/c", b"X-Forwarded-Prefix: /a"))
    assert worker.requests[0].values(b"X-Forwarded-Prefix") == prefixes


async def test_redirects(stage: Stage) -> None:
    """Scheme or host change; path and query stay as they were sent, without dot segments."""
    routes: list[dict[str, Any]] = [
        {"host": "plain.org", "scheme": "http", "redirect": {"scheme": "https"}},
        {"host": "old.org", "redirect": {"host": "new.org:8443", "status": 301}},
        API,
    ]
    await serve_api(stage, pool_of(await stage.worker(response(b"api"))), routes=routes)
    client = await stage.client()

    async def asked(host: bytes, target: bytes = b"/a/../b?c=%2F") -> Message:
        return await client.ask(get(target).replace(b"example.org", host))

    answer = await asked(b"plain.org:8080")
    assert (answer.status, answer.value(b"Location")) == (308, b"https://plain.org/b?c=%2F")
    answer = await asked(b"old.org")
    assert (answer.status, answer.value(b"Location")) == (301, b"http://new.org:8443/b?c=%2F")
    assert (await asked(b"other.org")).body == b"main"
    assert (await status(stage))["responses"] == {"200": 1, "301": 1, "308": 1}


async def test_scheme_of_a_trusted_proxy_counts(stage: Stage) -> None:
    routes = [{"scheme": "http", "redirect": {"scheme": "https"}}]
    secure = b"X-Forwarded-Proto: https"
    await stage.serve(await stage.worker(response(b"main")), routes=routes, trusted_proxies=["127.0.0.1"])
    assert (await stage.ask(get(b"/", secure))).body == b"main"
    assert (await stage.ask(get(b"/"))).status == 308
    assert (await stage.ask(get(b"/", b"X-Forwarded-Proto: HTTPS , http"))).body == b"main"
    assert (await stage.ask(get(b"/", b"X-Forwarded-Proto: http, https"))).status == 308
    assert (await stage.ask(get(b"/", b"X-Forwarded-Proto: gopher"))).body == b"main"
    assert (await stage.ask(get(b"/", b"X-Forwarded-Proto: wss"))).body == b"main"
    assert (await stage.ask(get(b"/", b"X-Forwarded-Proto: ws"))).status == 308
    await stage.reload(trusted_proxies=[])
    assert (await stage.ask(get(b"/", secure))).status == 308


async def test_redirect_keeps_the_scheme_of_the_client(stage: Stage) -> None:
    """Of several that a trusted proxy states, the first one; WebSockets' are those of HTTP; an unknown one is left to
    the client."""
    routes = [{"host": "example.org", "redirect": {"host": "new.org"}}]
    await stage.serve(await stage.worker(response()), routes=routes, trusted_proxies=["127.0.0.1"])
    stated = (b"https", b"https, http", b"http,https", b"wss", b"Ws", b"x")
    answers = [await stage.ask(get(b"/a", b"X-Forwarded-Proto: " + scheme)) for scheme in stated]
    assert [answer.value(b"Location") for answer in answers] == [
        b"https://new.org/a", b"https://new.org/a", b"http://new.org/a", b"https://new.org/a", b"http://new.org/a",
        b"//new.org/a",
    ]  # fmt: skip


async def test_fixed_answers(stage: Stage, tmp_path: Path) -> None:
    """With its body and type, without an endpoint; in the access log as answered."""
    log = tmp_path / "access.log"
    routes: list[dict[str, Any]] = [
        {"path": "/robots.txt", "answer": {"body": "User-agent: *\n"}},
        {"path": "/gone", "answer": {"status": 410, "body": "{}", "content_type": "application/json"}},
        {"path": "/empty", "answer": {"status": 204}},
    ]
    await stage.serve(await stage.worker(response()), routes=routes, log={"access": "json", "path": str(log)})
    client = await stage.client()
    answer = await client.ask(get(b"/robots.txt"))
    assert (answer.status, answer.body) == (200, b"User-agent: *\n")
    assert answer.value(b"Content-Type") == b"text/plain; charset=utf-8"
    assert (await client.ask(get(b"/robots.txt", method=b"HEAD"), to_head=True)).value(
        b"Content-Length"
    ) == b"14"
    answer = await client.ask(get(b"/gone"))
    assert (answer.status, answer.body, answer.value(b"Content-Type")) == (410, b"{}", b"application/json")
    answer = await client.ask(get(b"/empty"))
    assert (answer.status, answer.value(b"Content-Length")) == (204, None)
    await stage.ask(post(b"body").replace(b"POST / ", b"POST /gone "))
    await stage.running.stop()
    ends = [
        (entry["path"], entry["status"], entry["end"])
        for entry in map(json.loads, log.read_text().splitlines())
    ]
    assert ends == [
        ("/robots.txt", 200, "answered"),
        ("/robots.txt", 200, "answered"),
        ("/gone", 410, "answered"),
        ("/empty", 204, "answered"),
        ("/gone", 410, "answered"),
    ]


async def test_answer_to_an_unfinished_body_closes_the_connection(stage: Stage) -> None:
    await stage.serve(await stage.worker(response()), routes=[{"prefix": "/x", "answer": {"status": 403}}])
    client = await stage.sending(b"POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\n12345")
    answer = await client.response()
    assert (answer.status, answer.value(b"Connection")) == (403, b"close")
    assert await client.rest() == b""


async def test_head_with_a_malformed_body_gets_no_body(stage: Stage) -> None:
    await stage.serve(await stage.worker(response()), routes=[{"prefix": "/x", "answer": {"status": 403}}])
    client = await stage.client()
    asked = client.ask(get(b"/x", b"Transfer-Encoding: chunked", method=b"HEAD") + b"X\r\n", to_head=True)
    assert (await asked).status == 400
    assert await client.rest() == b""


@pytest.mark.parametrize("host", ["secret.test", "*.test"])
async def test_encoded_host_is_refused_where_routes_match_by_host(stage: Stage, host: str) -> None:
    """Workers may decode it."""
    hosts = (b"%73ecret.test", b"secret%2etest", b"secret.test%00")
    await stage.serve(await stage.worker(response()), routes=[{"prefix": "/x", "answer": {"status": 403}}])
    assert [(await (await stage.client()).ask(asked(one))).status for one in hosts] == [200] * 3
    await stage.reload(routes=[{"host": host, "answer": {"status": 403}}])
    assert [(await (await stage.client()).ask(asked(one))).status for one in hosts] == [400] * 3
    assert (await (await stage.client()).ask(asked(b"secret.test"))).status == 403


def asked(host: bytes) -> bytes:
    return b"GET / HTTP/1.1\r\nHost: %b\r\n\r\n" % host


async def test_http10_client_gets_a_redirect_and_the_end(stage: Stage) -> None:
    await stage.serve(
        await stage.worker(response()),
        routes=[{"scheme": "http", "redirect": {"scheme": "https", "host": "new.org"}}],
    )
    client = await stage.sending(b"GET /x HTTP/1.0\r\n\r\n")
    answer = await client.response()
    assert answer.value(b"Location") == b"https://new.org/x"
    assert await client.rest() == b""


async def test_admin_paths_are_not_routed(stage: Stage) -> None:
    await serve_api(
        stage, pool_of(await stage.worker(response(b"api"))), routes=[{"prefix": "/", "cluster": "api"}]
    )
    client = await stage.client()
    assert (await client.ask(get(b"/-/health"))).status == 200
    assert (await stage.ask(get(b"/-x"))).body == b"api"


async def test_pools_have_their_own_limits_and_timeouts(stage: Stage) -> None:
    """A full pool and a slow one do not concern the others; what a pool does not give it inherits."""
    go = asyncio.Event()
    slow = await holding(stage, go)
    limits = {"in_flight": 1, "queue": 0, "body": 3}
    await serve_api(
        stage,
        pool_of(slow, limits=limits, timeouts={"first_byte": 5}),
        timeouts={"first_byte": 7, "total": 99},
    )
    named = stage.control_plane.named["api"].cluster
    assert (named.timeouts.first_byte, named.timeouts.total) == (5, 99)
    assert (stage.cluster.timeouts.first_byte, stage.cluster.limits.body) == (7, None)
    first = await stage.asking(slow, get(b"/api"))
    assert (await stage.ask(get(b"/api"))).status == 503
    assert (await stage.ask(get(b"/"))).body == b"main"
    too_long = await stage.ask(post(b"1234").replace(b"POST / ", b"POST /api "))
    assert too_long.status == 413
    assert (await stage.ask(post(b"1234"))).body == b"main"
    stage.advance(5.5)
    answer = await first.response()
    assert (answer.status, json.loads(answer.body)["error"]) == (504, "response_timeout")
    go.set()


async def test_each_pool_has_its_policy_and_health(stage: Stage) -> None:
    good, dead = await stage.worker(response(b"api")), stage.dead_port()
    api = pool_of(good, policy="random", outlier_detection={"failures": 1})
    api["endpoints"].append({"id": "a1", "address": f"http://127.0.0.1:{dead}", "region": "r"})
    await serve_api(stage, api)
    assert {(await stage.ask(get(b"/api"))).body for _ in range(20)} == {b"api"}
    pool = await pool_status(stage)
    assert pool["policy"]["name"] == "random"
    assert pool["retried"] > 0
    conditions = {each["id"]: each["condition"] for each in pool["endpoints"]}
    assert conditions["a1"] != "ready"
    document = await status(stage)
    assert document["policy"]["name"] == "round-robin"
    assert document["health"]["endpoints"]["ready"] == 2
    assert pool["health"]["healthy"] is True


async def test_reload_adds_changes_and_removes_pools(stage: Stage) -> None:
    """A removed pool finishes its requests; a kept one keeps what it has learned."""
    go = asyncio.Event()
    held, kept, new = (
        await holding(stage, go),
        await stage.worker(response(b"kept")),
        await stage.worker(response(b"new")),
    )
    main = await stage.worker(response(b"main"))
    routes = [{"prefix": "/held", "cluster": "held"}, {"prefix": "/kept", "cluster": "kept"}]
    await stage.serve(main, routes=routes, clusters={"held": pool_of(held), "kept": pool_of(kept)})
    first, client = await stage.client(), await stage.client()
    await first.send(get(b"/held"))
    await stage.eventually(lambda: held.requests)
    assert (await client.ask(get(b"/kept"))).body == b"kept"
    policy = stage.control_plane.named["kept"].cluster.router.policy
    routes = [{"prefix": "/new", "cluster": "new"}, {"prefix": "/kept", "cluster": "kept"}]
    await stage.reload(routes=routes, clusters={"new": pool_of(new), "kept": pool_of(kept, retries=1)})
    assert (await client.ask(get(b"/new"))).body == b"new"
    assert (await client.ask(get(b"/held"))).body == b"main"
    assert (await client.ask(get(b"/kept"))).body == b"kept"
    pools = {pool["name"]: pool["requests"] for pool in (await status(stage))["clusters"]}
    assert pools == {"new": 1, "kept": 2}
    assert stage.control_plane.named["kept"].cluster.router.policy is policy
    assert stage.control_plane.named["kept"].cluster.retries.limit == 1
    go.set()
    assert (await first.response()).body == b"held"
    server = stage.running
    assert len(server.named_clusters.every) == 3
    server.named_clusters.sweep(stage.clock.at)
    assert len(server.named_clusters.every) == 2
    await stage.reload(routes=[], clusters={})
    assert (await client.ask(get(b"/new"))).body == b"main"
    assert "clusters" not in await status(stage)


async def test_removed_pool_still_retries(stage: Stage) -> None:
    """It keeps its endpoints for the requests that it has."""
    go = asyncio.Event()

    async def script(wire: Any) -> None:
        await wire.request()
        await go.wait()

    breaks, good = await stage.worker(script), await stage.worker(response(b"good"))
    await serve_api(stage, pool_of(breaks, good))
    client = await stage.asking(breaks, get(b"/api"))
    await stage.reload(routes=[], clusters={})
    go.set()
    assert (await client.response()).body == b"good"


async def test_bad_pool_changes_nothing(stage: Stage, tmp_path: Path) -> None:
    await serve_api(stage, pool_of(await stage.worker(response(b"api"))))
    file = tmp_path / "endpoints.toml"
    file.write_text("endpoints = 1")
    before = stage.settings
    given = before.model_dump(exclude_unset=True)
    wrong = {**given, "clusters": {**given["clusters"], "new": {"discovery": {"file": {"path": str(file)}}}}}
    stage.read = lambda: type(before)(**wrong)
    answer = await stage.ask(local(b"/-/reload", method=b"POST"))
    assert answer.status == 422
    assert f"clusters.new.discovery.file: {file}" in json.loads(answer.body)["error"]
    assert (await stage.ask(get(b"/api"))).body == b"api"
    assert [pool["name"] for pool in (await status(stage))["clusters"]] == ["api"]


async def test_admin_requests_name_a_pool(stage: Stage) -> None:
    """Endpoints, policy, latency, explanations and recordings of a pool; an unknown one gets 404."""
    added = await stage.worker(response(b"added"))
    await serve_api(stage, pool_of(await stage.worker(response(b"api"))))

    asked = partial(command, stage)

    code, found = await asked("POST", "/-/endpoints?cluster=api", endpoint(added, "a9"))
    assert (code, found["id"]) == (201, "a9")
    assert [each["id"] for each in (await asked("GET", "/-/endpoints?cluster=api"))[1]["endpoints"]] == [
        "a0",
        "a9",
    ]
    assert [each["id"] for each in (await asked("GET", "/-/endpoints"))[1]["endpoints"]] == ["w0"]
    code, found = await asked("PATCH", "/-/endpoints/a0?cluster=api", {"state": "drain"})
    assert (code, found["state"]) == (200, "drain")
    assert (await stage.ask(get(b"/api"))).body == b"added"
    assert (await asked("PUT", "/-/policy?cluster=api", "random"))[1]["name"] == "random"
    assert (await asked("GET", "/-/policy"))[1]["name"] == "round-robin"
    assert (await asked("GET", "/-/policy?cluster=default"))[1]["name"] == "round-robin"
    latency = (await asked("GET", "/-/latency?cluster=api"))[1]
    assert {each["id"]: each["outcomes"]["ok"] for each in latency["endpoints"]} == {"a0": 0, "a9": 1}
    assert [pool["name"] for pool in (await asked("GET", "/-/latency"))[1]["clusters"]] == ["api"]
    await asked("POST", "/-/explain?cluster=api")
    await stage.ask(get(b"/api"))
    await stage.ask(get(b"/"))
    assert (await asked("GET", "/-/explain?cluster=api"))[1]["recent"][0]["picked"] == "a9"
    code, found = await asked("GET", "/-/endpoints?cluster=nope")
    assert (code, found) == (404, {"error": "cluster: must be one of default, api, got 'nope'"})
    assert (await asked("DELETE", "/-/endpoints/a9?cluster=api"))[0] == 200
    await stage.reload(routes=[], clusters={})
    assert (await asked("GET", "/-/policy?cluster=default"))[1]["name"] == "round-robin"
    code, found = await asked("GET", "/-/endpoints?cluster=api")
    assert (code, found) == (404, {"error": "cluster: must be one of default, got 'api'"})


async def test_metrics_have_the_pool_as_a_label(stage: Stage) -> None:
    await serve_api(stage, pool_of(await stage.worker(response(b"api"))))
    await stage.ask(get(b"/api"))
    text = await metrics(stage)
    assert 'steelyard_requests_total{cluster="api"} 1.0' in text
    assert 'steelyard_requests_total{cluster="default"} 0.0' in text
    assert (
        'steelyard_endpoint_outcomes_total{cluster="api",endpoint="a0",outcome="ok",region="r"} 1.0' in text
    )
    assert "steelyard_clients 0.0" in text
    assert text.count("# TYPE steelyard_requests_total") == 1
    await stage.reload(routes=[], clusters={})
    assert "cluster=" not in await metrics(stage)


async def test_log_and_recording_know_the_pool(stage: Stage, tmp_path: Path) -> None:
    log, tape = tmp_path / "access.log", tmp_path / "tape"
    await serve_api(
        stage,
        pool_of(await stage.worker(response(b"api")), policy="random"),
        log={"access": "text", "path": str(log)},
        record={"enabled": True, "path": str(tape)},
    )
    await stage.ask(get(b"/api"))
    await stage.ask(get(b"/"))
    await stage.running.stop()
    api, main = log.read_text().splitlines()
    assert " cluster=api region=r policy=random " in api
    assert " cluster=" not in main
    assert " policy=round-robin " in main
    assert tape.stat().st_size > 0
    assert (tmp_path / "tape.api").stat().st_size > 0


async def test_connections_of_all_pools_share_the_limit_of_descriptors(stage: Stage) -> None:
    """At the limit an idle connection of one pool makes room for another pool's."""
    api, main = await stage.worker(response(b"api")), await stage.worker(response(b"main"))
    await stage.serve(main, routes=[API], clusters={"api": pool_of(api)})
    group = [stage.cluster.pools, stage.control_plane.named["api"].cluster.pools]
    for pools in group:
        pools.limit = 1
    for target, body in ((b"/", b"main"), (b"/api", b"api"), (b"/", b"main")):
        assert (await stage.ask(get(target))).body == body
        assert sum(pools.open_connections for pools in group) == 1


async def test_shutdown_waits_for_the_requests_of_all_pools(stage: Stage) -> None:
    go = asyncio.Event()
    slow = await holding(stage, go)
    await serve_api(stage, pool_of(slow))
    client = await stage.asking(slow, get(b"/api"))
    stopping = asyncio.ensure_future(stage.running.stop())
    await stage.turn()
    assert not stopping.done()
    go.set()
    answer = await client.response()
    assert (answer.body, answer.value(b"Connection")) == (b"held", b"close")
    assert await stopping is True
