"""https to workers: whom the unit believes, what it shows, and what it says when it believes nobody."""

from __future__ import annotations

import json
import ssl
from pathlib import Path

import pytest

from balancer.config.load import Settings
from tests.balancer.certificates import Shelf
from tests.balancer.conftest import Stage, Wire, get, response


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    return Shelf(tmp_path)


async def test_a_worker_is_verified_and_its_connections_are_kept(stage: Stage, shelf: Shelf) -> None:
    """By the address's host; one handshake serves many requests."""
    worker = await stage.worker(response(b"safe"), tls=shelf.worker("127.0.0.1"))
    await stage.serve(worker, upstream_tls={"ca": str(shelf.ca)})
    client = await stage.client()
    for _ in range(3):
        assert (await client.ask(get())).body == b"safe"
    assert stage.pool().counts.opened == 1
    assert worker.requests[0].value(b"X-Forwarded-Proto") == b"http"


async def test_the_name_that_is_asked_for(stage: Stage, shelf: Shelf) -> None:
    """`server_name` is what SNI says and what the certificate must name."""
    asked: list[str | None] = []
    context = shelf.worker("inner.example.org")
    context.sni_callback = lambda connection, name, _: asked.append(name)
    worker = await stage.worker(response(), tls=context)
    tls = {"ca": str(shelf.ca), "server_name": "inner.example.org"}
    await stage.serve(worker, upstream_tls=tls)
    assert (await stage.ask(get())).status == 200
    assert asked == ["inner.example.org"]


@pytest.mark.parametrize(
    ("names", "is_expired", "fault"),
    [
        (("other.example.org",), False, "IP address mismatch"),
        (("127.0.0.1",), True, "certificate has expired"),
    ],
)
async def test_a_worker_that_is_not_believed(
    stage: Stage, shelf: Shelf, names: tuple[str, ...], is_expired: bool, fault: str
) -> None:
    """Nothing is sent to it; why is told in the status, and not to the client."""
    worker = await stage.worker(response(), tls=shelf.worker(*names, is_expired=is_expired))
    await stage.serve(worker, upstream_tls={"ca": str(shelf.ca)}, retries=0)
    answer = await stage.ask(get())
    assert (answer.status, json.loads(answer.body)["error"]) == (502, "tls_failed")
    assert json.loads(answer.body)["detail"] == "no TLS connection with the worker"
    assert fault in (stage.pool().last_fault or "")
    status = await stage.ask(b"GET /-/status HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert fault in json.loads(status.body)["endpoints"][0]["connections"]["last_fault"]
    assert (worker.received, stage.outcomes()) == (b"", {"refused": 1})


async def test_an_unknown_authority(stage: Stage, shelf: Shelf, tmp_path: Path) -> None:
    """Whom this machine trusts is the default; our authority is not among them. A request goes elsewhere."""
    bad = await stage.worker(response(b"bad"), tls=shelf.worker("127.0.0.1"))
    good = await stage.worker(response(b"good"))
    await stage.serve(bad, good)
    for _ in range(2):
        assert (await stage.ask(get(method=b"DELETE"))).body == b"good"
    assert "certificate refused" in (stage.pool().last_fault or "")
    assert bad.received == b""


async def test_verification_can_be_switched_off_for_one(stage: Stage, shelf: Shelf) -> None:
    """An endpoint's own table stands instead of the common one."""
    worker = await stage.worker(response(b"whoever"), tls=shelf.worker("other.example.org", is_expired=True))
    address = f"https://127.0.0.1:{worker.port}"
    endpoints = [{"id": "w0", "address": address, "tls": {"verify": False}}]
    await stage.serve(endpoints=endpoints, upstream_tls={"ca": str(shelf.ca)})
    assert (await stage.ask(get())).body == b"whoever"


@pytest.mark.parametrize("is_shown", [False, True])
async def test_a_worker_that_asks_for_a_certificate(stage: Stage, shelf: Shelf, is_shown: bool) -> None:
    """Ours is shown; without one it does not serve us, in TLS 1.2 within the handshake."""
    context = shelf.worker("127.0.0.1")
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(shelf.ca)
    worker = await stage.worker(response(b"known"), tls=context)
    ours = shelf.pair("proxy") if is_shown else {}
    await stage.serve(worker, upstream_tls={"ca": str(shelf.ca)} | ours, retries=0)
    answer = await stage.ask(get())
    assert answer.status == (200 if is_shown else 502)
    assert is_shown or "TLS handshake failed" in (stage.pool().last_fault or "")


async def test_a_worker_that_speaks_plain_http(stage: Stage) -> None:
    """To the hello it gives an answer that is no TLS."""

    async def script(wire: Wire) -> None:
        await wire.some()
        await wire.send(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    worker = await stage.worker(script)
    await stage.serve(endpoints=[{"id": "w0", "address": f"https://127.0.0.1:{worker.port}"}], retries=0)
    assert (await stage.ask(get())).status == 502
    assert "wrong version number" in (stage.pool().last_fault or "")


async def test_a_name_that_nobody_can_have(stage: Stage) -> None:
    """The request does not wait for it."""
    worker = await stage.worker(response())
    endpoints = [{"id": "w0", "address": f"https://127.0.0.1:{worker.port}"}]
    await stage.serve(endpoints=endpoints, upstream_tls={"server_name": "x" * 70 + ".org"}, retries=0)
    assert (await stage.ask(get())).status == 502
    assert "not a name for TLS" in (stage.pool().last_fault or "")


async def test_a_handshake_within_the_time_of_connecting(stage: Stage) -> None:
    """A worker that accepts and says nothing is a worker that cannot be connected to."""
    worker = await stage.worker(lambda wire: wire.closed())
    endpoints = [{"id": "w0", "address": f"https://127.0.0.1:{worker.port}"}]
    await stage.serve(endpoints=endpoints, retries=0, timeouts={"connect": 0.05})
    answer = await stage.ask(get())
    assert (answer.status, json.loads(answer.body)["error"]) == (504, "connect_timeout")
    assert stage.pool().opening == 0


@pytest.mark.parametrize("is_clean", [False, True])
async def test_a_body_until_close(stage: Stage, shelf: Shelf, is_clean: bool) -> None:
    """Whole with close_notify; with a mere FIN somebody may have cut it, and the client must see that."""

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
        with pytest.raises(ConnectionResetError):
            await client.ask(get())


async def test_reload_reads_the_authority_again(stage: Stage, shelf: Shelf, tmp_path: Path) -> None:
    """New connections believe whom the file names now."""
    (tmp_path / "old").mkdir()
    old = Shelf(tmp_path / "old")
    worker = await stage.worker(response(b"believed"), tls=shelf.worker("127.0.0.1"))
    server = await stage.serve(worker, upstream_tls={"ca": str(old.ca)}, retries=0)
    assert (await stage.ask(get())).status == 502
    old.ca.write_bytes(shelf.ca.read_bytes())
    await server.reload()
    assert (await stage.ask(get())).body == b"believed"


def test_the_port_by_default() -> None:
    """443, as 80 is for http."""
    settings = Settings(endpoints=[{"id": "a", "address": "https://example.org"}])  # type: ignore[arg-type]
    assert settings.endpoints[0].address == "https://example.org"
