"""`balancer sidecar`: whose a request is, what an origin is told, what becomes of it, and what is told of the whole."""

from __future__ import annotations

import asyncio
import json
import re
import ssl
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trustme
from prometheus_client.parser import text_string_to_metric_families
from pydantic.fields import FieldInfo

from balancer.config.load import ConfigError
from balancer.config.sections import Section
from balancer.config.sidecar import OriginConfig, SidecarConfig, origins_from
from balancer.configuration import load_sidecar
from balancer.errors import RequestRejected
from balancer.sidecar.origins import Origin, Origins
from balancer.sidecar.server import SidecarServer
from tests.balancer.certificates import Shelf
from tests.balancer.conftest import Message, ScriptedWorker, Stage, Wire, get, response
from workers.server import Worker
from workers.service import Fixed
from workers.settings import Settings as WorkerSettings

UNSENT, MAYBE = b"unsent", b"maybe-sent"


def url_of(worker: ScriptedWorker | int) -> str:
    if isinstance(worker, int):
        return f"http://127.0.0.1:{worker}"
    return f"http{'s' if worker.tls else ''}://127.0.0.1:{worker.port}"


class Aside:
    """A sidecar on a stage."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.config: SidecarConfig
        self.server: SidecarServer

    async def serve(self, *origins: dict[str, Any], **keys: Any) -> SidecarServer:
        self.config = SidecarConfig(**{"listen": "127.0.0.1:0", "origins": origins, **keys})
        self.server = SidecarServer(self.config, self.stage.clock, lambda: self.config)
        self.stage.server = self.server
        await self.server.start()
        return self.server

    def sweep(self, seconds: float = 0.25) -> None:
        self.stage.advance(seconds)
        self.server._look(self.stage.clock.at)

    async def told(self, path: str) -> Any:
        answer = await self.stage.ask(b"GET /-/%b HTTP/1.1\r\nHost: localhost\r\n\r\n" % path.encode())
        return json.loads(answer.body)

    async def origin_told(self, name: str) -> Any:
        (found,) = (one for one in (await self.told("status"))["origins"] if one["id"] == name)
        return found

    async def metric(self, name: str, **labels: str) -> float:
        answer = await self.stage.ask(get(b"/-/metrics").replace(b"example.org", b"localhost"))
        families = text_string_to_metric_families(answer.body.decode())
        samples = [sample for family in families for sample in family.samples if sample.name == name]
        return sum(sample.value for sample in samples if labels.items() <= sample.labels.items())


@pytest.fixture
def aside(stage: Stage) -> Aside:
    return Aside(stage)


def asking(host: bytes, target: bytes = b"/", *fields: bytes, method: bytes = b"GET") -> bytes:
    return get(target, *fields, method=method).replace(b"Host: example.org", b"Host: " + host)


def error_of(answer: Message) -> tuple[int, str, bytes | None]:
    return answer.status, json.loads(answer.body)["error"], answer.value(b"Steelyard-Sidecar")


# --- whose a request is


def origins_of(*given: tuple[str, str, str | None], own: tuple[str, ...] = ()) -> Origins:
    control_plane: Any = SimpleNamespace(proxy=None)
    return Origins(
        [Origin(name, f"https://{name}", host, prefix, control_plane) for name, host, prefix in given], own
    )


def test_host_goes_first_and_prefixes_are_taken_off() -> None:
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


@pytest.mark.parametrize(
    ("host", "target", "status"),
    [
        (b"evil.org", b"/a/x", 421),
        (b"localhost", b"/b/", 404),
        (b"localhost", b"/ab", 404),
        (b"", b"/a/", 421),
    ],
)
def test_nobody_is_chosen(host: bytes, target: bytes, status: int) -> None:
    """Another name that leads here, of a page that a browser was shown, is nobody's."""
    with pytest.raises(RequestRejected) as caught:
        origins_of(("a", "a.org", "/a/")).choose(host, target)
    assert caught.value.status == status


def test_an_origin_on_this_machine() -> None:
    """Its host is the one that prefixes are asked of: they go first."""
    origins = origins_of(("here", "127.0.0.1", None), ("a", "a.org", "/a/"))
    assert origins.choose(b"127.0.0.1:1", b"/a/x")[0].name == "a"
    assert origins.choose(b"127.0.0.1:1", b"/x")[0].name == "here"


# --- what an origin is told


