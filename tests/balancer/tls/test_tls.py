"""TLS with clients: versions, server names, client certificates, close_notify, failed handshakes, reload."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import shutil
import ssl
from pathlib import Path
from typing import Any

import pytest

from balancer.config.problems import ConfigError
from balancer.process_context import FIRST_REQUEST
from tests.support.admin_requests import TOKEN
from tests.support.certificates import Shelf, limited_to, request_and_session
from tests.support.scripts import SWITCHED, UPGRADE_FIELDS
from tests.support.stage import Stage
from tests.support.wire import Wire, get, playing, post, response

NAME = "shop.example.org"


async def names_of(stage: Stage, context: ssl.SSLContext, name: str) -> set[str]:
    """The names in the certificate that the server shows to a client of `name`."""
    client = await stage.client(tls=context, name=name)
    certificate = client._writer.get_extra_info("peercert")
    await client.close()
    return {value for _, value in certificate["subjectAltName"]}


class RawClient:
    """A client, or a server, of TLS that gives the test access to its records."""

    def __init__(self, wire: Wire, context: ssl.SSLContext, name: str | None = NAME) -> None:
        """Without a name, this is the server."""
        self.wire = wire
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self._incoming, self._outgoing, name is None, name)

    def records(self) -> bytes:
        return self._outgoing.read()

    async def handshake(self) -> None:
        while True:
            try:
                self.tls.do_handshake()
            except ssl.SSLWantReadError:
                await self.wire.send(self.records())
                self._incoming.write(await self.wire.some())
            else:
                await self.wire.send(self.records())
                return

    async def send(self, data: bytes) -> None:
        self.tls.write(data)
        await self.wire.send(self.records())

    async def end_writing(self) -> None:
        """Send close_notify."""
        with pytest.raises(ssl.SSLWantReadError):
            self.tls.unwrap()
        await self.wire.send(self.records())

    async def read(self) -> bytes:
        """Decrypted bytes; b"" after the server's close_notify."""
        while True:
            try:
                return self.tls.read(65536)
            except ssl.SSLWantReadError:
                self._incoming.write(await self.wire.some())
            except ssl.SSLZeroReturnError:
                return b""

    async def rest(self) -> bytes:
        """Decrypted bytes up to the end."""
        received = b""
        while data := await self.read():
            received += data
        return received


async def raw_client(stage: Stage, shelf: Shelf) -> RawClient:
    client = RawClient(await stage.client(), shelf.client())
    await client.handshake()
    return client


# --- connections that work


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_tls_1_2_and_1_3(stage: Stage, shelf: Shelf, version: ssl.TLSVersion) -> None:
    """ALPN selects http/1.1 for a client without HTTP/2, and the worker gets X-Forwarded-Proto: https."""
    worker = await stage.serve_worker(response(b"hello"), tls=shelf.pair(NAME))
    context = limited_to(shelf.client(), version)
    context.set_alpn_protocols(["http/1.1"])
    client = await stage.client(tls=context, name=NAME)
    for _ in range(3):
        assert (await client.ask(get())).body == b"hello"
    connection = client._writer.get_extra_info("ssl_object")
    assert connection.version() == version.name.replace("_", ".")
    assert connection.selected_alpn_protocol() == "http/1.1"
    assert {request.value(b"X-Forwarded-Proto") for request in worker.requests} == {b"https"}
    assert {request.value(b"X-Forwarded-For") for request in worker.requests} == {b"127.0.0.1"}
    await stage.close()


async def test_minimum_version_refuses_older_clients(stage: Stage, shelf: Shelf) -> None:
    await stage.serve(await stage.worker(response()), tls=shelf.pair(NAME) | {"min_version": "1.3"})
    with pytest.raises(ssl.SSLError):
        await stage.client(tls=limited_to(shelf.client(), ssl.TLSVersion.TLSv1_2), name=NAME)
    client = await stage.client(tls=shelf.client(), name=NAME)
    assert (await client.ask(get())).status == 200
    assert stage.cluster.process.counts.failed_arrivals == 1


