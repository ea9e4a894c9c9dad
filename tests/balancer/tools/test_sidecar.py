"""`balancer sidecar`: choice of the origin, forwarded fields, errors, connections, status, configuration."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic.fields import FieldInfo

from balancer.config.problems import ConfigError
from balancer.config.schema.section import Section
from balancer.config.schema.sidecar import OriginConfig, SidecarConfig, origins_from
from balancer.control.admin.status_command import lines_of
from balancer.http.h1.client import OWN_NAME
from balancer.tools.sidecar.origins import Origin, Origins
from balancer.tools.sidecar.server import load_sidecar
from tests.support.admin_requests import local
from tests.support.certificates import Shelf
from tests.support.command_line import run_balancer
from tests.support.config_files import refusals, write
from tests.support.root import ROOT
from tests.support.sidecars import StagedSidecar, request_for, url_of
from tests.support.stage import Stage
from tests.support.wire import Message, Wire, playing, response
from workers.server import Worker
from workers.service import Fixed
from workers.settings import Settings as WorkerSettings

UNSENT, MAYBE = b"unsent", b"maybe-sent"


@pytest.fixture
def sidecar(stage: Stage) -> StagedSidecar:
    return StagedSidecar(stage)


def error_of(answer: Message) -> tuple[int, str, bytes | None]:
    return answer.status, json.loads(answer.body)["error"], answer.value(b"Steelyard-Sidecar")


# --- choice of the origin


def origins_of(*given: tuple[str, str, str | None], own: tuple[str, ...] = ()) -> Origins:
    control_plane: Any = SimpleNamespace(cluster=None)
    return Origins(
        [Origin(name, f"https://{name}", host, prefix, control_plane) for name, host, prefix in given], own
    )


def test_origin_is_chosen_by_host_then_prefix() -> None:
    origins = origins_of(
        ("a", "a.org", "/a/"), ("ab", "ab.org", "/a/b/"), ("all", "all.org", "/"), own=("sidecar",)
    )

    def chosen(host: bytes, target: bytes) -> tuple[str, bytes]:
        origin, rest = origins.choose(host, target)
        return origin.name, rest

    assert chosen(b"A.org:8081", b"/a/x") == ("a", b"/a/x")
    assert chosen(b"ab.org.", b"/") == ("ab", b"/")
    assert chosen(b"localhost:8081", b"/a/x?y=/a/b/") == ("a", b"/x?y=/a/b/")
    assert chosen(b"127.0.0.1", b"/a/b/c") == ("ab", b"/c")
    assert chosen(b"[::1]:8081", b"/a") == ("a", b"/")
    assert chosen(b"sidecar:8081", b"/a?x") == ("a", b"/?x")
    assert chosen(b"localhost", b"/other") == ("all", b"/other")


@pytest.mark.parametrize("host", ["A.org", "a.org.", "[2001:db8:0::1]"])
def test_host_of_a_url_is_compared_like_that_of_a_request(host: str) -> None:
    """In any case, without final dot, and an IPv6 address however it is written."""
    config = load_sidecar(None, {"origins": [{"name": "a", "url": f"https://{host}:1"}]})
    origins = origins_of(("a", config.host_of(config.origins[0]) or "", None))
    assert origins.choose(host.encode(), b"/")[0].name == "a"


def test_prefix_precedes_an_origin_on_this_machine() -> None:
    """Prefixes come first because their host is this machine, too."""
    origins = origins_of(("here", "127.0.0.1", None), ("a", "a.org", "/a/"))
    assert origins.choose(b"127.0.0.1:1", b"/a/x")[0].name == "a"
    assert origins.choose(b"127.0.0.1:1", b"/x")[0].name == "here"


# --- forwarding


async def test_one_client_connection_serves_several_origins(stage: Stage, sidecar: StagedSidecar) -> None:
    """By Host and by prefix; each origin gets its own Host, and no fields about the client."""
    a, b = await stage.worker(response(b"a")), await stage.worker(response(b"b"))
    await sidecar.serve(
        {"name": "a", "url": url_of(a), "host": "a.org"},
        {"name": "b", "url": url_of(b), "host": "b.org", "prefix": "/b/"},
    )
    client = await stage.client()
    bodies = [
        (await client.ask(request_for(host, target))).body
        for host, target in (
            (b"a.org", b"/1"),
            (b"b.org", b"/2"),
            (b"localhost", b"/b/3?x"),
            (b"a.org", b"/4"),
        )
    ]
    assert bodies == [b"a", b"b", b"b", b"a"]
    assert [request.line for request in a.requests] == [b"GET /1 HTTP/1.1", b"GET /4 HTTP/1.1"]
    assert [request.line for request in b.requests] == [b"GET /2 HTTP/1.1", b"GET /3?x HTTP/1.1"]
    for worker in (a, b):
        for request in worker.requests:
            assert request.value(b"Host") == b"127.0.0.1:%d" % worker.port
            assert not [name for name in request.names if name.startswith(b"x-forwarded")]
            assert request.value(b"Via") == b"1.1 " + OWN_NAME
    assert (len(a.connections), len(b.connections)) == (1, 1)


async def test_fields_are_forwarded(stage: Stage, sidecar: StagedSidecar) -> None:
    """Order, case and repetition stay, also those of a trace; X-Forwarded-For is removed."""
    worker = await stage.worker(response())
    await sidecar.serve({"name": "a", "url": url_of(worker), "host": "a.org"})
    parent = b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    fields = [(b"X-One", b"1"), (b"x-one", b"2"), (b"traceparent", parent), (b"X-Request-ID", b"mine")]
    lines = [b"%b: %b" % field for field in fields]
    await stage.ask(request_for(b"a.org", b"/", *lines, b"X-Forwarded-For: 10.0.0.1"))
    (request,) = worker.requests
    assert [field for field in request.fields if field in fields] == fields
    assert request.value(b"X-Forwarded-For") is None


async def test_absolute_target_chooses_the_origin(stage: Stage, sidecar: StagedSidecar) -> None:
    """As from an application that uses the sidecar as its proxy."""
    worker = await stage.worker(response())
    await sidecar.serve({"name": "a", "url": url_of(worker), "host": "a.org"})
    assert (await stage.ask(request_for(b"other.org", b"http://a.org/x?y"))).status == 200
    assert worker.requests[0].line == b"GET /x?y HTTP/1.1"
    assert error_of(await stage.ask(request_for(b"a.org", b"http://b.org/"))) == (
        421,
        "unknown_origin",
        UNSENT,
    )


async def test_pipelined_requests_for_several_origins_are_answered_in_order(
    stage: Stage, sidecar: StagedSidecar
) -> None:
    go = asyncio.Event()
    slow = playing(Wire.request, go, response(b"slow"), Wire.closed)
    a, b = await stage.worker(slow), await stage.worker(response(b"quick"))
    await sidecar.serve(
        {"name": "a", "url": url_of(a), "host": "a.org"}, {"name": "b", "url": url_of(b), "host": "b.org"}
    )
    client = await stage.asking(a, request_for(b"a.org") + request_for(b"b.org"))
    go.set()
    assert [(await client.response()).body for _ in range(2)] == [b"slow", b"quick"]


async def test_unknown_host_and_path_are_rejected(stage: Stage, sidecar: StagedSidecar) -> None:
    """With the marker field, and counted. Other hosts could be those of a web page in a browser (DNS rebinding)."""
    await sidecar.serve({"name": "a", "url": url_of(stage.dead_port()), "host": "a.org", "prefix": "/a/"})
    assert error_of(await stage.ask(request_for(b"b.org", b"/a/x"))) == (421, "unknown_origin", UNSENT)
    for target in (b"/b/", b"/ab"):
        answer = await stage.ask(request_for(b"localhost", target))
        assert error_of(answer) == (404, "unknown_path", UNSENT)
        assert "prefix" in json.loads(answer.body)["detail"]
    assert (await sidecar.document("status"))["errors"] == {"unknown_origin": 1, "unknown_path": 2}


# --- errors


async def test_invalid_certificate_is_answered_502(
    stage: Stage, sidecar: StagedSidecar, tmp_path: Path
) -> None:
    """Nothing is sent, and the fault is counted by kind."""
    shelf = Shelf(tmp_path)
    worker, kind = await stage.worker(response(), tls=shelf.worker("other.example.org")), "certificate_name"
    await sidecar.serve(
        {"name": "a", "url": url_of(worker), "host": "a.org", "retries": 0, "tls": {"ca": str(shelf.ca)}}
    )
    assert error_of(await stage.ask(request_for(b"a.org", method=b"POST"))) == (502, "tls_failed", UNSENT)
    document = await sidecar.origin_status("a")
    assert document["endpoint"]["route"]["faults"] == {kind: 1}
    assert "certificate refused" in document["endpoint"]["connections"]["last_fault"]
    assert document["errors"] == {"tls_failed": 1}
    assert await sidecar.metric("steelyard_endpoint_connect_faults_total", endpoint="a", kind=kind) == 1
    assert await sidecar.metric("steelyard_origin_errors_total", origin="a", reason="tls_failed") == 1
    assert worker.received == b""


FAILURES = {
    "name": ("name_unresolved", UNSENT),
    "refused": ("connect_failed", UNSENT),
    "malformed": ("malformed_response", MAYBE),
    "broken": ("connection_broken", MAYBE),
}


@pytest.mark.parametrize("kind", FAILURES)
async def test_failure_is_answered_502(stage: Stage, sidecar: StagedSidecar, kind: str) -> None:
    """The marker says whether the origin may have acted on the request; the sidecar stays ready."""
    reason, marker = FAILURES[kind]
    worker = await stage.worker(playing(Wire.request, b"SSH-2.0-x\r\n\r\n" if kind == "malformed" else b""))
    urls = {"name": "https://missing.invalid", "refused": url_of(stage.dead_port())}
    await sidecar.serve({"name": "a", "url": urls.get(kind, url_of(worker)), "host": "a.org", "retries": 0})
    sent = request_for(b"a.org", b"/", b"Content-Length: 0", method=b"POST")
    assert error_of(await stage.ask(sent)) == (502, reason, marker)
    document = await sidecar.origin_status("a")
    assert document["errors"] == {reason: 1}
    assert document["endpoint"]["route"]["faults"] == ({kind: 1} if marker == UNSENT else {})
    assert (await sidecar.document("ready"))["ready"] is True
    assert len(worker.requests) == (marker == MAYBE)


async def test_forwarded_503_has_no_marker(stage: Stage, sidecar: StagedSidecar) -> None:
    """Not even if the origin sends the marker field."""
    worker = await stage.worker(response(b"no", b"Steelyard-Sidecar: unsent", status=b"503 Busy"))
    await sidecar.serve({"name": "a", "url": url_of(worker), "host": "a.org"})
    answer = await stage.ask(request_for(b"a.org"))
    assert (answer.status, answer.body, answer.value(b"Steelyard-Sidecar")) == (503, b"no", None)


async def test_slow_origin_does_not_delay_another(stage: Stage, sidecar: StagedSidecar) -> None:
    slow, well = await stage.worker(playing(Wire.request, Wire.closed)), await stage.worker(response(b"well"))
    await sidecar.serve(
        {"name": "slow", "url": url_of(slow), "host": "slow.org", "max_in_flight": 1},
        {"name": "well", "url": url_of(well), "host": "well.org"},
        timeouts={"first_byte": 5.0, "queue": 60.0},
    )
    first, second = await stage.client(), await stage.client()
    await first.send(request_for(b"slow.org", method=b"PATCH"))
    await second.send(request_for(b"slow.org"))
    await stage.eventually(lambda: slow.requests)
    assert (await stage.ask(request_for(b"well.org"))).body == b"well"
    assert (await sidecar.origin_status("slow"))["queued"] == 1
    second.reset()
    await stage.eventually(lambda: len(stage.downstreams) == 1)
    sidecar.sweep(6.0)
    assert error_of(await first.response()) == (504, "response_timeout", MAYBE)


# --- connections


async def test_keys_of_an_origins_connections(stage: Stage, sidecar: StagedSidecar) -> None:
    """Idle timeout, connections before the first request, and no keep-alive; the sweep covers the origins' pools."""
    keys: dict[str, Any] = {
        "idle": {"pool": {"idle_timeout": 3.0}},
        "spare": {"pool": {"preconnect": 2}},
        "once": {"keep_alive": False},
    }
    workers = {name: await stage.worker(response()) for name in keys}
    server = await sidecar.serve(
        *({"name": name, "url": url_of(workers[name]), "host": name, **keys[name]} for name in keys)
    )
    sidecar.sweep()
    await stage.eventually(lambda: len(workers["spare"].connections) == 2)
    for host in (b"idle", b"spare", b"once", b"once"):
        assert (await stage.ask(request_for(host))).status == 200
    assert (await sidecar.origin_status("spare"))["endpoint"]["connections"]["cold"] == 0
    assert len(workers["once"].connections) == 2
    pool = server.origins.all[0].cluster.pools.by_id["idle"]
    sidecar.sweep(1.0)
    assert pool.idle == 1
    sidecar.sweep(3.0)
    sidecar.sweep(3.0)
    assert pool.idle == 0


