"""Small parts on their own: descriptors, answers, the listening socket, the unit, connections."""

from __future__ import annotations

import asyncio
import gc
import json

import pytest

from balancer.downstream.acceptor import bind
from balancer.downstream.descriptor_limit import (
    MOST_CLIENTS,
    DescriptorLimit,
    allowance,
    descriptor_limit,
    descriptors_in_use,
)
from balancer.errors import ListenFailed, QueueFull, RequestRejected
from balancer.http1.own_responses import error_response
from tests.balancer.conftest import Stage, Wire, get, response


@pytest.mark.parametrize(
    ("limit", "in_use", "expected"),
    [
        (256, 20, DescriptorLimit(110, 110)),
        (64, 12, DescriptorLimit(18, 18)),
        (20, 30, DescriptorLimit(1, 1)),
        (1 << 20, 0, DescriptorLimit(MOST_CLIENTS, (1 << 19) - 8)),
    ],
)
def test_descriptors_are_shared_out(limit: int, in_use: int, expected: DescriptorLimit) -> None:
    """Half each to clients and workers of what is left beside the reserve, and one at the least."""
    assert allowance(limit, in_use) == expected


def test_descriptors_of_this_process() -> None:
    """Those in use are fewer than there may be, and an open file is one more."""
    gc.collect()  # sockets that other tests have dropped would be closed at some moment of this one
    before = descriptors_in_use()
    with open("/dev/null"):
        assert descriptors_in_use() == before + 1
    assert before < descriptor_limit()


def test_answers_of_our_own() -> None:
    """A whole response: JSON with the reason, the sentence and the id; no body to HEAD; close where it ends."""
    answer = error_response(QueueFull("all full"), b"id\xe9", stays=True, is_head=False)
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.split(b"\r\n") == [
        b"HTTP/1.1 503 Service Unavailable",
        b"Content-Type: application/json",
        b"Content-Length: %d" % len(body),
        b"Retry-After: 1",
    ]
    assert json.loads(body) == {"error": "queue_full", "detail": "all full", "request_id": "idé"}
    refused = RequestRejected(400, "bad_host", "one Host")
    answer = error_response(refused, b"", stays=False, is_head=True)
    assert answer.startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert answer.endswith(b"\r\nConnection: close\r\n\r\n")


@pytest.mark.parametrize(("host", "port"), [("256.0.0.1", 0), ("192.0.2.1", 0)])
def test_an_address_that_is_not_ours(host: str, port: int) -> None:
    """One line that says which."""
    with pytest.raises(ListenFailed, match=f"listen: cannot use {host}:{port}: "):
        bind(host, port)


def test_a_port_in_use() -> None:
    """It stays whose it is."""
    with bind("127.0.0.1", 0) as sock:
        port = sock.getsockname()[1]
        with pytest.raises(ListenFailed, match=f"127.0.0.1:{port}: Address already in use"):
            bind("127.0.0.1", port)


async def test_the_sweep_comes_by_itself(stage: Stage) -> None:
    """A server looks at its deadlines without being told to, and lets the policy tick."""
    await stage.serve(await stage.worker(response()))
    stage.clock.at += 5
    await stage.eventually(lambda: stage.proxy.cached_time == stage.clock.at)
    for _ in range(4):
        stage.advance(0.25)


async def test_clients_take_turns_when_there_are_more_than_places(stage: Stage) -> None:
    """Six clients, two places: everybody is answered, and connections end so that the next may come."""
    await stage.serve(await stage.worker(response()), limits={"clients": 2})
    clients = [await stage.client() for _ in range(6)]
    answers = [asyncio.ensure_future(client.ask(get())) for client in clients]
    while (await asyncio.wait(answers, timeout=0.1))[1]:
        stage.clock.at += 2  # the server's own sweep does the rest
    assert [answer.result().status for answer in answers] == [200] * 6
    assert len(stage.proxy.downstreams) <= 2


async def test_idle_clients_make_way(stage: Stage) -> None:
    """A kept connection gives its place to a client that waits, once it has been quiet for a second."""
    server = await stage.serve(await stage.worker(response()), limits={"clients": 1})
    first = await stage.client()
    assert (await first.ask(get())).status == 200
    second = await stage.client()
    await second.send(get())
    await stage.turn()
    assert not second.received
    stage.clock.at += 2  # the server's own sweep does the rest
    assert (await second.response()).status == 200
    assert await first.rest() == b""
    assert server.proxy.counts.connections == 2


async def test_draining(stage: Stage) -> None:
    """Idle clients are closed, the request on its way is finished and told to go, nobody new is let in."""
    go = asyncio.Event()

    async def script(wire: Wire) -> None:
        await wire.request()
        await go.wait()
        await wire.send(response(b"last"))

    worker = await stage.worker(script)
    server = await stage.serve(worker)
    idle, busy = await stage.client(), await stage.client()
    await busy.send(get())
    await stage.eventually(lambda: worker.requests and len(stage.proxy.downstreams) == 2)
    address = server.address
    stopping = asyncio.ensure_future(server.stop())
    assert await idle.rest() == b""
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection(address.host, address.port)
    go.set()
    answer = await busy.response()
    assert (answer.body, answer.value(b"Connection")) == (b"last", b"close")
    assert await stopping
    stage.server = None


async def test_the_grace_period_ends(stage: Stage) -> None:
    """What is not finished by then is cut off, and the server says so."""

    async def script(wire: Wire) -> None:
        await wire.closed()

    worker = await stage.worker(script)
    server = await stage.serve(worker, timeouts={"shutdown": 0.01})
    client = await stage.client()
    await client.send(get())
    await stage.eventually(lambda: worker.received)
    assert not await server.stop()
    with pytest.raises(ConnectionResetError):
        await client.rest()
    stage.server = None


async def test_a_trusted_proxy_may_come_by_a_mapped_address(stage: Stage) -> None:
    """A socket that listens for both shows IPv4 peers as ::ffff:a.b.c.d (RFC 4291 § 2.5.5.2)."""
    await stage.serve(await stage.worker(response()), trusted_proxies=["10.0.0.0/8"])
    trusts = stage.proxy.trusts
    assert trusts("10.1.2.3")
    assert trusts("::ffff:10.1.2.3")
    assert not trusts("::ffff:11.1.2.3")
    assert not trusts("fe80::1%eth0")
