"""Reference proxy in idiomatic aiohttp: an aiohttp server that forwards with an aiohttp client session.

Connections are kept on both sides, bodies are streamed, the loop is uvloop, and nothing is logged.

    python -m benchmarks.harness.aiohttp_session PORT WORKER_PORT…
"""

from __future__ import annotations

import asyncio
import itertools
import sys
import uuid
from collections.abc import Iterator, Sequence

import uvloop
from aiohttp import ClientSession, DummyCookieJar, TCPConnector, web
from multidict import CIMultiDict

HOP_BY_HOP = ("Connection", "Keep-Alive", "Proxy-Connection", "TE", "Transfer-Encoding", "Upgrade")


class Forwarder:
    """Forwards every request to the next worker in turn."""

    def __init__(self, session: ClientSession, workers: Iterator[str]) -> None:
        self._session = session
        self._workers = workers

    async def forward(self, request: web.BaseRequest) -> web.StreamResponse:
        """Forward one request; request and response bodies are streamed."""
        url = next(self._workers) + request.raw_path
        headers = outgoing(request)
        body = request.content if request.can_read_body else None
        async with self._session.request(
            request.method, url, headers=headers, data=body, allow_redirects=False
        ) as answer:
            response = web.StreamResponse(status=answer.status, headers=end_to_end(answer.headers.copy()))
            await response.prepare(request)
            async for chunk in answer.content.iter_any():
                await response.write(chunk)
            await response.write_eof()
            return response


def outgoing(request: web.BaseRequest) -> CIMultiDict[str]:
    """The request's headers plus those that a proxy adds."""
    headers = end_to_end(request.headers.copy())
    headers["X-Forwarded-For"] = request.remote or "unknown"
    headers["X-Forwarded-Proto"] = request.scheme
    headers["X-Forwarded-Host"] = request.host
    headers["X-Request-ID"] = uuid.uuid4().hex
    headers["Via"] = "1.1 aiohttp"
    return headers


def end_to_end(headers: CIMultiDict[str]) -> CIMultiDict[str]:
    """Remove hop-by-hop fields; returns `headers`."""
    for name in HOP_BY_HOP:
        headers.popall(name, None)
    return headers


async def serve(port: int, workers: Sequence[int]) -> None:
    """Forward until SIGTERM ends the process."""
    addresses = itertools.cycle([f"http://127.0.0.1:{worker}" for worker in workers])
    connector = TCPConnector(limit=0)
    async with ClientSession(
        connector=connector, auto_decompress=False, cookie_jar=DummyCookieJar()
    ) as session:
        runner = web.ServerRunner(web.Server(Forwarder(session, addresses).forward, access_log=None))
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port).start()
        await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1]), [int(worker) for worker in sys.argv[2:]]))