async def test_tls_and_http2_with_resumption(stage: Stage, sidecar: StagedSidecar, tmp_path: Path) -> None:
    shelf = Shelf(tmp_path)
    settings = WorkerSettings(service=Fixed(0.001), tls="1.3", http="2", certificate=shelf.both("127.0.0.1"))
    async with Worker(settings) as worker:
        origin = {"url": worker.url, "tls": {"ca": str(shelf.ca)}}
        await sidecar.serve(
            {"name": "one", "host": "one.org", **origin},
            {"name": "two", "host": "two.org", "transport": "http2", **origin},
        )
        for host in (b"one.org", b"two.org"):
            assert (await stage.ask(request_for(host, b"/healthz"))).status == 200
        for one in sidecar.server.origins.all:
            one.cluster.pools.by_id[one.name].close_idle()
        for name, host in (("one", b"one.org"), ("two", b"two.org")):
            assert (await stage.ask(request_for(host, b"/healthz"))).status == 200
            tls = (await sidecar.origin_status(name))["endpoint"]["route"]["tls"]
            assert (tls["version"], tls["full"], tls["resumed"]) == ("TLSv1.3", 1, 1)
        await sidecar.server.stop()


# --- status, control, reload


async def test_status_metrics_and_log(stage: Stage, sidecar: StagedSidecar, tmp_path: Path) -> None:
    a, b = await stage.worker(response()), await stage.worker(response())
    log = tmp_path / "access.log"
    await sidecar.serve(
        {"name": "a", "url": url_of(a), "host": "a.org"},
        {"name": "b", "url": url_of(b), "host": "b.org", "prefix": "/b/"},
        log={"access": "json", "path": str(log), "admin": False},
    )
    for host in (b"a.org", b"a.org", b"b.org"):
        await stage.ask(request_for(host))
    document = await sidecar.document("status")
    assert (document["requests"], [origin["requests"] for origin in document["origins"]]) == (3, [2, 1])
    assert document["origins"][1]["prefix"] == "/b/"
    assert await sidecar.metric("steelyard_requests_total") >= 3
    assert await sidecar.metric("steelyard_origin_requests_total", origin="a") == 2
    assert await sidecar.metric("steelyard_endpoint_outcomes_total", endpoint="b", outcome="ok") == 1
    await sidecar.server.stop()
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [line["endpoint"] for line in lines] == ["a", "a", "b"]


