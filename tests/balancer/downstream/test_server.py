"""Descriptor limits, error responses, the listening socket, the sweep, client limit, balance between processes."""

from __future__ import annotations

import gc
import json

import pytest

from balancer.downstream.acceptor import ConnectionBalance
from balancer.downstream.descriptor_limit import (
    MOST_CLIENTS,
    DescriptorLimit,
    allowance,
    descriptor_limit,
    descriptors_in_use,
)
from balancer.downstream.listening_sockets import bind
from balancer.errors import ListenFailed, QueueFull, RequestRejected
from balancer.http.h1.own_responses import ErrorAnswer
from balancer.sharing.shared_counters import SharedCounters
from tests.support.stage import Stage
from tests.support.wire import get, response


@pytest.mark.parametrize(
    ("limit", "in_use", "expected"),
    [
        (256, 20, DescriptorLimit(110, 110)),
        (64, 12, DescriptorLimit(18, 18)),
        (20, 30, DescriptorLimit(1, 1)),
        (1 << 20, 0, DescriptorLimit(MOST_CLIENTS, (1 << 19) - 8)),
    ],
)
def test_descriptor_limit_is_divided(limit: int, in_use: int, expected: DescriptorLimit) -> None:
    """Half each for clients and workers of what the reserve leaves, and at least one."""
    assert allowance(limit, in_use) == expected


def test_descriptors_in_use_are_counted() -> None:
    gc.collect()  # sockets dropped by earlier tests would otherwise be closed during this one
    before = descriptors_in_use()
    with open("/dev/null"):
        assert descriptors_in_use() == before + 1
    assert before < descriptor_limit()


def test_error_response_as_bytes() -> None:
    """JSON with code, detail and request id; no body for HEAD; `Connection: close` where the connection ends."""
    answer = ErrorAnswer(QueueFull("all full"), b"id\xe9", stays=True).response(None)
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.split(b"\r\n") == [
        b"HTTP/1.1 503 Service Unavailable",
        b"Content-Type: application/json",
        b"Content-Length: %d" % len(body),
        b"Retry-After: 1",
    ]
    assert json.loads(body) == {"error": "queue_full", "detail": "all full", "request_id": "idé"}
    answer = ErrorAnswer(RequestRejected(400, "bad_host", "one Host"), is_head=True).response(None)
    assert answer.startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert answer.endswith(b"\r\nConnection: close\r\n\r\n")


@pytest.mark.parametrize(("host", "port"), [("256.0.0.1", 0), ("192.0.2.1", 0)])
def test_bind_to_foreign_address_names_it(host: str, port: int) -> None:
    with pytest.raises(ListenFailed, match=f"listen: cannot use {host}:{port}: "):
        bind(host, port)


async def test_server_sweeps_periodically(stage: Stage) -> None:
    await stage.serve(await stage.worker(response()))
    stage.clock.at += 5
    await stage.eventually(lambda: stage.cluster.process.cached_time == stage.clock.at)
    for _ in range(4):
        stage.advance(0.25)


@pytest.mark.parametrize(("has_asked", "seconds"), [(True, 2.0), (False, 3.5)])
async def test_idle_client_makes_way_at_the_client_limit(
    stage: Stage, has_asked: bool, seconds: float
) -> None:
    """An idle connection is closed after a second when another client waits for its place; one that has sent nothing
    yet, after three."""
    server = await stage.serve(await stage.worker(response()), limits={"clients": 1})
    first = await stage.client()
    if has_asked:
        assert (await first.ask(get())).status == 200
    second = await stage.sending(get())
    await stage.turn()
    assert not second.received
    stage.clock.at += seconds  # the server's own sweep closes the idle connection
    assert (await second.response()).status == 200
    assert await first.rest() == b""
    assert server.cluster.process.counts.connections == 2


async def test_client_that_has_not_begun_has_longer(stage: Stage) -> None:
    """Its first segment may have been lost twice, as one of a head that is not whole: three seconds."""
    await stage.serve(await stage.worker(response()), limits={"clients": 1})
    first = await stage.client()
    second = await stage.sending(get())
    await stage.turn()
    stage.clock.at += 2.5
    await stage.eventually(lambda: stage.cluster.process.cached_time == stage.clock.at)
    assert (await first.ask(get())).status == 200
    stage.clock.at += 2
    assert (await second.response()).status == 200


async def test_trusted_proxy_matches_mapped_address(stage: Stage) -> None:
    """A dual-stack socket shows IPv4 peers as ::ffff:a.b.c.d (RFC 4291 § 2.5.5.2)."""
    await stage.serve(await stage.worker(response()), trusted_proxies=["10.0.0.0/8"])
    trusts = stage.cluster.trusts
    assert trusts("10.1.2.3")
    assert trusts("::ffff:10.1.2.3")
    assert not trusts("::ffff:11.1.2.3")
    assert not trusts("fe80::1%eth0")


# --- processes that accept from one listening socket


def processes(*clients: int | None) -> list[ConnectionBalance]:
    """Processes with these numbers of clients; None: the process does not accept."""
    counters = SharedCounters(len(clients), 4)
    each = [ConnectionBalance(counters, index) for index in range(len(clients))]
    for one, number in zip(each, clients, strict=True):
        if number is not None:
            one.note(number)
    return each


@pytest.mark.parametrize(
    ("clients", "other", "is_ahead"),
    [(0, 0, False), (4, 0, False), (5, 0, True), (100, 93, False), (100, 92, True), (2000, 1934, False)],
)
def test_tolerated_difference(clients: int, other: int, is_ahead: bool) -> None:
    """The tolerated difference grows with the number of clients."""
    assert processes(clients, other)[0].is_ahead(clients) == is_ahead


def test_process_that_does_not_accept_is_ignored() -> None:
    """A process that has not accepting, or has stopped."""
    accepting, silent = processes(50, None)
    assert not accepting.is_ahead(50)
    silent.note(0)
    assert accepting.is_ahead(50)
    silent.leave()
    assert not accepting.is_ahead(50)


def test_killed_process_is_ignored() -> None:
    counters = SharedCounters(2, 4)
    one, other = ConnectionBalance(counters, 0), ConnectionBalance(counters, 1)
    other.note(0)
    assert one.is_ahead(50)
    counters.pages[1].clear()
    assert not one.is_ahead(50)


def test_ahead_of_any_process() -> None:
    assert processes(50, 60, 10)[0].is_ahead(50)
    assert not processes(50, 60, 50)[0].is_ahead(50)
