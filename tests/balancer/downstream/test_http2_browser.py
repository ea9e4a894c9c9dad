"""Chromium over HTTP/2 and TLS: a page with many fetches at once, uploads, and a WebSocket on the same connection."""

from __future__ import annotations

import hashlib
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from websockets.asyncio.server import ServerConnection, serve
from websockets.datastructures import Headers
from websockets.http11 import Request, Response

from tests.support.certificates import Shelf
from tests.support.chromium import Tab, chromium, program
from tests.support.stage import Stage
from tests.support.wire import Message, Wire, response

pytestmark = [
    pytest.mark.peer,
    pytest.mark.second_tier,
    pytest.mark.timeout(180),
    pytest.mark.skipif(program() is None, reason="Chromium is not installed"),
]

FETCHES = 80
SIZE = 50_000
PAGE = b"<!doctype html><title>page</title><link rel=icon href=data:,>"


def body_of(path: bytes) -> bytes:
    return hashlib.shake_128(path).digest(SIZE)


def answer_to(request: Message) -> bytes:
    """The page, a body that follows from the path, or the hash of what was uploaded."""
    method, path, _ = request.line.split(b" ")
    if path == b"/":
        return response(PAGE, b"Content-Type: text/html")
    if method == b"POST":
        return response(hashlib.sha256(request.body).hexdigest().encode())
    return response(body_of(path))


async def worker(wire: Wire) -> None:
    while True:
        await wire.send(answer_to(await wire.request()))


@pytest.fixture
async def tab() -> AsyncIterator[Tab]:
    """A page that takes any certificate, and must have reported no problem at the end."""
    async with chromium() as tab:
        await tab.ask("Security.setIgnoreCertificateErrors", ignore=True)
        yield tab
        assert tab.problems == []


HASHES = """
(async () => {
  const hex = (buffer) => [...new Uint8Array(buffer)].map((each) => each.toString(16).padStart(2, "0")).join("");
  const one = async (number) => {
    const answer = await fetch(`/fetch/${number}`, { cache: "no-store" });
    return hex(await crypto.subtle.digest("SHA-256", await answer.arrayBuffer()));
  };
  return JSON.stringify(await Promise.all([...Array(%d).keys()].map(one)));
})()
"""

UPLOADS = """
(async () => {
  const one = async (number) => {
    const answer = await fetch("/upload", { method: "POST", body: new Uint8Array(%d).fill(number) });
    return answer.text();
  };
  return JSON.stringify(await Promise.all([...Array(%d).keys()].map(one)));
})()
"""

PROTOCOLS = """
JSON.stringify(["navigation", "resource"].flatMap((kind) => performance.getEntriesByType(kind))
  .filter((entry) => entry.name.startsWith("https:")).map((entry) => entry.nextHopProtocol))
"""


async def test_page_with_many_fetches(stage: Stage, tab: Tab, tmp_path: Path) -> None:
    """All on one connection of HTTP/2, and every body is whole."""
    server = await stage.serve(await stage.worker(worker), tls=Shelf(tmp_path).pair("localhost", "127.0.0.1"))
    await tab.open(f"https://{server.address}/")
    await tab.eventually("document.title === 'page'")
    bodies = [body_of(b"/fetch/%d" % number) for number in range(FETCHES)]
    assert json.loads(await tab.value(HASHES % FETCHES)) == [
        hashlib.sha256(body).hexdigest() for body in bodies
    ]
    uploads = [bytes([number]) * SIZE for number in range(FETCHES)]
    assert json.loads(await tab.value(UPLOADS % (SIZE, FETCHES))) == [
        hashlib.sha256(body).hexdigest() for body in uploads
    ]
    assert json.loads(await tab.value(PROTOCOLS)) == ["h2"] * (1 + 2 * FETCHES)
    counts = stage.cluster.process.counts
    assert counts.http2_streams == 1 + 2 * FETCHES
    assert counts.http2_connections == 1
    assert stage.outcomes() == {"ok": 1 + 2 * FETCHES}


ECHO = """
new Promise((resolve, reject) => {
  const socket = new WebSocket(`wss://${location.host}/socket`);
  socket.onopen = () => socket.send("hello");
  socket.onmessage = (event) => { socket.close(); resolve(event.data); };
  socket.onerror = () => reject("error");
})
"""


async def test_websocket_on_the_connection_of_the_page(stage: Stage, tab: Tab, tmp_path: Path) -> None:
    """By extended CONNECT (RFC 8441): it is a second stream of the same connection."""

    async def echo(connection: ServerConnection) -> None:
        async for message in connection:
            await connection.send(message)

    def page_or_socket(connection: ServerConnection, request: Request) -> Response | None:
        fields = Headers({"Content-Type": "text/html", "Content-Length": str(len(PAGE))})
        return Response(200, "OK", fields, PAGE) if request.path == "/" else None

    async with serve(echo, "127.0.0.1", 0, process_request=page_or_socket) as worker:
        port = next(iter(worker.sockets)).getsockname()[1]
        server = await stage.serve(port, tls=Shelf(tmp_path).pair("localhost", "127.0.0.1"))
        await tab.open(f"https://{server.address}/")
        await tab.eventually("document.title === 'page'")
        assert await tab.value(ECHO) == "hello"
        counts = stage.cluster.process.counts
        assert (counts.http2_connections, counts.http2_streams) == (1, 2)