async def test_status_shows_errors_and_the_condition_of_each_origin(
    stage: Stage, sidecar: StagedSidecar
) -> None:
    """Totals include the origins, and requests for none of them."""
    down = f"http://127.0.0.1:{stage.dead_port()}"
    up = url_of(await stage.worker(response()))
    await sidecar.serve(
        {"name": "a", "url": up, "prefix": "/a/"}, {"name": "b", "url": down, "prefix": "/b/"}
    )
    for path in (b"/a/x", b"/b/x", b"/b/x", b"/nowhere"):
        await stage.ask(request_for(b"127.0.0.1", path))
    document = await sidecar.document("status")
    assert document["errors"] == {"connect_failed": 2, "unknown_path": 1}
    lines = lines_of(document)
    retried = document["origins"][1]["retried"]
    assert retried > 0
    assert f", requests 3, retried {retried}, errors: unknown_path 1, connect_failed 2" in lines[1]
    assert lines[2:] == [
        f"{'a':<24} ready, requests 1, retried 0, errors: none, {up}",
        f"{'b':<24} {document['origins'][1]['endpoint']['condition_text']}, requests 2, retried {retried}, "
        f"errors: connect_failed 2, {down}",
    ]
    assert "unreachable: Connection refused" in lines[3]


async def test_admin_paths_are_not_forwarded(stage: Stage, sidecar: StagedSidecar) -> None:
    """`/-/` is never forwarded, whatever the Host, and not served on the connection of an origin's requests; commands
    of the balancer are absent."""
    worker = await stage.worker(response())
    await sidecar.serve({"name": "a", "url": url_of(worker), "host": "a.org"})
    for host in (b"a.org", b"localhost"):
        client = await stage.client()
        assert (await client.ask(request_for(host, b"/-/status"))).status == 404
    for path in (b"/-/policy", b"/-/endpoints"):
        assert (await stage.ask(request_for(b"localhost", path))).status == 404
    assert worker.received == b""
    url = f"unix:{sidecar.server.listening.admin.path}"
    refused = await run_balancer("endpoints", "--url", url, "list")
    assert refused.output == f"Error: {url} has no /-/endpoints, as a sidecar has none\n"