async def test_certificate_is_chosen_by_name(stage: Stage, shelf: Shelf) -> None:
    """Exact names precede wildcards, a wildcard covers one label, and an unknown name gets the first certificate."""
    shop, any_shop, other = (
        shelf.pair(*names) for names in ((NAME,), ("*.example.org",), ("b.net", "c.net"))
    )
    await stage.serve(await stage.worker(response()), tls={"certificates": [other, any_shop, shop]})
    context = shelf.client()
    assert await names_of(stage, context, NAME) == {NAME}
    assert await names_of(stage, context, NAME.upper()) == {NAME}
    assert await names_of(stage, context, "x.example.org") == {"*.example.org"}
    assert await names_of(stage, context, "c.net") == {"b.net", "c.net"}
    context.check_hostname = False
    assert await names_of(stage, context, "a.b.example.org") == {"b.net", "c.net"}


async def test_certificate_is_chosen_by_the_type_of_its_key(stage: Stage, shelf: Shelf) -> None:
    """Clients that verify ECDSA or RSA alone get the first certificate of that type with the name, without SNI the one
    with the names of the first certificate."""
    ecdsa, rsa = shelf.pair(NAME, "b.net"), shelf.pair(NAME, is_rsa=True)
    others = [shelf.pair(NAME), shelf.pair("b.net", "c.net", is_rsa=True)]
    await stage.serve(await stage.worker(response()), tls={**ecdsa, "certificates": [rsa, *others]})
    for authentication in ("ECDSA", "RSA"):
        context = limited_to(shelf.client(), ssl.TLSVersion.TLSv1_2)
        context.set_ciphers(f"ECDHE+a{authentication}")
        assert await names_of(stage, context, NAME) == (
            {NAME} if authentication == "RSA" else {NAME, "b.net"}
        )
        assert "b.net" in await names_of(stage, context, "b.net")
    assert await names_of(stage, context, "c.net") == {"b.net", "c.net"}
    context.check_hostname = False
    assert await names_of(stage, context, "unknown") == {NAME}


@pytest.mark.parametrize("is_required", [False, True])
async def test_client_certificates(stage: Stage, shelf: Shelf, tmp_path: Path, is_required: bool) -> None:
    """A certificate of an unknown authority is refused; none is refused if one is required."""
    (tmp_path / "foreign").mkdir()
    foreign_pair = Shelf(tmp_path / "foreign").pair("me")
    client_auth = {
        "client_ca": str(shelf.ca),
        "client_certificate": "required" if is_required else "optional",
    }
    await stage.serve(await stage.worker(response()), tls=shelf.pair(NAME) | client_auth)

    def is_answered(pair: dict[str, str] | None) -> bool:
        try:
            return bool(request_and_session(stage.running.address.port, shelf.client(pair), NAME)[0])
        except (ssl.SSLError, ConnectionError):  # TLS 1.3: the client sees the refusal after its handshake
            return False

    async def is_served(pair: dict[str, str] | None) -> bool:
        return await asyncio.to_thread(is_answered, pair)

    assert await is_served(shelf.pair("me"))
    assert await is_served(None) == (not is_required)
    assert not await is_served(foreign_pair)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_large_bodies_through_tls_on_both_sides(
    stage: Stage, shelf: Shelf, version: ssl.TLSVersion
) -> None:
    """16 MiB up and down at once with a client that reads late: every byte arrives, and buffers are bounded."""
    body = os.urandom(1 << 20) * 16
    worker = await stage.worker(echo, tls=shelf.worker("127.0.0.1"))
    await stage.serve(worker, tls=shelf.pair(NAME), upstream_tls={"ca": str(shelf.ca)})
    client = await stage.client(tls=limited_to(shelf.client(), version), name=NAME, receive_buffer=65536)
    sending = asyncio.ensure_future(client.send(post(body)))
    await stage.eventually(lambda: any(d.is_write_paused for d in stage.downstreams))
    sizes = [d.transport.get_write_buffer_size() for d in stage.downstreams]
    assert max(sizes) < 2 << 20
    answer = await client.response()
    await sending
    assert hashlib.sha256(answer.body).digest() == hashlib.sha256(body).digest()
    await stage.close()


async def echo(wire: Wire) -> None:
    """Send a body back while it arrives."""
    while True:
        left = int((await wire.head()).value(b"Content-Length") or 0)
        await wire.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % left)
        while left:
            data = await wire.some(min(left, 65536))
            left -= len(data)
            await wire.send(data)


async def test_pipelined_requests_before_close_notify_are_answered(stage: Stage, shelf: Shelf) -> None:
    """close_notify in the same read as pipelined requests is reported while reading is paused."""
    await stage.serve(await stage.worker(response(b"here")), tls=shelf.pair(NAME))
    client = await raw_client(stage, shelf)
    client.tls.write(get() * 3 + post(b"x" * 9) + get(b"/last")[:-2])
    await client.end_writing()
    assert (await client.rest()).count(b"\r\n\r\nhere") == 4


