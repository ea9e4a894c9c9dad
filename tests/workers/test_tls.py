"""TLS and HTTP/2 behind the link: messages and behaviour. Times are in test_round_trips.py."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import cast

import pytest
import trustme
from h2.connection import H2Connection
from hyperframe.frame import DataFrame, Frame, GoAwayFrame, HeadersFrame, SettingsFrame, WindowUpdateFrame

from experiments.errors import FleetFailedError
from experiments.reproduce.blocking_client import BlockingConnection, Target, client_context
from tests.workers.started import RunWorkers, StartWorker, port_of, ready_port
from workers.app import digest_of_generated
from workers.errors import CannotCertify
from workers.http2 import WorkerHttp2Connection
from workers.server import Worker
from workers.service import Fixed
from workers.settings import Settings

pytestmark = pytest.mark.real_time  # most clients are threads


def target_of(worker: Worker, path: str = "/work") -> Target:
    return Target("127.0.0.1", port_of(worker), worker.settings.tls, worker.settings.http, path)


@pytest.mark.parametrize("tls", ["1.2", "1.3"])
@pytest.mark.parametrize("may_resume", [True, False])
async def test_resumption(start_worker: StartWorker, tls: str, may_resume: bool) -> None:
    target = target_of(await start_worker(tls=tls, resumption=may_resume))

    def resumes() -> bool:
        context = client_context(target)
        first = BlockingConnection(target, context)
        first.call()
        assert isinstance(first.socket, ssl.SSLSocket)
        again = BlockingConnection(target, context, first.socket.session)
        again.call()
        assert isinstance(again.socket, ssl.SSLSocket)
        was_resumed = bool(again.socket.session_reused)
        first.close()
        again.close()
        return was_resumed

    assert await asyncio.to_thread(resumes) is may_resume


@pytest.mark.parametrize("tls", [None, "1.2", "1.3"])
@pytest.mark.parametrize("http", ["1.1", "2"])
@pytest.mark.parametrize("length", [0, 1, 60_000])
async def test_bodies_are_identical_both_ways(
    start_worker: StartWorker, tls: str | None, http: str, length: int
) -> None:
    """In every version, by their hashes; the response is longer than the client's window."""
    worker = await start_worker(tls=tls, http=http, round_trip=0.002)
    body = bytes(range(256)) * (length // 256) + b"x" * (length % 256)

    def exchange(path: str, method: str, sent: bytes) -> bytes:
        connection = BlockingConnection(target_of(worker, path))
        answer = connection.call(method, sent)
        connection.close()
        assert answer.status == 200
        return bytes(answer.body)

    account = json.loads(await asyncio.to_thread(exchange, "/work", "POST", body))
    assert (account["body_sha256"], account["body_bytes"]) == (sha256(body).hexdigest(), length)
    received = await asyncio.to_thread(exchange, f"/work?bytes={20 * length}", "GET", b"")
    assert sha256(received).hexdigest() == digest_of_generated(20 * length).sha256


async def test_last_request_of_a_connection_is_followed_by_goaway(start_worker: StartWorker) -> None:
    worker = await start_worker(http="2", max_requests_per_connection=(2, 2))

    def take() -> list[Frame]:
        connection = BlockingConnection(target_of(worker))
        assert connection.call().status == 200
        connection.send()
        return frames_until_closed(connection)

    goaway, *answer = await asyncio.to_thread(take)
    assert isinstance(goaway, GoAwayFrame)
    assert (goaway.error_code, goaway.last_stream_id) == (0, 3)
    assert [frame.type for frame in answer] == [HeadersFrame.type, DataFrame.type]
    assert "END_STREAM" in answer[-1].flags


def frames_until_closed(connection: BlockingConnection) -> list[Frame]:
    """The frames until the end, without SETTINGS and WINDOW_UPDATE. (h2's client rejects frames after GOAWAY.)"""
    data = b""
    while piece := connection.socket.recv(65536):
        data += piece
    connection.close()
    found = []
    while data:
        frame, length = Frame.parse_frame_header(memoryview(data[:9]))
        frame.parse_body(memoryview(data[9 : 9 + length]))
        found.append(frame)
        data = data[9 + length :]
    return [frame for frame in found if not isinstance(frame, SettingsFrame | WindowUpdateFrame)]


@pytest.mark.parametrize("settings", [{"keep_alive": 0.05}, {"close_idle": (0.0, 0.05)}])
async def test_idle_connections_are_closed(start_worker: StartWorker, settings: dict[str, object]) -> None:
    """After the keep-alive time or a random one."""
    worker = await start_worker(http="2", tls="1.3", **settings)

    def take() -> None:
        connection = BlockingConnection(target_of(worker))
        connection.call()
        while connection.socket.recv(65536):
            pass
        connection.close()

    await asyncio.to_thread(take)


@pytest.mark.parametrize("tls", [None, "1.3"])
@pytest.mark.parametrize("http", ["1.1", "2"])
async def test_reset_breaks_the_connection(start_worker: StartWorker, tls: str | None, http: str) -> None:
    """RST in every version, with and without a link; read below TLS, since Python's `ssl` takes it for an end."""
    worker = await start_worker(tls=tls, http=http, round_trip=0.002 if tls else 0.0)
    worker.switchboard.put(worker.switchboard.current.model_copy(update={"reset": 1.0}))

    def take() -> None:
        connection = BlockingConnection(target_of(worker))
        try:
            if http == "2":
                connection.send()
            else:
                connection.socket.sendall(b"GET /work HTTP/1.1\r\nHost: w\r\n\r\n")
            while socket.socket.recv(connection.socket, 65536):
                pass
        finally:
            connection.close()

    with pytest.raises(ConnectionResetError):
        await asyncio.to_thread(take)


async def test_hanging_request_ends_with_its_client(start_worker: StartWorker) -> None:
    worker = await start_worker(http="2", tls="1.3")
    worker.switchboard.put(worker.switchboard.current.model_copy(update={"hang": 1 - 1e-9}))
    connection = await asyncio.to_thread(BlockingConnection, target_of(worker))
    await asyncio.to_thread(connection.send)
    await until_in_flight(worker, 1)
    connection.close()
    await until_in_flight(worker, 0)


async def until_in_flight(worker: Worker, count: int) -> None:
    """Wait until the worker reports so many requests in flight."""
    health = Target("127.0.0.1", target_of(worker).port, worker.settings.tls, "1.1", "/healthz")
    context = client_context(health) if health.tls else None
    reported = b""
    while f"X-Worker-In-Flight: {count}\r\n".encode() not in reported:
        reader, writer = await asyncio.open_connection("127.0.0.1", health.port, ssl=context)
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: w\r\nConnection: close\r\n\r\n")
        reported = await reader.readuntil(b"\r\n\r\n")
        writer.close()


async def test_request_in_service_survives_a_graceful_stop(start_worker: StartWorker) -> None:
    """GOAWAY on every connection, and responses to the requests received."""
    worker = await start_worker(http="2", tls="1.2", service=Fixed(0.2), round_trip=0.02)
    connection = await asyncio.to_thread(BlockingConnection, target_of(worker))
    calling = asyncio.ensure_future(asyncio.to_thread(connection.send))
    await calling
    await until_in_flight(worker, 1)
    stopping = asyncio.create_task(worker.stop())

    found = await asyncio.to_thread(frames_until_closed, connection)
    assert [frame.type for frame in found] == [GoAwayFrame.type, HeadersFrame.type, DataFrame.type]
    await stopping
    await worker.start()  # for the fixture to stop


async def test_faults_are_set_without_tls_and_without_delay(run_workers: RunWorkers) -> None:
    """On the port that speaks TLS, behind any round trip."""
    port = await ready_port(await run_workers("serve", "--tls", "1.3", "--http", "2", "--rtt", "60s"))
    command = await run_workers("fault", f"http://127.0.0.1:{port}", "--slow", "3")
    stdout, stderr = await command.communicate()
    assert (json.loads(stdout)["slow"], stderr) == (3, b"")


async def test_http_1_1_is_served_beside_http_2(start_worker: StartWorker) -> None:
    """`--http 2` is a preference."""
    for tls in (None, "1.3"):
        worker = await start_worker(http="2", tls=tls)
        plain = Target("127.0.0.1", target_of(worker).port, tls, "1.1")
        connection = await asyncio.to_thread(BlockingConnection, plain)
        assert (await asyncio.to_thread(connection.call)).status == 200
        connection.close()


async def test_garbage_ends_the_connection(start_worker: StartWorker) -> None:
    """With an alert or GOAWAY; the next client is served."""
    for settings, sent in (
        ({"tls": "1.3"}, b"\x16garbage" * 9),
        ({}, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\1\0\0\0\0\0\0x"),
    ):
        worker = await start_worker(http="2", **settings)
        reader, writer = await asyncio.open_connection("127.0.0.1", target_of(worker).port)
        writer.write(sent)
        await reader.read()
        writer.close()
        connection = await asyncio.to_thread(BlockingConnection, target_of(worker))
        assert (await asyncio.to_thread(connection.call)).status == 200
        connection.close()


async def test_configured_certificate_is_used(start_worker: StartWorker, tmp_path: Path) -> None:
    authority, pem = trustme.CA(), tmp_path / "worker.pem"
    authority.issue_cert("localhost").private_key_and_cert_chain_pem.write_to_path(str(pem))
    worker = await start_worker(tls="1.3", certificate=pem)
    context = ssl.create_default_context()
    authority.configure_trust(context)
    _, writer = await asyncio.open_connection(
        "127.0.0.1", target_of(worker).port, ssl=context, server_hostname="localhost"
    )
    writer.close()


async def test_invalid_certificate_is_rejected(start_worker: StartWorker, tmp_path: Path) -> None:
    pem = tmp_path / "worker.pem"
    pem.write_text("no certificate", encoding="ascii")
    with pytest.raises(CannotCertify, match="PEM"):
        await start_worker(tls="1.3", certificate=pem)


async def test_client_of_a_broken_response_gets_an_error(start_worker: StartWorker) -> None:
    worker = await start_worker(http="2", service=Fixed(30))
    connection = await asyncio.to_thread(BlockingConnection, target_of(worker))
    calling = asyncio.ensure_future(asyncio.to_thread(connection.call))
    await until_in_flight(worker, 1)
    worker.switchboard.put(worker.switchboard.current.model_copy(update={"down": True}))
    with pytest.raises((FleetFailedError, ConnectionResetError)):
        await calling
    connection.close()


@pytest.mark.parametrize("split_head", [True, False])
async def test_head_and_body_in_two_packets_or_one(split_head: bool) -> None:
    """Two writes or one; the frames are the same."""

    class Sink(asyncio.Transport):
        def __init__(self) -> None:
            super().__init__()
            self.writes: list[bytes] = []

        def write(self, data: bytes | bytearray | memoryview) -> None:
            self.writes.append(bytes(data))

        def is_closing(self) -> bool:
            return False

    class Application(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            self._transport = cast(asyncio.Transport, transport)

        def data_received(self, data: bytes) -> None:
            self._transport.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi")

    sink, client = Sink(), H2Connection()
    connection = WorkerHttp2Connection(Application, Settings(http="2", split_head=split_head), Random(0))
    connection.connection_made(sink)
    client.initiate_connection()
    connection.data_received(client.data_to_send())  # its settings are acknowledged
    client.send_headers(
        1, [(":method", "GET"), (":path", "/"), (":scheme", "http"), (":authority", "w")], True
    )
    sink.writes.clear()
    connection.data_received(client.data_to_send())
    connection.connection_lost(None)
    assert len(sink.writes) == (2 if split_head else 1)
    events = client.receive_data(b"".join(sink.writes))
    assert {"ResponseReceived", "DataReceived", "StreamEnded"} <= {type(event).__name__ for event in events}