async def test_reload_of_origins(stage: Stage, sidecar: StagedSidecar) -> None:
    """Unchanged origins keep their connections, removed ones finish their requests, a bad file changes nothing."""
    go = asyncio.Event()
    slow = playing(Wire.request, go, response(b"late"), Wire.closed)
    a, b, c = await stage.worker(response(b"a")), await stage.worker(slow), await stage.worker(response(b"c"))
    rows = {
        name: {"name": name, "url": url_of(worker), "host": f"{name}.org"}
        for name, worker in (("a", a), ("b", b), ("c", c))
    }
    server = await sidecar.serve(rows["a"], rows["b"])
    assert (await stage.ask(request_for(b"a.org"))).body == b"a"
    waiting = await stage.asking(b, request_for(b"b.org"))
    broken = {**rows["a"], "url": "https://127.0.0.1:1", "tls": {"ca": "/nonexistent"}}
    sidecar.config = SidecarConfig.model_validate({"listen": "127.0.0.1:0", "origins": [broken]})
    with pytest.raises(ConfigError, match="cannot read /nonexistent"):
        await server.reload()
    refused = await stage.ask(local(b"/-/reload", method=b"POST"))
    assert refused.status == 422
    assert b"cannot read /nonexistent" in refused.body
    assert (await stage.ask(request_for(b"a.org"))).body == b"a"
    sidecar.config = SidecarConfig.model_validate(
        {"listen": "127.0.0.1:0", "origins": [rows["a"], rows["c"]]}
    )
    await server.reload()
    assert [(await stage.ask(request_for(host))).body for host in (b"a.org", b"c.org")] == [b"a", b"c"]
    assert len(a.connections) == 1
    assert (await stage.ask(request_for(b"b.org"))).status == 421
    assert len(server.clusters) == 4
    go.set()
    assert (await waiting.response()).body == b"late"
    sidecar.sweep()
    assert len(server.clusters) == 3