async def test_admin_interface_over_tls(stage: Stage, shelf: Shelf) -> None:
    await stage.serve(await stage.worker(response()), tls=shelf.pair(NAME), admin={"token": TOKEN})
    client = await stage.client(tls=shelf.client(), name=NAME)
    answer = await client.ask(get(b"/-/status", b"Authorization: Bearer " + TOKEN.encode()))
    assert json.loads(answer.body)["failed_arrivals"] == 0
    assert await client.rest() == b""


# --- closing


async def test_last_response_ends_with_close_notify(stage: Stage, shelf: Shelf) -> None:
    """So the client can tell that nothing is missing, also while it still sends."""
    await stage.serve(await stage.worker(response(b"bye")), tls=shelf.pair(NAME))
    client = await raw_client(stage, shelf)
    await client.send(get(b"/", b"Connection: close"))
    assert (await client.read()).endswith(b"bye")
    assert await client.read() == b""
    client = await raw_client(stage, shelf)
    await client.send(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: x\r\n\r\n" + b"y" * 100_000)
    assert (await client.read()).startswith(b"HTTP/1.1 400 ")
    assert await client.read() == b""
    assert await client.wire.rest() == b""
    await client.send(b"y" * 1000)  # lingering: bytes that still come are read and dropped
    await stage.turn()
    stage.advance(3)


async def test_half_closed_client_is_answered(stage: Stage, shelf: Shelf) -> None:
    """close_notify after a request is a half-close like FIN of plain TCP (RFC 8446 § 6.1)."""
    go = asyncio.Event()
    await stage.serve(await stage.worker(playing(Wire.request, go, response(b"late"))), tls=shelf.pair(NAME))
    client = await raw_client(stage, shelf)
    await client.send(get())
    await stage.eventually(lambda: stage.cluster.process.in_flight)
    await client.end_writing()
    client.wire.half_close()
    await stage.turn()
    go.set()
    assert (await client.rest()).endswith(b"late")


@pytest.mark.parametrize("is_client", [True, False])
async def test_end_of_a_tunnel_whose_other_side_has_ended_first(
    stage: Stage, shelf: Shelf, is_client: bool
) -> None:
    """close_notify after the balancer's own is an end, before which all bytes are passed on."""
    data, over = os.urandom(1 << 20), asyncio.Event()

    async def tls_worker(wire: Wire) -> None:
        raw = RawClient(wire, shelf.worker("127.0.0.1"), None)
        await raw.handshake()
        await raw.read()
        await raw.send(SWITCHED)
        assert await raw.rest() == b""
        await raw.send(data)
        raw.tls.unwrap()
        await wire.send(raw.records())

    if is_client:
        worker = await stage.worker(playing(Wire.request, SWITCHED, Wire.half_close, over))
        await stage.serve(worker, tls=shelf.pair(NAME))
        client = await raw_client(stage, shelf)
        await client.send(get(b"/", *UPGRADE_FIELDS))
        assert (await client.rest()).startswith(b"HTTP/1.1 101")
        await client.send(data)
        client.tls.unwrap()
        await client.wire.send(client.records())
        assert await worker.connections[0].rest() == data
        over.set()
    else:
        port = (await stage.worker(tls_worker)).port
        endpoint = {"id": "w0", "address": f"https://127.0.0.1:{port}"}
        await stage.serve(endpoints=[endpoint], upstream_tls={"ca": str(shelf.ca)})
        plain = await stage.sending(get(b"/", *UPGRADE_FIELDS))
        await plain.head()
        plain.half_close()
        assert await plain.rest() == data
    await stage.eventually(lambda: not stage.cluster.tunnels)


@pytest.mark.parametrize("is_busy", [False, True])
async def test_end_without_close_notify_closes_the_connection(
    stage: Stage, shelf: Shelf, is_busy: bool
) -> None:
    """Anyone on the path could have sent the FIN."""
    worker = await stage.serve_worker(playing(Wire.request, Wire.closed), tls=shelf.pair(NAME))
    client = await raw_client(stage, shelf)
    if is_busy:
        await client.send(get())
        await stage.eventually(lambda: worker.requests)
    client.wire.half_close()
    await client.wire.closed()
    assert stage.cluster.counts.abandoned == is_busy


@pytest.mark.parametrize("version", [b"HTTP/1.0", b"HTTP/1.1"])
async def test_truncated_body(stage: Stage, shelf: Shelf, version: bytes) -> None:
    """close_notify behind less than the length; a reset instead of it where it would be the regular end."""
    framing = b"Content-Length: 90000" if version == b"HTTP/1.1" else b"Transfer-Encoding: chunked"
    head = b"HTTP/1.1 200 OK\r\n" + framing
    script = playing(Wire.request, head + b"\r\n\r\n4\r\nhalf\r\n", Wire.reset)
    await stage.serve(await stage.worker(script), tls=shelf.pair(NAME))
    client = await raw_client(stage, shelf)
    await client.send(get(version=version))
    if version == b"HTTP/1.1":
        assert (await client.rest()).endswith(b"\r\n\r\n4\r\nhalf\r\n")
    else:
        with pytest.raises(ConnectionResetError):
            await client.rest()


# --- failed handshakes


async def test_plain_http_on_the_tls_port_is_answered_400(stage: Stage, shelf: Shelf) -> None:
    """One response in plain HTTP."""
    await stage.serve(await stage.worker(response()), tls=shelf.pair(NAME))
    client = await stage.client()
    answer = await client.ask(get())
    assert (answer.status, json.loads(answer.body)["error"]) == (400, "plain_http")
    assert answer.value(b"Date") is not None
    await client.closed()
    assert stage.cluster.process.counts.failed_arrivals == 1


@pytest.mark.parametrize("garbage", [b"\x00" * 600, b"\x16\x03\x01\xff\xff" + b"x" * 600, b"SSH-2.0-x\r\n"])
async def test_garbage_closes_the_connection(stage: Stage, shelf: Shelf, garbage: bytes) -> None:
    worker = await stage.serve_worker(response(), tls=shelf.pair(NAME))
    client = await stage.sending(garbage)
    client.half_close()
    await client.closed()
    await stage.eventually(lambda: stage.cluster.process.counts.failed_arrivals == 1)
    assert (worker.connections, len(stage.server.arrivals) if stage.server else None) == ([], 0)


@pytest.mark.parametrize("first", [b"", b"\x16\x03\x01\x02\x00\x01"])
async def test_incomplete_handshake_times_out(stage: Stage, shelf: Shelf, first: bytes) -> None:
    """An incomplete handshake has the time of a head, and counts against the client limit."""
    await stage.serve(
        await stage.worker(response()), tls=shelf.pair(NAME), timeouts={"head": 5}, limits={"clients": 1}
    )
    client = await stage.client()
    client.write(first)
    arrivals = stage.running.arrivals
    await stage.eventually(lambda: len(arrivals))
    stage.advance(4.9)
    assert len(arrivals) == 1
    waiting = await stage.client()  # in the kernel's queue: the limit is reached
    await stage.turn()
    assert len(arrivals) == 1
    stage.advance(0.2)
    await client.closed()
    assert stage.cluster.process.counts.failed_arrivals == 1
    await stage.eventually(lambda: len(arrivals))  # accepted now
    await waiting.close()


@pytest.mark.parametrize("phase", ["TLS", "PROXY", "head"])
async def test_late_starts_give_way_to_waiting_clients(stage: Stage, shelf: Shelf, phase: str) -> None:
    """At the client limit, the oldest first, before the time of a head ends; without a waiting client none does."""
    phases: dict[str, Any] = {"TLS": {"tls": shelf.pair(NAME)}, "PROXY": {"proxy_protocol": ["127.0.0.0/8"]}}
    worker = await stage.worker(response())
    await stage.serve(worker, timeouts={"head": 60}, limits={"clients": 2}, **phases.get(phase, {}))
    present = stage.downstreams if phase == "head" else stage.running.arrivals

    async def begun(number: int) -> Wire:
        client = await stage.client()
        if phase == "head":
            client.write(b"GET / HTTP/1.1\r\n")
        await stage.eventually(lambda: len(present) == number and all(stage.heads_begun()))
        return client

    oldest, newer = await begun(1), await begun(2)
    stage.advance(30.0)
    assert len(present) == 2
    oldest.reset()
    await stage.eventually(lambda: len(present) == 1)
    newest = await begun(2)
    stage.advance(2.0)
    waiting = await stage.client()
    await stage.turn()
    stage.advance(0.5)
    await newer.closed()
    await newer.close()
    await stage.eventually(lambda: len(present) == 2)
    assert stage.cluster.process.counts.failed_arrivals == (0 if phase == "head" else 2)
    await newest.close()
    await waiting.close()


async def test_client_leaves_during_the_handshake(stage: Stage, shelf: Shelf) -> None:
    """After the ClientHello, by FIN or reset."""
    await stage.serve(await stage.worker(response()), tls=shelf.pair(NAME))
    for leave in (Wire.half_close, Wire.reset):
        client = RawClient(await stage.client(), shelf.client())
        with pytest.raises(ssl.SSLWantReadError):
            client.tls.do_handshake()
        await client.wire.send(client.records())
        await client.wire.some()
        leave(client.wire)
        await client.wire.closed()
    await stage.eventually(lambda: stage.cluster.process.counts.failed_arrivals == 2)


async def test_stop_closes_unfinished_handshakes(stage: Stage, shelf: Shelf) -> None:
    await stage.serve(await stage.worker(response()), tls=shelf.pair(NAME))
    client = await stage.client()
    arrivals = stage.running.arrivals
    await stage.eventually(lambda: len(arrivals))
    stopping = asyncio.ensure_future(stage.running.stop())
    await stage.turn()
    stage.advance(FIRST_REQUEST)
    assert len(arrivals) == 1
    stage.advance(0.1)
    assert await stopping
    assert len(arrivals) == 0
    await client.closed()


async def test_renegotiation_is_refused(stage: Stage, shelf: Shelf) -> None:
    """TLS 1.2 only; uses the program openssl because Python's ssl cannot renegotiate."""
    program = shutil.which("openssl")
    if program is None:
        pytest.skip("openssl is not on PATH")
    server = await stage.serve(await stage.worker(response()), tls=shelf.pair(NAME))
    arguments = (program, "s_client", "-connect", str(server.address), "-tls1_2", "-CAfile", str(shelf.ca))
    process = await asyncio.create_subprocess_exec(*arguments, stdin=-1, stdout=-1, stderr=-1)
    assert process.stdin is not None
    await stage.eventually(lambda: stage.downstreams)
    process.stdin.write(b"R\n")
    await process.stdin.drain()
    _, stderr = await process.communicate()
    assert b"no renegotiation" in stderr


# --- reload


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_reload_keeps_sessions(stage: Stage, shelf: Shelf, version: ssl.TLSVersion) -> None:
    """Of one process, also with another certificate, but not with a setting that a session began under."""
    pair = shelf.pair(NAME)
    server = await stage.serve(await stage.worker(response()), tls=pair)
    context = limited_to(shelf.client(), version)

    async def greet(session: ssl.SSLSession | None) -> tuple[ssl.SSLSession | None, bool | None]:
        _, given, is_resumed = await asyncio.to_thread(
            request_and_session, stage.running.address.port, context, NAME, session
        )
        return given, is_resumed

    session, _ = await greet(None)
    await server.reload()
    assert (await greet(session))[1] is True
    for kind, path in shelf.pair(NAME, "fresh.example.org").items():
        shutil.copy(path, pair[kind])
    await server.reload()
    assert (await greet(session))[1] is True
    await stage.reload(tls={**pair, "client_ca": str(shelf.ca), "client_certificate": "optional"})
    assert (await greet(session))[1] is False


async def test_reload_of_certificates(stage: Stage, shelf: Shelf) -> None:
    """New connections get the new certificate, old ones stay; a bad file changes nothing."""
    pair = shelf.pair(NAME)
    (shelf.folder / "broken.pem").touch()
    server = await stage.serve(await stage.worker(response()), tls=pair)
    client = await stage.client(tls=shelf.client(), name=NAME)
    fresh = shelf.pair(NAME, "fresh.example.org")
    for kind in ("certificate", "key"):
        shutil.copy(fresh[kind], pair[kind])
    await server.reload()
    assert await names_of(stage, shelf.client(), NAME) == {NAME, "fresh.example.org"}
    assert (await client.ask(get())).status == 200
    shutil.copy(shelf.folder / "broken.pem", pair["certificate"])
    with pytest.raises(ConfigError, match=r"^tls.certificate: .*no certificate"):
        await server.reload()
    assert await names_of(stage, shelf.client(), NAME) == {NAME, "fresh.example.org"}
    assert (await client.ask(get())).status == 200
