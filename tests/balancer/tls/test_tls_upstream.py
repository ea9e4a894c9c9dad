"""https to workers: verification, server name, client certificate, faults, and sessions that are resumed."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
from pathlib import Path
from typing import Any

import pytest
import trustme

from balancer.tls.resumption import Resumption
from tests.support.admin_requests import metrics, status
from tests.support.certificates import Shelf, limited_to
from tests.support.stage import Stage
from tests.support.wire import Wire, get, playing, response

CLOSING = response(b"safe", b"Connection: close")


async def test_worker_is_verified_and_its_connection_is_kept(stage: Stage, shelf: Shelf) -> None:
    """By the host of the address; one handshake serves many requests."""
    worker = await stage.worker(response(b"safe"), tls=shelf.worker("127.0.0.1"))
    await stage.serve(worker, upstream_tls={"ca": str(shelf.ca)})
    client = await stage.client()
    for _ in range(3):
        assert (await client.ask(get())).body == b"safe"
    assert stage.pool().counts.opened == 1
    assert worker.requests[0].value(b"X-Forwarded-Proto") == b"http"


async def test_server_name_is_sent_and_verified(stage: Stage, shelf: Shelf) -> None:
    """It is sent as SNI, and the certificate must contain it."""
    server_names: list[str | None] = []
    context = shelf.worker("inner.example.org")
    context.sni_callback = lambda connection, name, _: server_names.append(name)
    worker = await stage.worker(response(), tls=context)
    tls = {"ca": str(shelf.ca), "server_name": "inner.example.org"}
    await stage.serve(worker, upstream_tls=tls)
    assert (await stage.ask(get())).status == 200
    assert server_names == ["inner.example.org"]


async def test_worker_of_unknown_authority_is_skipped(stage: Stage, shelf: Shelf, tmp_path: Path) -> None:
    """By default the authorities of this machine are trusted. The request goes to another endpoint."""
    bad = await stage.worker(response(b"bad"), tls=shelf.worker("127.0.0.1"))
    await stage.serve(bad, await stage.worker(response(b"good")))
    for _ in range(2):
        assert (await stage.ask(get(method=b"DELETE"))).body == b"good"
    assert "certificate refused" in (stage.pool().last_fault or "")
    assert bad.received == b""


async def test_endpoint_without_verification(stage: Stage, shelf: Shelf) -> None:
    """The endpoint's `tls` table replaces `upstream_tls`."""
    worker = await stage.worker(response(b"any"), tls=shelf.worker("other.example.org", is_expired=True))
    address = f"https://127.0.0.1:{worker.port}"
    endpoints = [{"id": "w0", "address": address, "tls": {"verify": False}}]
    await stage.serve(endpoints=endpoints, upstream_tls={"ca": str(shelf.ca)})
    assert (await stage.ask(get())).body == b"any"


@pytest.mark.parametrize("is_shown", [False, True])
async def test_client_certificate_for_workers(stage: Stage, shelf: Shelf, is_shown: bool) -> None:
    """In TLS 1.2 a missing certificate fails within the handshake."""
    context = shelf.worker("127.0.0.1")
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(shelf.ca)
    worker = await stage.worker(response(b"known"), tls=context)
    client_pair = shelf.pair("proxy") if is_shown else {}
    await stage.serve(worker, upstream_tls={"ca": str(shelf.ca)} | client_pair, retries=0)
    answer = await stage.ask(get())
    assert answer.status == (200 if is_shown else 502)
    assert is_shown or "TLS handshake failed" in (stage.pool().last_fault or "")


async def test_plain_http_worker_is_a_tls_fault(stage: Stage) -> None:
    worker = await stage.worker(playing(Wire.some, b"HTTP/1.1 400 Bad Request\r\n\r\n"))
    await stage.serve(endpoints=[{"id": "w0", "address": f"https://127.0.0.1:{worker.port}"}], retries=0)
    assert (await stage.ask(get())).status == 502
    assert "wrong version number" in (stage.pool().last_fault or "")


async def test_server_name_too_long_is_a_fault(stage: Stage) -> None:
    """The request fails at once."""
    worker = await stage.worker(response())
    endpoints = [{"id": "w0", "address": f"https://127.0.0.1:{worker.port}"}]
    await stage.serve(endpoints=endpoints, upstream_tls={"server_name": "x" * 70 + ".org"}, retries=0)
    assert (await stage.ask(get())).status == 502
    assert "not a name for TLS" in (stage.pool().last_fault or "")


async def test_connect_timeout_covers_the_handshake(stage: Stage) -> None:
    """A worker that accepts and sends nothing counts as not connectable."""
    worker = await stage.worker(lambda wire: wire.closed())
    endpoints = [{"id": "w0", "address": f"https://127.0.0.1:{worker.port}"}]
    await stage.serve(endpoints=endpoints, retries=0, timeouts={"connect": 0.05})
    answer = await stage.ask(get())
    assert (answer.status, json.loads(answer.body)["error"]) == (504, "connect_timeout")
    assert stage.pool().opening == 0


