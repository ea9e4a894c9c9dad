"""Worker that answers every request at once with prepared bytes, to measure a balancer and not its workers.

python -m experiments.reproduce.fast_worker
"""

from __future__ import annotations

import asyncio
from typing import cast

import httptools
import uvloop

BODY = b"x" * 100
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: %d\r\n\r\n%b" % (len(BODY), BODY)


class Connection(asyncio.Protocol):
    """One client connection; answers each request when it is complete."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._parser = httptools.HttpRequestParser(self)

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._transport.close()

    def on_message_complete(self) -> None:
        self._transport.write(ANSWER)


async def serve() -> None:
    """Serve on a free loopback port until SIGTERM ends the process."""
    server = await asyncio.get_running_loop().create_server(Connection, "127.0.0.1", 0)
    print("worker ready on http://{}:{}".format(*server.sockets[0].getsockname()), flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve())
