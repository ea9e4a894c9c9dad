"""Further listeners: redirect, cluster, TLS, PROXY protocol, Unix sockets; common limits, drain, reload."""

from __future__ import annotations

import asyncio
import os
import re
import socket
import ssl
import stat
import textwrap
import tomllib
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from balancer.config.schema.listeners import ListenerConfig, changed_listeners
from balancer.control.admin.status import proxy_status
from balancer.control.admin.status_command import lines_of
from balancer.downstream.acceptor import BATCH
from balancer.downstream.listening_sockets import bind_unix
from balancer.errors import ListenFailed
from balancer.process_context import FIRST_REQUEST
from tests.support.certificates import Shelf
from tests.support.documentation import text_of
from tests.support.http2_client import Http2Client
from tests.support.stage import Stage, pool_of, serve_api
from tests.support.wire import Wire, get, response

ANY = "127.0.0.1:0"


async def client(
    stage: Stage, name: str = "other", tls: ssl.SSLContext | None = None, first: bytes = b""
) -> Wire:
    """Connect to a listener; `first` is sent before the TLS handshake."""
    server_name = "shop.example.org" if tls else None
    return await stage.client(listener=name, tls=tls, name=server_name, first=first)


async def body(stage: Stage, name: str = "other", target: bytes = b"/", **given: Any) -> bytes:
    """The body of the response to a request on a new connection."""
    return (await (await client(stage, name, **given)).ask(get(target))).body


async def clusters(stage: Stage, **settings: Any) -> None:
    """Serve a default cluster and one for /api, each with a worker that answers its name."""
    await serve_api(stage, pool_of(await stage.worker(response(b"api"))), **settings)


# --- where requests go


async def test_documented_example(stage: Stage, tmp_path: Path) -> None:
    """Port 80 redirects whatever the routes, port 443 serves; probes are answered on both."""
    page = text_of("docs/configuration.md").partition("\n## Listeners\n")[2]
    example = re.search(r"\n\n((?:    .*\n)+)", page)
    assert example is not None
    document = tomllib.loads(textwrap.dedent(example[1]))
    assert (document["listen"], document["listeners"]["http"]["listen"]) == ("0.0.0.0:443", "0.0.0.0:80")
    document["listen"] = document["listeners"]["http"]["listen"] = ANY
    shelf = Shelf(tmp_path)
    document["tls"] = shelf.pair("shop.example.org")
    await clusters(stage, **document)
    plain = await client(stage, "http")
    for target in (b"/", b"/api/x?q=1"):
        answer = await plain.ask(b"GET %b HTTP/1.1\r\nHost: shop.example.org:8080\r\n\r\n" % target)
        assert (answer.status, answer.value(b"Location")) == (308, b"https://shop.example.org" + target)
    assert (await plain.ask(get(b"/-/live"))).status == 200
    assert await body(stage, "", b"/api", tls=shelf.client()) == b"api"
    http2 = Http2Client(await client(stage, "http"))
    answered = await http2.ask(path=b"/api")
    assert (answered.status, answered.head[b"location"]) == (308, b"https://example.org/api")


async def test_redirect_does_not_lead_to_itself(stage: Stage) -> None:
    """Behind a proxy that ends TLS, the forwarding field tells."""
    listeners = {"other": {"listen": ANY, "redirect": {"scheme": "https", "status": 301}}}
    await clusters(stage, listeners=listeners, trusted_proxies=["127.0.0.1"])
    wire = await client(stage)
    assert (await wire.ask(get())).status == 301
    assert (await wire.ask(get(b"/api", b"X-Forwarded-Proto: https"))).body == b"api"
    assert (await wire.ask(get(b"/", b"X-Forwarded-Proto: https"))).body == b"main"


@pytest.mark.parametrize(
    ("redirect", "location"), [({"path": "/new"}, b"/new"), ({"replace_prefix": "/new"}, b"/new/api")]
)
async def test_redirect_to_a_path(stage: Stage, redirect: dict[str, str], location: bytes) -> None:
    """Requests that are there go to the routes."""
    await clusters(stage, listeners={"other": {"listen": ANY, "redirect": redirect}})
    wire = await client(stage)
    assert (await wire.ask(get(b"/%2e/api?q"))).value(b"Location") == location + b"?q"
    assert (await wire.ask(get(b"/./new?q"))).body == b"main"


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        ({}, [b"main", b"api"]),
        ({"cluster": "api"}, [b"api"] * 2),
        ({"cluster": "default"}, [b"main"] * 2),
    ],
)
async def test_cluster_of_a_listener(stage: Stage, own: dict[str, str], expected: list[bytes]) -> None:
    """It gets all requests, in both protocols; without one, the routes apply, as they do at `listen`."""
    await clusters(stage, listeners={"other": {"listen": ANY, **own}})
    targets = (b"/", b"/api")
    assert [await body(stage, "other", target) for target in targets] == expected
    assert [await body(stage, "", target) for target in targets] == [b"main", b"api"]
    http2 = Http2Client(await client(stage))
    assert [(await http2.ask(path=target)).body for target in targets] == expected


