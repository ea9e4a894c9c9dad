"""Worker that answers every request at once with prepared bytes, to measure a balancer and not its workers.

A small body, a large one, a huge one for slow readers, and a stream of chunks; below `/held` it accepts WebSockets and
answers no more.

    python -m experiments.platform.instant_worker [PORT…]
"""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Sequence
from typing import cast

import httptools
import uvloop

SMALL = "A small body, as a health page or a tiny answer of an API has it: about a hundred bytes, no more.\n"
LARGE_BYTES = 1024 * 1024
LARGE_NAME = "1m"
HUGE_BYTES = 8 * LARGE_BYTES
"""More than the kernel buffers between two sockets, so that a reader that stops blocks the sender."""

HUGE_NAME = "8m"


def answer(body: bytes) -> bytes:
    """Complete response with `body`."""
    return b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)


ANSWER = answer(SMALL.encode())
LARGE_ANSWERS = {
    f"/{name}".encode(): answer(bytes(size))
    for name, size in ((LARGE_NAME, LARGE_BYTES), (HUGE_NAME, HUGE_BYTES))
}


HUGE_PATH = f"/{HUGE_NAME}".encode()
HELD_PATH = b"/held"
SWITCH = b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n"
SEND_BUFFER = 32 * 1024
"""Send buffer in bytes for a huge response. On one machine, a thousand send buffers grown to megabytes each exhaust the
memory that all its sockets share (`tcp_mem` in tcp(7)); then segments are dropped and retransmitted after 200 ms, those
of the measured traffic included.
"""


STREAM_NAME = "stream"
STREAM_PATH = f"/{STREAM_NAME}".encode()
CHUNKS = 50
PAUSE_S = 0.001
STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nX-Accel-Buffering: no\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n"
)
"""The second field turns the buffers of nginx off for this answer, as is usual for streams."""

CHUNK = b"80\r\n" + b"data: ".ljust(126, b"x") + b"\n\n\r\n"


class InstantConnection(asyncio.Protocol):
    """One client connection; answers each request when it is complete."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._parser = httptools.HttpRequestParser(self)
        self._path = b""

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._transport.write(SWITCH)
        except httptools.HttpParserError:
            self._transport.close()

    def on_url(self, url: bytes) -> None:
        self._path += url

    def on_message_complete(self) -> None:
        if self._path.startswith(HELD_PATH):
            return
        if self._path == HUGE_PATH:
            sock = self._transport.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
        path, self._path = self._path, b""
        if path == STREAM_PATH:
            self._transport.write(STREAM_HEAD)
            self._send_chunks(CHUNKS)
            return
        self._transport.write(LARGE_ANSWERS.get(path, ANSWER))
        if not self._parser.should_keep_alive():
            self._transport.close()

    def _send_chunks(self, left: int) -> None:
        """Send one chunk, then the others, or the end behind the last."""
        if self._transport.is_closing():
            return
        self._transport.write(CHUNK if left > 1 else CHUNK + b"0\r\n\r\n")
        if left > 1:
            asyncio.get_running_loop().call_later(PAUSE_S, self._send_chunks, left - 1)


async def serve(ports: Sequence[int]) -> None:
    """Serve on these ports, or on a free one, until SIGTERM ends the process."""
    loop = asyncio.get_running_loop()
    servers = [await loop.create_server(InstantConnection, "127.0.0.1", port) for port in ports or (0,)]
    print("worker ready on http://{}:{}".format(*servers[0].sockets[0].getsockname()), flush=True)
    await servers[0].serve_forever()


if __name__ == "__main__":
    uvloop.run(serve([int(port) for port in sys.argv[1:]]))