async def test_stop_finishes_requests_in_flight(stage: Stage, sidecar: StagedSidecar) -> None:
    go = asyncio.Event()
    worker = await stage.worker(playing(Wire.request, go, response(b"finished"), Wire.closed))
    await sidecar.serve({"name": "a", "url": url_of(worker), "host": "a.org"})
    client = await stage.asking(worker, request_for(b"a.org"))
    stopping = asyncio.ensure_future(sidecar.server.stop())
    await stage.turn()
    go.set()
    answer = await client.response()
    assert (answer.body, answer.value(b"Connection")) == (b"finished", b"close")
    assert await stopping


# --- the configuration


ORIGIN: dict[str, Any] = {"name": "a", "url": "https://a.org"}


FIRST = """
origins = [] -> origins: tuple should have at least 1 item
policy = "random" -> policy: is not a known key
listen = "0.0.0.0:8081" -> allow_remote
listen = "example.org:8081" -> allow_remote
"""
LAST = """
host = "x"; [[origins]]; name = "a"; url = "https://b.org" -> origins: name 'a' is used twice
host = "x"; [[origins]]; name = "b"; url = "https://b.org"; host = "x" -> origins: host 'x' is used twice
[[origins]]; name = "b"; url = "https://a.org" -> nothing leads to 'a'
prefix = "/x/"; [[origins]]; name = "b"; url = "https://b.org"; prefix = "/x/" ->
    origins: prefix '/x/' is used twice
prefix = "x" -> origins.0.prefix
prefix = "/-/" -> origins.0.prefix
host = "a b" -> origins.0.host
tls.ca = "/nonexistent" -> origins.0.tls.ca: cannot read
"""
FILE = '[[origins]]\nname = "a"\nurl = "https://a.org"\n'


