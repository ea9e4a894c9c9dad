"""WebSockets of a real library on both ends: messages, pings and farewells pass as if there were nothing in between.

Rule of this file: client and server are the package `websockets`; nothing here knows what a frame looks like.
"""

from __future__ import annotations

import asyncio
import os
import resource
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.http11 import Request, Response
from websockets.typing import Origin, Subprotocol

from tests.balancer.conftest import PATIENCE, Stage

MIB = 1 << 20
CROWD = 1000
DESCRIPTORS_EACH = 4
"""Client, both sides of the unit, server: all in this process."""

Visits = list[ServerConnection]


async def echo(visit: ServerConnection) -> None:
    """Say everything back; "bye CODE" closes with that code."""
    async for message in visit:
        if isinstance(message, str) and message.startswith("bye "):
            await visit.close(int(message.removeprefix("bye ")), "as you wish")
            return
        await visit.send(message)


@asynccontextmanager
async def served(stage: Stage) -> AsyncIterator[tuple[str, Visits]]:
    """The URL of an echoing server behind the unit, and who visited it."""
    visits: Visits = []

    async def visited(visit: ServerConnection) -> None:
        visits.append(visit)
        await echo(visit)

    async with serve(
        visited, "127.0.0.1", 0, max_size=32 * MIB, subprotocols=[Subprotocol("chat")], ping_interval=None
    ) as server:
        port = server.sockets[0].getsockname()[1]
        await stage.serve(port, timeouts={"connect": PATIENCE})  # a server in the same process may be busy
        assert stage.server is not None
        yield f"ws://{stage.server.address}/room?id=1", visits
        await stage.eventually(lambda: not stage.proxy.tunnels)
    ends = stage.outcomes()
    assert ends.get("tunnelled", 0) == stage.proxy.tunnels.opened
    assert (stage.pool().leased, stage.proxy.in_flight) == (0, 0)


def visit(url: str, *, compression: str | None = None, origin: str = "http://here") -> connect:
    """A client; no pings but those of the test."""
    return connect(
        url,
        compression=compression,
        origin=Origin(origin),
        subprotocols=[Subprotocol("chat")],
        max_size=32 * MIB,
        ping_interval=None,
        proxy=None,
    )


async def said_back(client: ClientConnection) -> str | bytes:
    async with asyncio.timeout(PATIENCE * 4):
        return await client.recv()


@pytest.mark.parametrize("compression", [None, "deflate"])
async def test_messages(stage: Stage, compression: str | None) -> None:
    """Text, binary, empty, with and without permessage-deflate, which is the ends' own affair."""
    async with served(stage) as (url, visits), visit(url, compression=compression) as client:
        for message in ("héllo ⚖", b"\x00\xff" * 100, "", b"", "x" * 100_000):
            await client.send(message)
            assert await said_back(client) == message
        extensions = visits[0].protocol.extensions
        assert bool(client.protocol.extensions) is bool(extensions) is (compression is not None)


async def test_a_fragmented_message(stage: Stage) -> None:
    async with served(stage) as (url, _), visit(url) as client:
        await client.send([b"one", b"", b"two", b"three"])
        assert await said_back(client) == b"onetwothree"


async def test_sixteen_mebibytes(stage: Stage) -> None:
    """One message, there and back, byte for byte."""
    message = os.urandom(16 * MIB)
    async with served(stage) as (url, _), visit(url) as client:
        await client.send(message)
        assert await said_back(client) == message


async def test_pings_both_ways(stage: Stage) -> None:
    """With their payloads, between the messages."""
    async with served(stage) as (url, visits), visit(url) as client:
        await client.send("hello")
        assert await said_back(client) == "hello"
        for end in (client, visits[0]):
            pong = await end.ping(b"payload")
            async with asyncio.timeout(PATIENCE):
                await pong


@pytest.mark.parametrize("code", [1000, 1001, 3000, 4999])
async def test_close_codes_from_the_client(stage: Stage, code: int) -> None:
    """The server hears the client's code and reason."""
    async with served(stage) as (url, visits):
        async with visit(url) as client:
            await client.send("hello")
            await said_back(client)
            await client.close(code, "that is all")
        await visits[0].wait_closed()
        assert (visits[0].close_code, visits[0].close_reason) == (code, "that is all")


@pytest.mark.parametrize("code", [1000, 1012, 4000])
async def test_close_codes_from_the_server(stage: Stage, code: int) -> None:
    """The client hears the server's."""
    async with served(stage) as (url, _), visit(url) as client:
        await client.send(f"bye {code}")
        with pytest.raises(ConnectionClosed):
            await said_back(client)
        assert (client.close_code, client.close_reason) == (code, "as you wish")


async def test_what_the_handshake_says_arrives(stage: Stage) -> None:
    """Target, origin and subprotocol as the client sent them; who the client is as the unit says."""
    async with served(stage) as (url, visits), visit(url, origin="http://there") as client:
        assert client.subprotocol == "chat"
        asked = visits[0].request
        assert asked is not None
        assert (asked.path, asked.headers["Origin"]) == ("/room?id=1", "http://there")
        assert asked.headers["X-Forwarded-For"] == "127.0.0.1"


async def test_a_server_that_declines(stage: Stage) -> None:
    """Its own status and words."""

    def decline(visit: ServerConnection, request: Request) -> Response:
        return visit.respond(418, "no tea\n")

    async with serve(echo, "127.0.0.1", 0, process_request=decline) as server:
        await stage.serve(server.sockets[0].getsockname()[1])
        assert stage.server is not None
        with pytest.raises(InvalidStatus) as caught:
            await visit(f"ws://{stage.server.address}/")
    assert (caught.value.response.status_code, caught.value.response.body) == (418, b"no tea\n")


@pytest.mark.skipif(
    resource.getrlimit(resource.RLIMIT_NOFILE)[1] < CROWD * DESCRIPTORS_EACH + 500,
    reason=f"the hard limit of open files is below {CROWD * DESCRIPTORS_EACH + 500}",
)
async def test_a_thousand_at_once(stage: Stage) -> None:
    """All open at the same time, each hears its own words."""
    async with served(stage) as (url, visits), AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(visit(url)) for _ in range(CROWD)]
        assert len(stage.proxy.tunnels) == stage.state().in_flight == len(visits) == CROWD
        for number, client in enumerate(clients):
            await client.send(f"I am {number}")
        for number, client in enumerate(clients):
            assert await said_back(client) == f"I am {number}"
        async with asyncio.TaskGroup() as leaving:
            for client in clients:
                leaving.create_task(client.close())
    assert stage.outcomes() == {"tunnelled": CROWD}
