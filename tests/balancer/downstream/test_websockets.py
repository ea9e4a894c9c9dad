"""WebSockets through the balancer, with the package `websockets` as client and server."""

from __future__ import annotations

import asyncio
import resource
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.asyncio.server import ServerConnection, serve
from websockets.typing import Subprotocol

from tests.support.stage import Stage
from tests.support.wire import PATIENCE

MIB = 1 << 20
CLIENTS = 1000
DESCRIPTORS_EACH = 4
"""Client, both sides of the balancer, server: all in this process."""

Connections = list[ServerConnection]


async def echo(connection: ServerConnection) -> None:
    """Send everything back."""
    async for message in connection:
        await connection.send(message)


@asynccontextmanager
async def echo_server(stage: Stage) -> AsyncIterator[tuple[str, Connections]]:
    """The URL of an echoing server behind the balancer, and its connections."""
    connections: Connections = []

    async def on_connection(connection: ServerConnection) -> None:
        connections.append(connection)
        await echo(connection)

    async with serve(
        on_connection,
        "127.0.0.1",
        0,
        max_size=32 * MIB,
        subprotocols=[Subprotocol("chat")],
        ping_interval=None,
    ) as server:
        port = server.sockets[0].getsockname()[1]
        await stage.serve(port)
        yield f"ws://{stage.running.address}/room?id=1", connections
        await stage.eventually(lambda: not stage.cluster.tunnels)
    ends = stage.outcomes()
    assert ends.get("tunnelled", 0) == stage.cluster.tunnels.opened
    assert (stage.pool().leased, stage.cluster.process.in_flight) == (0, 0)


def client_for(url: str, *, compression: str | None = None) -> connect:
    """A client without automatic pings."""
    return connect(
        url,
        compression=compression,
        subprotocols=[Subprotocol("chat")],
        max_size=32 * MIB,
        ping_interval=None,
        proxy=None,
    )


async def received(client: ClientConnection) -> str | bytes:
    async with asyncio.timeout(PATIENCE * 4):
        return await client.recv()


@pytest.mark.parametrize("compression", [None, "deflate"])
async def test_messages_are_echoed(stage: Stage, compression: str | None) -> None:
    """Text, binary, empty; permessage-deflate is negotiated by the ends."""
    async with echo_server(stage) as (url, connections), client_for(url, compression=compression) as client:
        for message in ("héllo ⚖", b"\x00\xff" * 100, "", b"", "x" * 100_000):
            await client.send(message)
            assert await received(client) == message
        extensions = connections[0].protocol.extensions
        assert bool(client.protocol.extensions) is bool(extensions) is (compression is not None)


@pytest.mark.second_tier
@pytest.mark.skipif(
    resource.getrlimit(resource.RLIMIT_NOFILE)[1] < CLIENTS * DESCRIPTORS_EACH + 500,
    reason=f"the hard limit of open files is below {CLIENTS * DESCRIPTORS_EACH + 500}",
)
async def test_a_thousand_concurrent_tunnels(stage: Stage) -> None:
    async with echo_server(stage) as (url, connections), AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(client_for(url)) for _ in range(CLIENTS)]
        assert len(stage.cluster.tunnels) == stage.state().in_flight == len(connections) == CLIENTS
        for number, client in enumerate(clients):
            await client.send(f"I am {number}")
        for number, client in enumerate(clients):
            assert await received(client) == f"I am {number}"
        async with asyncio.TaskGroup() as leaving:
            for client in clients:
                leaving.create_task(client.close())
    assert stage.outcomes() == {"tunnelled": CLIENTS}