async def test_rate_limit_of_all_requests(stage: Stage) -> None:
    limit = {"name": "all", "requests": 1, "period": 60, "everywhere": True}
    await clusters(stage, listeners={"other": {"listen": ANY, "cluster": "api"}}, rate_limits=[limit])
    wire = await client(stage)
    assert [(await wire.ask(get())).status for _ in range(2)] == [200, 429]


# --- connections


async def test_tls_and_proxy_protocol_of_a_listener(stage: Stage, tmp_path: Path) -> None:
    """Each listener has its own; one without TLS beside one with."""
    shelf = Shelf(tmp_path)
    own = {"listen": ANY, "tls": shelf.pair("shop.example.org"), "proxy_protocol": ["127.0.0.1"]}
    worker = await stage.serve_worker(response(), listeners={"other": own})
    header = b"PROXY TCP4 192.0.2.7 192.0.2.8 1 2\r\n"
    await (await client(stage, tls=shelf.client(), first=header)).ask(get())
    await (await client(stage, "")).ask(get())
    first, second = worker.requests
    assert (first.value(b"X-Forwarded-For"), first.value(b"X-Forwarded-Proto")) == (b"192.0.2.7", b"https")
    assert (second.value(b"X-Forwarded-For"), second.value(b"X-Forwarded-Proto")) == (b"127.0.0.1", b"http")


async def test_late_handshake_of_a_listener(stage: Stage, tmp_path: Path) -> None:
    own = {"listen": ANY, "tls": Shelf(tmp_path).pair("shop.example.org")}
    await stage.serve(await stage.worker(response()), listeners={"other": own})
    wire = await client(stage)
    await stage.eventually(lambda: len(stage.running.arrivals) == 1)
    stage.clock.at += 60
    await wire.closed()
    assert stage.cluster.process.counts.failed_arrivals == 1


async def test_clients_of_all_listeners_count_together(stage: Stage) -> None:
    await stage.serve(
        await stage.worker(response()), limits={"clients": 2}, listeners={"other": {"listen": ANY}}
    )
    wires = [await client(stage, name) for name in ("", "other", "other")]
    for wire in wires:
        await wire.send(get())
    for wire in wires[:2]:
        assert (await wire.response()).status == 200
    assert len(stage.downstreams) == 2
    await wires[0].close()
    assert (await wires[2].response()).status == 200


async def test_drain_closes_all_listeners(stage: Stage) -> None:
    await stage.serve(await stage.worker(response()), listeners={"other": {"listen": ANY}})
    addresses = [one.address for one in stage.running.listening.traffic.values()]
    wire = await client(stage)
    await wire.ask(get())
    assert await stage.running.stop()
    assert await wire.rest() == b""
    for address in addresses:
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", address.port)


async def test_stop_serves_clients_that_wait_in_the_backlog(stage: Stage) -> None:
    """More than are accepted at once; one of them sends its request later."""
    server = await stage.serve(await stage.worker(response()), timeouts={"shutdown": 60})
    with ExitStack() as socks:
        connect = partial(socket.create_connection, ("127.0.0.1", server.address.port))
        late, *prompt = [socks.enter_context(connect()) for _ in range(BATCH + 5)]  # the loop does not run
        for sock in prompt:
            sock.sendall(get())
        stopping = asyncio.ensure_future(server.stop())
        await stage.eventually(lambda: len(stage.downstreams) == 1)
        late.sendall(get())
        assert await stopping
        for sock in (late, *prompt):
            assert sock.recv(4096).startswith(b"HTTP/1.1 200 ")


async def test_stop_waits_briefly_for_a_client_that_sends_nothing(stage: Stage) -> None:
    server = await stage.serve(await stage.worker(response()))
    silent = await stage.client()
    await stage.eventually(lambda: stage.downstreams)
    stopping = asyncio.ensure_future(server.stop())
    await stage.turn()
    stage.advance(FIRST_REQUEST)
    assert not stopping.done()
    stage.advance(0.1)
    assert await stopping
    assert await silent.rest() == b""


async def test_stop_has_finished_within_a_short_grace_period_with_silent_clients(stage: Stage) -> None:
    server = await stage.serve(await stage.worker(response()), timeouts={"shutdown": 1.0})
    silent = await stage.client()
    await stage.eventually(lambda: stage.downstreams)
    stopping = asyncio.ensure_future(server.stop())
    await stage.turn()
    stage.advance(0.6)
    assert await silent.rest() == b""
    assert await stopping


# --- reload and reports