@pytest.mark.parametrize("is_clean", [False, True])
async def test_body_until_close_needs_close_notify(stage: Stage, shelf: Shelf, is_clean: bool) -> None:
    """A FIN without close_notify may be an attacker's, so the client gets no last chunk."""

    async def script(wire: Wire) -> None:
        await wire.request()
        await wire.send(b"HTTP/1.1 200 OK\r\n\r\nto the end")
        if not is_clean:
            wire.cut()
            await wire.closed()

    worker = await stage.worker(script, tls=shelf.worker("127.0.0.1"))
    await stage.serve(worker, upstream_tls={"ca": str(shelf.ca)})
    client = await stage.client()
    if is_clean:
        assert (await client.ask(get())).body == b"to the end"
    else:
        with pytest.raises(asyncio.IncompleteReadError):
            await client.ask(get())


# --- sessions


def resumption(stage: Stage) -> Resumption:
    return stage.pool().route.resumption


async def send_gets(stage: Stage, times: int) -> None:
    """Send `times` requests, each on a connection of its own."""
    for _ in range(times):
        assert (await stage.ask(get())).body == b"safe"


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_session_is_resumed(stage: Stage, shelf: Shelf, version: ssl.TLSVersion) -> None:
    """From the second connection on; status and metrics count both kinds."""
    worker = await stage.worker(CLOSING, tls=limited_to(shelf.worker("127.0.0.1"), version))
    await stage.serve(worker, upstream_tls={"ca": str(shelf.ca)})
    await send_gets(stage, 5)
    tls = (await status(stage))["endpoints"][0]["route"]["tls"]
    assert (tls["version"], tls["full"], tls["resumed"]) == (version.name.replace("_", "."), 1, 4)
    labels = 'endpoint="w0",kind="resumed",region="r"'
    assert f"steelyard_endpoint_tls_handshakes_total{{{labels}}} 4.0" in await metrics(stage)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_worker_without_tickets_is_served_by_full_handshakes(
    stage: Stage, shelf: Shelf, version: ssl.TLSVersion
) -> None:
    context = limited_to(shelf.worker("127.0.0.1"), version)
    context.options |= ssl.OP_NO_TICKET
    if version is ssl.TLSVersion.TLSv1_3:
        context.num_tickets = 0
    await stage.serve(await stage.worker(CLOSING, tls=context), upstream_tls={"ca": str(shelf.ca)})
    await send_gets(stage, 3)
    assert resumption(stage).full + resumption(stage).resumed == 3
    assert version is ssl.TLSVersion.TLSv1_2 or resumption(stage).resumed == 0


async def test_refused_session_leads_to_a_full_handshake(stage: Stage, shelf: Shelf) -> None:
    """As after a restart with new ticket keys: a full handshake and no failure."""
    worker = await stage.worker(CLOSING, tls=shelf.worker("127.0.0.1"))
    await stage.serve(worker, upstream_tls={"ca": str(shelf.ca)})
    await send_gets(stage, 2)
    await worker.stop()
    worker.tls = shelf.worker("127.0.0.1")
    await worker.start(socket.create_server(("127.0.0.1", worker.port)))
    await send_gets(stage, 3)
    assert (resumption(stage).full, resumption(stage).resumed) == (2, 3)
    assert stage.pool().counts.failed == 0


async def test_reload_drops_sessions(stage: Stage, shelf: Shelf) -> None:
    """A resumed handshake shows no certificate, so sessions would outlive the trust in them."""
    worker = await stage.worker(CLOSING, tls=shelf.worker("127.0.0.1"))
    server = await stage.serve(worker, upstream_tls={"ca": str(shelf.ca)}, retries=0)
    await send_gets(stage, 2)
    trustme.CA().cert_pem.write_to_path(str(shelf.ca))
    await server.reload()
    assert (await stage.ask(get())).status == 502
    assert "certificate refused" in (stage.pool().last_fault or "")
    assert (resumption(stage).full, resumption(stage).resumed) == (1, 1)


async def test_sessions_are_kept_per_server_name(stage: Stage, shelf: Shelf) -> None:
    """A session of one name does not prove another name."""
    worker = await stage.worker(CLOSING, tls=shelf.worker("a.test", "b.test"))
    endpoint = {"id": "w0", "address": f"https://127.0.0.1:{worker.port}"}

    def endpoints(name: str) -> list[dict[str, Any]]:
        return [endpoint | {"tls": {"ca": str(shelf.ca), "server_name": name}}]

    await stage.serve(endpoints=endpoints("a.test"), retries=0)
    await send_gets(stage, 2)
    await stage.reload(endpoints=endpoints("b.test"))
    await send_gets(stage, 2)
    assert (resumption(stage).full, resumption(stage).resumed) == (2, 2)
    await stage.reload(endpoints=endpoints("c.test"))
    assert (await stage.ask(get())).status == 502
    assert stage.pool().route.faults == {"certificate_name": 1}
