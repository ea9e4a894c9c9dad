"""Worker of a storm: answers by request id, records what it executed, and can be put into several fault states.

An execution is recorded before the response, so that even SIGKILL does not lose it. A request counts as executed once
it has arrived completely, unless it is refused with 503. A fault state applies to health checks too, unless it was set
as unseen.

    python -m benchmarks.harness.verified.worker PORT NAME RECORD [AT]

AT is the instant of the monotonic clock from which it listens. On SIGTERM it accepts no new connections, sends
`Connection: close` on the existing ones, and exits when all are closed, at the latest after `PATIENCE` seconds.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import struct
import sys
import time
from contextlib import suppress
from random import Random
from typing import cast

import httptools
import uvloop

from benchmarks.harness.verified.messages import ID_FIELD, NAME_FIELD, TARGET, answer_of, body_of

SERVICE = (0.008, 0.012)
"""Service time in seconds, uniform."""

DRIPS, DRIP = 20, 0.05
"""Number of pieces of a dripped response and seconds between them; half of the pieces are its head."""

CUT_AFTER = 0.002
"""Seconds from the last byte of a truncated response to the reset."""

IDLE = (0.0, 0.05)
"""Seconds for which a fickle worker keeps an idle connection."""

RESET_SHARE = 0.2
"""Share of requests on an idle connection that a fickle worker answers with a reset."""

PATIENCE = 8.0
YIELDS = 5
"""Niceness: the load generator shares this core and must be punctual."""

LINGER_ZERO = struct.pack("ii", 1, 0)
FAULT_STATES = ("well", "cut", "busy", "drip", "fickle")
EXECUTED, REFUSED, DAMAGED = b"E", b"R", b"D"
"""Marks in the record: executed, refused with 503, received with a damaged body."""


class VerifiedWorker:
    """State shared by all connections of the worker."""

    def __init__(self, name: str, record: str) -> None:
        self.name = name.encode()
        self.rng = Random(name)
        self.fault_state = "well"
        self.looks_well = False
        self.is_leaving = False
        self.connections: set[ProxyConnection] = set()
        self.is_alone = asyncio.Event()
        self._record = os.open(record, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def note(self, mark: bytes, identity: bytes) -> None:
        """Append to the record file at once: the kernel keeps it even if this process is killed."""
        os.write(self._record, mark + b" " + identity + b"\n")


class ProxyConnection(asyncio.Protocol):
    """One connection from a proxy, with one request at a time."""

    def __init__(self, worker: VerifiedWorker) -> None:
        self._worker = worker
        self._served = 0
        self._url = b""
        self._body: list[bytes] = []
        self.is_busy = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._parser = httptools.HttpRequestParser(self)
        self._worker.connections.add(self)

    def connection_lost(self, error: Exception | None) -> None:
        worker = self._worker
        worker.connections.discard(self)
        if worker.is_leaving and not worker.connections:
            worker.is_alone.set()

    def data_received(self, data: bytes) -> None:
        worker = self._worker
        was_idle = not self.is_busy and not self._url
        if worker.fault_state == "fickle" and was_idle and self._served and worker.rng.random() < RESET_SHARE:
            self._reset()
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._transport.close()

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        url, body, self._url, self._body = self._url, b"".join(self._body), b"", []
        self.is_busy = True
        if url.startswith(b"/-/"):
            self._obey(url)
        elif found := TARGET.match(url):
            self._execute(found[1], int(found[2]), body)
        else:
            self._answer(b"200 OK", b"", b"well\n", self._worker.looks_well)

    def _obey(self, url: bytes) -> None:
        """Handle `/-/STATE` or `/-/STATE/unseen`; with `unseen`, health checks pass in spite of the fault."""
        fault_state, _, unseen = url.removeprefix(b"/-/").decode().partition("/")
        if fault_state in FAULT_STATES:
            self._worker.fault_state, self._worker.looks_well = fault_state, bool(unseen)
        self._answer(b"200 OK", b"", b"", True)

    def _execute(self, identity: bytes, size: int, body: bytes) -> None:
        worker = self._worker
        fields = b"%b: %b\r\n%b: %b\r\n" % (NAME_FIELD, worker.name, ID_FIELD, identity)
        if worker.fault_state == "busy":
            worker.note(REFUSED, identity)
            self._write(b"503 Service Unavailable", fields, b"busy\n")
            return
        if identity[:1] == b"p":
            worker.note(EXECUTED if body == body_of(identity, len(body)) else DAMAGED, identity)
        answer = answer_of(identity, body, size)
        asyncio.get_running_loop().call_later(
            worker.rng.uniform(*SERVICE), self._answer, b"200 OK", fields, answer
        )

    def _answer(self, status: bytes, fields: bytes, body: bytes, is_spared: bool = False) -> None:
        """Send a response according to the current fault state."""
        fault_state = "well" if is_spared else self._worker.fault_state
        if fault_state == "drip":
            self._drip(self._message(status, fields, body))
        elif fault_state == "cut":
            self._cut(self._message(status, fields, body))
        elif fault_state == "busy" and not fields:
            self._write(b"503 Service Unavailable", fields, body)
        else:
            self._write(status, fields, body)

    def _message(self, status: bytes, fields: bytes, body: bytes) -> bytes:
        keeps = not self._worker.is_leaving and self._parser.should_keep_alive()
        fields += b"" if keeps else b"Connection: close\r\n"
        head = b"HTTP/1.1 %b\r\nContent-Type: application/octet-stream\r\n%bContent-Length: %d\r\n\r\n"
        return head % (status, fields, len(body)) + body

    def _write(self, status: bytes, fields: bytes, body: bytes) -> None:
        self._transport.write(self._message(status, fields, body))
        self._ended()

    def _ended(self) -> None:
        self._served += 1
        self.is_busy = False
        worker = self._worker
        if worker.is_leaving or not self._parser.should_keep_alive():
            self._transport.close()
        elif worker.fault_state == "fickle":
            life = worker.rng.uniform(*IDLE)
            asyncio.get_running_loop().call_later(life, self._close_idle, self._served)

    def _close_idle(self, served: int) -> None:
        if self._served == served and not self.is_busy:
            self._transport.close()

    def _cut(self, message: bytes) -> None:
        self._transport.write(message[: self._worker.rng.randint(1, len(message) - 1)])
        asyncio.get_running_loop().call_later(CUT_AFTER, self._reset)

    def _reset(self) -> None:
        sock = self._transport.get_extra_info("socket")
        if sock is not None and not self._transport.is_closing():
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_ZERO)
        self._transport.abort()

    def _drip(self, message: bytes) -> None:
        head = message.index(b"\r\n\r\n") + 4
        half = DRIPS // 2
        pieces = [message[head * i // half : head * (i + 1) // half] for i in range(half)]
        rest = message[head:]
        pieces += [rest[len(rest) * i // half : len(rest) * (i + 1) // half] for i in range(half)]
        self._drip_on(pieces)

    def _drip_on(self, pieces: list[bytes]) -> None:
        if self._transport.is_closing():
            return
        self._transport.write(pieces.pop(0))
        if pieces:
            asyncio.get_running_loop().call_later(DRIP, self._drip_on, pieces)
        else:
            self._ended()


async def serve(port: int, name: str, record: str, at: float) -> None:
    """Serve until SIGTERM."""
    loop = asyncio.get_running_loop()
    worker, leaving = VerifiedWorker(name, record), asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, leaving.set)
    await asyncio.sleep(max(0.0, at - time.monotonic()))
    server = await loop.create_server(lambda: ProxyConnection(worker), "127.0.0.1", port, backlog=2048)
    print(f"{name} ready on http://127.0.0.1:{port}", flush=True)
    await leaving.wait()
    server.close()
    worker.is_leaving = True
    if worker.connections:
        with suppress(TimeoutError):
            await asyncio.wait_for(worker.is_alone.wait(), PATIENCE)


if __name__ == "__main__":
    os.nice(YIELDS)
    uvloop.run(serve(int(sys.argv[1]), sys.argv[2], sys.argv[3], float(sys.argv[4]) if sys.argv[4:] else 0.0))
