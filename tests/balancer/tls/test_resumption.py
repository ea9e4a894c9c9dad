"""TLS sessions with workers: resumption, and full handshakes after a reload or with another name."""

from __future__ import annotations

import socket
import ssl
from typing import Any

import pytest
import trustme

from balancer.tls.resumption import Resumption
from tests.support.admin_requests import metrics, status
from tests.support.certificates import Shelf, limited_to
from tests.support.stage import Stage
from tests.support.wire import get, response

CLOSING = response(b"safe", b"Connection: close")


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