async def test_requests_go_to_their_origins_on_one_connection(stage: Stage, aside: Aside) -> None:
    """By Host and by prefix; each is told its own Host, and nothing of who asked."""
    a, b = await stage.worker(response(b"a")), await stage.worker(response(b"b"))
    await aside.serve(
        {"name": "a", "url": url_of(a), "host": "a.org"},
        {"name": "b", "url": url_of(b), "host": "b.org", "prefix": "/b/"},
    )
    client = await stage.client()
    bodies = [
        (await client.ask(asking(host, target))).body
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
            assert request.value(b"Via") == b"1.1 steelyard"
    assert (len(a.connections), len(b.connections)) == (1, 1)


async def test_fields_and_bodies_travel(stage: Stage, aside: Aside) -> None:
    """Order, case and repetition; bodies with a length and in chunks; what a client says of others does not."""
    worker = await stage.worker(response())
    await aside.serve({"name": "a", "url": url_of(worker), "host": "a.org"})
    sent = asking(
        b"a.org", b"/", b"X-One: 1", b"x-one: 2", b"X-Forwarded-For: 10.0.0.1", b"X-Request-ID: mine"
    )
    await stage.ask(sent)
    (request,) = worker.requests
    assert [field for field in request.fields if field[0].lower() == b"x-one"] == [
        (b"X-One", b"1"),
        (b"x-one", b"2"),
    ]
    assert (request.value(b"X-Forwarded-For"), request.value(b"X-Request-ID")) == (None, b"mine")
    await stage.ask(asking(b"a.org", b"/", b"Content-Length: 5", method=b"POST") + b"hello")
    chunked = asking(b"a.org", b"/", b"Transfer-Encoding: chunked", method=b"PUT") + b"2\r\nhi\r\n0\r\n\r\n"
    await stage.ask(chunked)
    assert [request.body for request in worker.requests[1:]] == [b"hello", b"hi"]


async def test_an_absolute_target_names_its_origin(stage: Stage, aside: Aside) -> None:
    """As an application asks that takes the sidecar for its proxy."""
    worker = await stage.worker(response())
    await aside.serve({"name": "a", "url": url_of(worker), "host": "a.org"})
    assert (await stage.ask(asking(b"other.org", b"http://a.org/x?y"))).status == 200
    assert worker.requests[0].line == b"GET /x?y HTTP/1.1"
    assert error_of(await stage.ask(asking(b"a.org", b"http://b.org/"))) == (421, "unknown_origin", UNSENT)


async def test_pipelined_requests_for_several_origins(stage: Stage, aside: Aside) -> None:
    """They are answered in their order, whoever is quicker."""
    go = asyncio.Event()

    async def slow(wire: Wire) -> None:
        await wire.request()
        await go.wait()
        await wire.send(response(b"slow"))
        await wire.closed()

    a, b = await stage.worker(slow), await stage.worker(response(b"quick"))
    await aside.serve(
        {"name": "a", "url": url_of(a), "host": "a.org"}, {"name": "b", "url": url_of(b), "host": "b.org"}
    )
    client = await stage.client()
    await client.send(asking(b"a.org") + asking(b"b.org"))
    await stage.eventually(lambda: a.requests)
    go.set()
    assert [(await client.response()).body for _ in range(2)] == [b"slow", b"quick"]


async def test_unknown_hosts_and_paths(stage: Stage, aside: Aside) -> None:
    """Clear words, the marker, and counted."""
    await aside.serve({"name": "a", "url": url_of(stage.dead_port()), "host": "a.org", "prefix": "/a/"})
    assert error_of(await stage.ask(asking(b"b.org"))) == (421, "unknown_origin", UNSENT)
    answer = await stage.ask(asking(b"localhost", b"/b/"))
    assert error_of(answer) == (404, "unknown_path", UNSENT)
    assert "prefix" in json.loads(answer.body)["detail"]
    assert (await aside.told("status"))["errors"] == {"unknown_origin": 1, "unknown_path": 1}


# --- what goes wrong


def self_signed(folder: Path) -> ssl.SSLContext:
    """A certificate that nobody has signed but itself."""
    authority = trustme.CA()
    path = folder / "self.pem"
    path.write_bytes(authority.private_key_pem.bytes() + authority.cert_pem.bytes())
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(path)
    return context


@pytest.mark.parametrize(
    ("context", "kind"),
    [
        (lambda shelf: shelf.worker("127.0.0.1", is_expired=True), "certificate_expired"),
        (lambda shelf: shelf.worker("other.example.org"), "certificate_name"),
        (lambda shelf: self_signed(shelf.folder), "certificate_self_signed"),
    ],
)
async def test_certificates_that_are_not_believed(
    stage: Stage, aside: Aside, tmp_path: Path, context: Callable[[Shelf], Any], kind: str
) -> None:
    """A clear answer, nothing sent, counted by kind."""
    shelf = Shelf(tmp_path)
    worker = await stage.worker(response(), tls=context(shelf))
    await aside.serve(
        {"name": "a", "url": url_of(worker), "host": "a.org", "retries": 0, "tls": {"ca": str(shelf.ca)}}
    )
    assert error_of(await stage.ask(asking(b"a.org", method=b"POST"))) == (502, "tls_failed", UNSENT)
    told = await aside.origin_told("a")
    assert told["endpoint"]["route"]["faults"] == {kind: 1}
    assert "certificate refused" in told["endpoint"]["connections"]["last_fault"]
    assert told["errors"] == {"tls_failed": 1}
    assert await aside.metric("steelyard_endpoint_connect_faults_total", endpoint="a", kind=kind) == 1
    assert await aside.metric("steelyard_origin_errors_total", origin="a", reason="tls_failed") == 1
    assert worker.received == b""


async def test_a_name_that_does_not_resolve(stage: Stage, aside: Aside) -> None:
    await aside.serve({"name": "a", "url": "https://nobody.invalid", "retries": 0})
    assert error_of(await stage.ask(asking(b"nobody.invalid"))) == (502, "name_unresolved", UNSENT)
    assert (await aside.origin_told("a"))["endpoint"]["route"]["faults"] == {"name": 1}


async def test_an_origin_that_is_not_there(stage: Stage, aside: Aside) -> None:
    """It is told by kind, and the sidecar is ready all the same: the others would be away, too."""
    await aside.serve({"name": "a", "url": url_of(stage.dead_port()), "host": "a.org"})
    assert error_of(await stage.ask(asking(b"a.org"))) == (502, "connect_failed", UNSENT)
    assert (await aside.origin_told("a"))["endpoint"]["route"]["faults"]["refused"] >= 1
    assert (await aside.told("ready"))["ready"] is True


@pytest.mark.parametrize(
    ("said", "reason", "status"),
    [(b"SSH-2.0-x\r\n\r\n", "malformed_response", 502), (b"", "connection_broken", 502)],
)
async def test_an_origin_that_makes_no_sense(
    stage: Stage, aside: Aside, said: bytes, reason: str, status: int
) -> None:
    """It may have done what it was asked for: the marker says so."""

    async def script(wire: Wire) -> None:
        await wire.request()
        await wire.send(said)

    worker = await stage.worker(script)
    await aside.serve({"name": "a", "url": url_of(worker), "host": "a.org"})
    sent = asking(b"a.org", b"/", b"Content-Length: 0", method=b"POST")
    assert error_of(await stage.ask(sent)) == (status, reason, MAYBE)
    assert (await aside.origin_told("a"))["errors"] == {reason: 1}
    assert len(worker.requests) == 1


async def test_an_origins_own_503_has_no_marker(stage: Stage, aside: Aside) -> None:
    """Not even if it says so itself."""
    worker = await stage.worker(response(b"no", b"Steelyard-Sidecar: unsent", status=b"503 Busy"))
    await aside.serve({"name": "a", "url": url_of(worker), "host": "a.org"})
    answer = await stage.ask(asking(b"a.org"))
    assert (answer.status, answer.body, answer.value(b"Steelyard-Sidecar")) == (503, b"no", None)


async def test_one_origin_in_trouble_is_nobody_elses(stage: Stage, aside: Aside) -> None:
    async def script(wire: Wire) -> None:
        await wire.request()
        await wire.closed()

    slow, well = await stage.worker(script), await stage.worker(response(b"well"))
    await aside.serve(
        {"name": "slow", "url": url_of(slow), "host": "slow.org", "max_in_flight": 1},
        {"name": "well", "url": url_of(well), "host": "well.org"},
        timeouts={"first_byte": 5.0, "queue": 60.0},
    )
    first, second = await stage.client(), await stage.client()
    await first.send(asking(b"slow.org", method=b"PATCH"))
    await second.send(asking(b"slow.org"))
    await stage.eventually(lambda: slow.requests)
    assert (await stage.ask(asking(b"well.org"))).body == b"well"
    assert (await aside.origin_told("slow"))["queued"] == 1
    second.reset()
    await stage.eventually(lambda: len(stage.proxy.downstreams) == 1)
    aside.sweep(6.0)
    assert error_of(await first.response()) == (504, "response_timeout", MAYBE)


# --- connections


async def test_connections_age_and_a_get_that_meets_a_closed_one_is_sent_again(
    stage: Stage, aside: Aside
) -> None:
    """The sweep of the front looks after the origins' pools."""
    worker = await stage.worker(response())
    server = await aside.serve(
        {"name": "a", "url": url_of(worker), "host": "a.org", "pool": {"idle_timeout": 3.0}}
    )
    (origin,) = server.origins.all
    pool = origin.proxy.pools.by_id["a"]
    assert (await stage.ask(asking(b"a.org"))).status == 200
    aside.sweep(1.0)
    assert pool.idle == 1
    aside.sweep(3.0)
    aside.sweep(3.0)
    assert pool.idle == 0


async def test_connections_are_kept_ready(stage: Stage, aside: Aside) -> None:
    """Before anybody has asked for anything."""
    worker = await stage.worker(response())
    await aside.serve({"name": "a", "url": url_of(worker), "host": "a.org", "pool": {"preconnect": 2}})
    aside.sweep()
    await stage.eventually(lambda: len(worker.connections) == 2)
    assert (await stage.ask(asking(b"a.org"))).status == 200
    assert (await aside.origin_told("a"))["endpoint"]["connections"]["cold"] == 0


async def test_an_origin_that_is_to_get_a_connection_for_each_request(stage: Stage, aside: Aside) -> None:
    worker = await stage.worker(response())
    await aside.serve({"name": "a", "url": url_of(worker), "host": "a.org", "keep_alive": False})
    client = await stage.client()
    for _ in range(2):
        assert (await client.ask(asking(b"a.org"))).status == 200
    assert len(worker.connections) == 2


async def test_tls_and_http2_with_resumption(stage: Stage, aside: Aside, tmp_path: Path) -> None:
    shelf = Shelf(tmp_path)
    pair = shelf.pair("127.0.0.1")
    both = tmp_path / "both.pem"
    both.write_bytes(b"".join(Path(part).read_bytes() for part in pair.values()))  # noqa: ASYNC240
    settings = WorkerSettings(service=Fixed(0.001), tls="1.3", http="2", certificate=both)
    async with Worker(settings) as worker:
        origin = {"url": worker.url, "tls": {"ca": str(shelf.ca)}}
        await aside.serve(
            {"name": "one", "host": "one.org", **origin},
            {"name": "two", "host": "two.org", "transport": "http2", **origin},
        )
        for host in (b"one.org", b"two.org"):
            assert (await stage.ask(asking(host, b"/healthz"))).status == 200
        for one in aside.server.origins.all:
            one.proxy.pools.by_id[one.name].close_idle()
        for name, host in (("one", b"one.org"), ("two", b"two.org")):
            assert (await stage.ask(asking(host, b"/healthz"))).status == 200
            tls = (await aside.origin_told(name))["endpoint"]["route"]["tls"]
            assert (tls["version"], tls["full"], tls["resumed"]) == ("TLSv1.3", 1, 1)
        await aside.server.stop()


# --- the whole


async def test_status_metrics_and_log(stage: Stage, aside: Aside, tmp_path: Path) -> None:
    a, b = await stage.worker(response()), await stage.worker(response())
    log = tmp_path / "access.log"
    await aside.serve(
        {"name": "a", "url": url_of(a), "host": "a.org"},
        {"name": "b", "url": url_of(b), "host": "b.org", "prefix": "/b/"},
        log={"access": "json", "path": str(log), "admin": False},
    )
    for host in (b"a.org", b"a.org", b"b.org"):
        await stage.ask(asking(host))
    told = await aside.told("status")
    assert (told["requests"], [origin["requests"] for origin in told["origins"]]) == (3, [2, 1])
    assert told["origins"][1]["prefix"] == "/b/"
    assert await aside.metric("steelyard_requests_total") >= 3
    assert await aside.metric("steelyard_origin_requests_total", origin="a") == 2
    assert await aside.metric("steelyard_endpoint_outcomes_total", endpoint="b", outcome="ok") == 1
    await aside.server.stop()
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [line["endpoint"] for line in lines] == ["a", "a", "b"]


@pytest.mark.parametrize("path", [b"/-/policy", b"/-/endpoints"])
async def test_what_has_no_meaning_here_is_not_there(stage: Stage, aside: Aside, path: bytes) -> None:
    await aside.serve({"name": "a", "url": url_of(stage.dead_port()), "host": "a.org"})
    assert (await stage.ask(asking(b"localhost", path))).status == 404


async def test_control_is_not_for_other_names(stage: Stage, aside: Aside) -> None:
    """`/-/` is never forwarded, whatever the Host, and not shown where requests for origins come."""
    worker = await stage.worker(response())
    await aside.serve({"name": "a", "url": url_of(worker), "host": "a.org"})
    for host in (b"a.org", b"localhost"):
        client = await stage.client()
        assert (await client.ask(asking(host, b"/-/status"))).status == 404
    assert worker.received == b""


async def test_a_reload_brings_and_takes_origins(stage: Stage, aside: Aside) -> None:
    """Who stays keeps its connections; who goes finishes what it has; what is wrong changes nothing."""
    go = asyncio.Event()

    async def slow(wire: Wire) -> None:
        await wire.request()
        await go.wait()
        await wire.send(response(b"late"))
        await wire.closed()

    a, b, c = await stage.worker(response(b"a")), await stage.worker(slow), await stage.worker(response(b"c"))
    rows = {
        name: {"name": name, "url": url_of(worker), "host": f"{name}.org"}
        for name, worker in (("a", a), ("b", b), ("c", c))
    }
    server = await aside.serve(rows["a"], rows["b"])
    assert (await stage.ask(asking(b"a.org"))).body == b"a"
    waiting = await stage.client()
    await waiting.send(asking(b"b.org"))
    await stage.eventually(lambda: b.requests)
    broken = {**rows["a"], "url": "https://127.0.0.1:1", "tls": {"ca": "/nonexistent"}}
    aside.config = SidecarConfig.model_validate({"listen": "127.0.0.1:0", "origins": [broken]})
    with pytest.raises(ConfigError, match="cannot read /nonexistent"):
        await server.reload()
    assert (await stage.ask(asking(b"a.org"))).body == b"a"
    aside.config = SidecarConfig.model_validate({"listen": "127.0.0.1:0", "origins": [rows["a"], rows["c"]]})
    await server.reload()
    assert [(await stage.ask(asking(host))).body for host in (b"a.org", b"c.org")] == [b"a", b"c"]
    assert len(a.connections) == 1
    assert (await stage.ask(asking(b"b.org"))).status == 421
    assert len(server.control_planes) == 3
    go.set()
    assert (await waiting.response()).body == b"late"
    aside.sweep()
    assert len(server.control_planes) == 2


async def test_an_end_finishes_what_is_in_flight(stage: Stage, aside: Aside) -> None:
    go = asyncio.Event()

    async def slow(wire: Wire) -> None:
        await wire.request()
        await go.wait()
        await wire.send(response(b"finished"))
        await wire.closed()

    worker = await stage.worker(slow)
    await aside.serve({"name": "a", "url": url_of(worker), "host": "a.org"})
    client = await stage.client()
    await client.send(asking(b"a.org"))
    await stage.eventually(lambda: worker.requests)
    stopping = asyncio.ensure_future(aside.server.stop())
    await stage.turn()
    go.set()
    answer = await client.response()
    assert (answer.body, answer.value(b"Connection")) == (b"finished", b"close")
    assert await stopping


async def test_an_upgrade_becomes_a_tunnel(stage: Stage, aside: Aside) -> None:
    async def script(wire: Wire) -> None:
        await wire.request()
        await wire.send(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: chat\r\nConnection: upgrade\r\n\r\n")
        await wire.send(await wire.exactly(4))
        await wire.closed()

    worker = await stage.worker(script)
    await aside.serve({"name": "a", "url": url_of(worker), "host": "a.org"})
    client = await stage.client()
    offer = asking(b"a.org", b"/", b"Upgrade: chat", b"Connection: upgrade")
    assert (await client.ask(offer)).status == 101
    await client.send(b"ping")
    assert await client.exactly(4) == b"ping"


# --- the configuration


ORIGIN: dict[str, Any] = {"name": "a", "url": "https://a.org"}


@pytest.mark.parametrize(
    ("document", "named"),
    [
        ({}, "origins: is required"),
        ({"origins": []}, "origins"),
        ({"origins": [ORIGIN, {**ORIGIN, "host": "b.org"}]}, "origins: name 'a' is used twice"),
        (
            {"origins": [{**ORIGIN, "host": "x"}, {**ORIGIN, "name": "b", "host": "x"}]},
            "origins: host 'x' is used twice",
        ),
        ({"origins": [ORIGIN, {**ORIGIN, "name": "b"}]}, "nothing leads to 'a'"),
        (
            {
                "origins": [
                    {**ORIGIN, "prefix": "/x/"},
                    {"name": "b", "url": "https://b.org", "prefix": "/x/"},
                ]
            },
            "origins: prefix '/x/' is used twice",
        ),
        ({"origins": [{**ORIGIN, "url": "https://a.org/v1"}]}, "origins.0.url"),
        ({"origins": [{**ORIGIN, "prefix": "x"}]}, "origins.0.prefix"),
        ({"origins": [{**ORIGIN, "prefix": "/-/"}]}, "origins.0.prefix"),
        ({"origins": [{**ORIGIN, "host": "a b"}]}, "origins.0.host"),
        ({"origins": [{**ORIGIN, "tls": {"ca": "/nonexistent"}}]}, "origins.0.tls.ca: cannot read"),
        ({"origins": [ORIGIN], "listen": "0.0.0.0:8081"}, "allow_remote"),
        ({"origins": [ORIGIN], "listen": "example.org:8081"}, "allow_remote"),
        ({"origins": [ORIGIN], "listen": "nowhere"}, "listen: must be host:port"),
        ({"origins": [ORIGIN], "policy": "random"}, "policy: is not a known key"),
    ],
)
def test_bad_configurations(document: dict[str, Any], named: str) -> None:
    """One line that names the field."""
    with pytest.raises(ConfigError) as caught:
        load_sidecar(None, document)
    assert named in str(caught.value)
    assert "\n" not in str(caught.value)


def test_remote_listening_has_to_be_meant() -> None:
    assert load_sidecar(None, {"origins": [ORIGIN], "listen": "0.0.0.0:1", "allow_remote": True})
    assert load_sidecar(None, {"origins": [ORIGIN], "listen": "[::1]:1"})


def test_the_environment_of_the_unit_is_not_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BALANCER_POLICY", "no-such-policy")
    monkeypatch.setenv("BALANCER_LIMITS__QUEUE", "nothing")
    monkeypatch.setenv("PORT", "1")
    config = load_sidecar(None, {"origins": [ORIGIN]})
    assert (config.listen, config.front().policy.name) == ("127.0.0.1:8081", "random")


def test_origins_of_the_command_line() -> None:
    assert origins_from(["https://a.org"]) == [{"name": "a.org", "url": "https://a.org", "prefix": "/"}]
    named = origins_from(["x=https://a.org", "https://b.org:1"])
    assert [origin["prefix"] for origin in named] == ["/x/", "/b.org/"]
    with pytest.raises(ConfigError, match="--origin: must be"):
        origins_from(["x="])


def test_the_example_is_good() -> None:
    example = Path(__file__).resolve().parents[2] / "examples" / "sidecar.toml"
    config = load_sidecar(example, {})
    assert [origin.name for origin in config.origins] == ["pay", "mail"]


def test_the_page_states_every_key_and_its_default() -> None:
    """Of those that `balancer serve` has not, or has otherwise."""
    page = (Path(__file__).resolve().parents[2] / "docs" / "sidecar.md").read_text(encoding="utf-8")
    stated = dict(re.findall(r"^\| `([a-z_.]+)` \| [^|]+ \| ([^|]+) \| [^|]+ \|$", page, re.M))
    known = {
        f"{prefix}{name}": told_default(field)
        for prefix, model in (("", SidecarConfig), ("origins.", OriginConfig))
        for name, field in model.model_fields.items()
        if name != "origins"
        and not (isinstance(field.annotation, type) and issubclass(field.annotation, Section))
    }
    assert stated == known


def told_default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.get_default()
    return "–" if value is None else f"`{json.dumps(list(value) if value == () else value)}`"