@pytest.mark.parametrize(("key", "value"), [("listen", "unix:/b"), ("mode", "600")])
def test_changed_keys_that_wait_for_a_restart(key: str, value: str) -> None:
    old = {"listen": "unix:/a"}
    before, after = ({"other": ListenerConfig.model_validate(keys)} for keys in (old, old | {key: value}))
    assert [*changed_listeners(before, after)] == [f"listeners.other.{key}"]


async def test_reload(stage: Stage, tmp_path: Path) -> None:
    """TLS, cluster and redirect apply at once, to open connections as well; addresses wait for a restart."""
    shelf = Shelf(tmp_path)
    own: dict[str, Any] = {"listen": ANY, "cluster": "api"}
    await clusters(stage, listeners={"other": own})
    wire = await client(stage)
    assert (await wire.ask(get())).body == b"api"
    await stage.reload(listeners={"other": own | {"cluster": "default"}})
    assert (await wire.ask(get())).body == b"main"
    secure = {"listen": ANY, "tls": shelf.pair("shop.example.org")}
    await stage.reload(listeners={"other": secure})
    assert (await wire.ask(get(b"/api"))).body == b"api"
    assert await body(stage, tls=shelf.client()) == b"main"
    counts = stage.control_plane.reload_counts
    assert not counts.waiting
    await stage.reload(listeners={"other": own | {"listen": "127.0.0.1:1"}, "new": own})
    assert set(counts.waiting) == {"listeners.other.listen", "listeners.new"}
    await stage.reload(listeners={}, clusters={}, routes=[])
    assert counts.waiting == ("listeners.other",)
    assert (await wire.ask(get())).status == 404
    assert await body(stage, "") == b"main"


async def test_status(stage: Stage) -> None:
    own = {"listen": ANY, "redirect": {"scheme": "https"}}
    await clusters(stage, listeners={"other": own})
    addresses = [one.address for one in stage.running.listening.traffic.values()]
    document = proxy_status(stage.control_plane)
    assert document["listeners"] == [
        {"name": "default", "url": f"http://{addresses[0]}", "target": "routes"},
        {"name": "other", "url": f"http://{addresses[1]}", "target": "redirect 308 to https://*"},
    ]
    assert f"listener other: http://{addresses[1]}, redirect 308 to https://*" in lines_of(document)
    assert "listeners" not in document["clusters"][0]


# --- Unix sockets


async def test_unix_sockets(stage: Stage, tmp_path: Path) -> None:
    """Both addresses may be one. Clients count as this machine; files have their permissions, and go at the end."""
    main, other = tmp_path / "main.sock", tmp_path / "other.sock"
    worker = await stage.worker(response())
    await stage.serve(
        worker,
        listen=f"unix:{main}",
        listeners={"other": {"listen": f"unix:{other}", "mode": "600", "proxy_protocol": ["127.0.0.1"]}},
        trusted_proxies=["127.0.0.1"],
        admin={"socket": "off"},
    )
    assert [stat.S_IMODE(os.stat(path).st_mode) for path in (main, other)] == [0o660, 0o600]
    wire = await client(stage, "")
    await wire.ask(get(b"/", b"X-Forwarded-For: 192.0.2.9"))
    await wire.ask(b"GET / HTTP/1.0\r\n\r\n")
    await (await client(stage, first=b"PROXY TCP4 192.0.2.7 192.0.2.8 1 2\r\n")).ask(get())
    forwarded = [request.value(b"X-Forwarded-For") for request in worker.requests]
    assert forwarded == [b"192.0.2.9, 127.0.0.1", b"127.0.0.1", b"192.0.2.7"]
    assert worker.requests[1].value(b"Host") == b"localhost"
    http2 = Http2Client(await client(stage, ""))
    assert (await http2.ask()).status == 200
    await http2.wire.close()
    assert await stage.running.stop()
    assert not main.exists()
    assert not other.exists()


async def test_file_of_a_unix_socket(stage: Stage, tmp_path: Path) -> None:
    """A stale one is replaced; one that a program listens on, or that is no socket, is not."""
    path = tmp_path / "web.sock"
    problem = f"listen: cannot use unix:{path}: another program listens on it"
    with bind_unix(str(path)), pytest.raises(ListenFailed, match=problem):
        await stage.serve(1, listen=f"unix:{path}")
    await stage.serve(await stage.worker(response()), listen=f"unix:{path}", admin={"socket": "off"})
    assert await body(stage, "") == b"ok"
    path.unlink()
    path.write_text("mine")
    await stage.running.stop()
    assert path.read_text() == "mine"


async def test_address_in_use_names_the_listener(stage: Stage) -> None:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        taken = f"127.0.0.1:{sock.getsockname()[1]}"
        with pytest.raises(
            ListenFailed, match=rf"listeners\.other\.listen: cannot use {taken}: Address already"
        ):
            await stage.serve(1, listeners={"other": {"listen": taken}})
