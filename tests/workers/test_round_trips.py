"""TLS and HTTP/2 behind the link against theory in virtual time, with R the round trip and S the service time."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable
from typing import TypeVar

import pytest
from h2.connection import H2Connection
from h2.events import StreamEnded

from experiments.reproduce.blocking_client import Target, client_context
from tests.workers.started import StartWorker, port_of
from tests.workers.virtual_time import EXACTLY
from workers.server import Worker
from workers.service import Fixed

R, S = 0.1, 0.05
ENOUGH = 1 << 16
Made = TypeVar("Made")


class LoopClient:
    """A client on the loop, so that virtual time waits for it; the client of experiments blocks."""

    def __init__(self, worker: Worker, session: ssl.SSLSession | None = None) -> None:
        settings = worker.settings
        self.target = Target("127.0.0.1", port_of(worker), settings.tls, settings.http)
        self._session = session
        self._h2 = H2Connection()

    async def open(self, context: ssl.SSLContext) -> float:
        """Open TCP, and TLS if configured; return how long that took."""
        begun_at = time.monotonic()
        self._reader, self._writer = await asyncio.open_connection(self.target.host, self.target.port)
        self._came, self._goes = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls: ssl.SSLObject | None = None
        if self.target.tls is not None:
            self.tls = context.wrap_bio(self._came, self._goes, session=self._session)
            await self._do(self.tls.do_handshake)
            self._writer.write(self._goes.read())
        if self.target.http == "2":
            self._h2.initiate_connection()
        return time.monotonic() - begun_at

    async def call(self, times: int = 1) -> float:
        """Send so many requests, concurrently with HTTP/2, else one after another; return the time until all are
        answered."""
        begun_at = time.monotonic()
        if self.target.http == "2":
            for _ in range(times):
                fields = [(":method", "GET"), (":path", "/work"), (":scheme", "http"), (":authority", "w")]
                self._h2.send_headers(self._h2.get_next_available_stream_id(), fields, end_stream=True)
            self._send(self._h2.data_to_send())
            while times:
                times -= sum(
                    isinstance(one, StreamEnded) for one in self._h2.receive_data(await self._read())
                )
        for _ in range(times):
            self._send(b"GET /work HTTP/1.1\r\nHost: w\r\n\r\n")
            answer = b""
            while not answer.endswith(b"}"):
                answer += await self._read()
        return time.monotonic() - begun_at

    def close(self) -> None:
        self._writer.close()

    def _send(self, data: bytes) -> None:
        if self.tls is None:
            self._writer.write(data)
        else:
            self.tls.write(data)
            self._writer.write(self._goes.read())

    async def _read(self) -> bytes:
        return await self._reader.read(ENOUGH) if self.tls is None else await self._do(self._read_tls)

    def _read_tls(self) -> bytes:
        assert self.tls is not None
        return self.tls.read(ENOUGH)

    async def _do(self, act: Callable[[], Made]) -> Made:
        """Repeat an operation of the TLS object until it has the bytes it needs."""
        while True:
            try:
                return act()
            except ssl.SSLWantReadError:
                self._writer.write(self._goes.read())
                self._came.write(await self._reader.read(ENOUGH))


@pytest.mark.parametrize("http", ["1.1", "2"])
@pytest.mark.parametrize(("tls", "trips"), [(None, 2), ("1.2", 4), ("1.3", 3)])
async def test_round_trips_of_each_version(
    start_worker: StartWorker, tls: str | None, trips: int, http: str
) -> None:
    """Cold 2R + S without TLS, 4R + S with TLS 1.2, 3R + S with 1.3; warm R + S."""
    client = LoopClient(await start_worker(tls=tls, http=http, round_trip=R, service=Fixed(S)))
    cold = await client.open(client_context(client.target)) + await client.call()
    warm = await client.call()
    client.close()
    assert cold == pytest.approx(trips * R + S, abs=EXACTLY)
    assert warm == pytest.approx(R + S, abs=EXACTLY)


@pytest.mark.parametrize(("tls", "full", "resumed"), [("1.2", 3, 2), ("1.3", 2, 2)])
async def test_resumed_tls_1_2_saves_a_round_trip(
    start_worker: StartWorker, tls: str, full: int, resumed: int
) -> None:
    """After TCP's round trip a full handshake of TLS 1.2 takes 2R, a resumed one R; of TLS 1.3 each takes R."""
    worker = await start_worker(tls=tls, round_trip=R)
    first = LoopClient(worker)
    context = client_context(first.target)
    took = await first.open(context)
    await first.call()  # with TLS 1.3 the ticket follows the handshake
    assert first.tls is not None
    again = LoopClient(worker, first.tls.session)
    took_again = await again.open(context)
    await again.call()
    assert again.tls is not None
    assert again.tls.session_reused
    first.close()
    again.close()
    assert took == pytest.approx(full * R, abs=EXACTLY)
    assert took_again == pytest.approx(resumed * R, abs=EXACTLY)


async def test_streams_of_one_connection_share_the_slots(start_worker: StartWorker) -> None:
    """Three at once on two slots: two are served together, then the third."""
    client = LoopClient(await start_worker(http="2", slots=2, service=Fixed(S)))
    await client.open(client_context(client.target))
    took = await client.call(3)
    client.close()
    assert took == pytest.approx(2 * S, abs=EXACTLY)