@pytest.mark.parametrize(
    ("text", "named"),
    [
        *((text + "\n" + FILE * ("origins" not in text), named) for text, named in refusals(FIRST)),
        *((FILE + text, named) for text, named in refusals(LAST)),
    ],
)
def test_bad_configuration_names_the_field(tmp_path: Path, text: str, named: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_sidecar(write(tmp_path, text), {})
    assert named in str(caught.value)
    assert "\n" not in str(caught.value)


def test_remote_listening_needs_allow_remote() -> None:
    assert load_sidecar(None, {"origins": [ORIGIN], "listen": "0.0.0.0:1", "allow_remote": True})
    assert load_sidecar(None, {"origins": [ORIGIN], "listen": "[::1]:1"})


def test_environment_of_the_balancer_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BALANCER_POLICY", "no-such-policy")
    monkeypatch.setenv("BALANCER_LIMITS__QUEUE", "nothing")
    monkeypatch.setenv("PORT", "1")
    config = load_sidecar(None, {"origins": [ORIGIN]})
    assert (config.listen, config.settings().policy.name) == ("127.0.0.1:8081", "steelyard")


def test_origins_of_the_command_line() -> None:
    assert origins_from(["https://a.org"]) == [{"name": "a.org", "url": "https://a.org", "prefix": "/"}]
    named = origins_from(["x=https://a.org", "https://b.org:1"])
    assert [origin["prefix"] for origin in named] == ["/x/", "/b.org/"]
    with pytest.raises(ConfigError, match="--origin: must be"):
        origins_from(["x="])


def test_example_is_valid() -> None:
    example = ROOT / "examples" / "sidecar.toml"
    config = load_sidecar(example, {})
    assert [origin.name for origin in config.origins] == ["pay", "mail"]


def test_page_lists_every_key_and_default() -> None:
    """Keys that `balancer serve` does not have or has with another meaning."""
    page = (ROOT / "docs" / "sidecar.md").read_text(encoding="utf-8")
    stated = dict(re.findall(r"^\| `([a-z_.]+)` \| [^|]+ \| ([^|]+) \| [^|]+ \|$", page, re.M))
    known = {
        f"{prefix}{name}": documented_default(field)
        for prefix, model in (("", SidecarConfig), ("origins.", OriginConfig))
        for name, field in model.model_fields.items()
        if name != "origins"
        and not (isinstance(field.annotation, type) and issubclass(field.annotation, Section))
    }
    assert stated == known


def documented_default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.get_default()
    return "–" if value is None else f"`{json.dumps(list(value) if value == () else value)}`"
