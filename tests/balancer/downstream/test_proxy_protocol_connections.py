"""PROXY protocol on accepted connections: the client's address, allowed peers, TLS, timeout."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from balancer.downstream.proxy_protocol import SIGNATURE
from tests.support.certificates import Shelf
from tests.support.stage import Stage
from tests.support.wire import get, response

LOOPBACK = ["127.0.0.0/8"]
LINE = b"PROXY TCP4 203.0.113.7 198.51.100.1 56324 443\r\n"
BLOCK = SIGNATURE + b"\x21\x11\x00\x0c" + bytes((203, 0, 113, 7, 198, 51, 100, 1)) + b"\xdc\x04\x01\xbb"
LOCAL = SIGNATURE + b"\x20\x00\x00\x00"
STATUS = b"GET /-/status HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.mark.parametrize("header", [LINE, BLOCK])
async def test_client_address_from_the_header(stage: Stage, header: bytes) -> None:
    """In forwarding fields and for trust, also when the header comes in one read with the request."""
    worker = await stage.serve_worker(response(b"hello"), proxy_protocol=LOOPBACK, trusted_proxies=LOOPBACK)
    client = await stage.client()
    forwarded = b"X-Forwarded-For: 192.0.2.1"
    assert (await client.ask(header + get(b"/", forwarded))).body == b"hello"
    assert (await client.ask(get())).body == b"hello"
    assert [request.value(b"X-Forwarded-For") for request in worker.requests] == [b"203.0.113.7"] * 2


async def test_loopback_address_in_the_header_gives_no_admin_access(stage: Stage) -> None:
    """Neither a loopback address in the header nor that of the proxy."""
    await stage.serve(await stage.worker(response()), proxy_protocol=LOOPBACK)
    for header in (b"PROXY TCP4 127.0.0.1 127.0.0.1 56324 80\r\n", LINE, LOCAL):
        client = await stage.client()
        assert (await client.ask(header + STATUS)).status == 404


async def test_trust_applies_to_the_address_in_the_header(stage: Stage) -> None:
    """`trusted_proxies` is compared with the address in the header."""
    worker = await stage.worker(response())
    await stage.serve(worker, proxy_protocol=LOOPBACK, trusted_proxies=["203.0.113.0/24"])
    await stage.ask(LINE + get(b"/", b"X-Forwarded-For: 192.0.2.1"))
    assert worker.requests[0].value(b"X-Forwarded-For") == b"192.0.2.1, 203.0.113.7"


@pytest.mark.parametrize("header", [b"PROXY UNKNOWN\r\n", LOCAL])
async def test_header_without_an_address(stage: Stage, header: bytes) -> None:
    worker = await stage.serve_worker(response(), proxy_protocol=LOOPBACK)
    assert (await stage.ask(header + get())).status == 200
    assert worker.requests[0].value(b"X-Forwarded-For") == b"127.0.0.1"


@pytest.mark.parametrize("header", [LINE, BLOCK])
async def test_header_byte_by_byte(stage: Stage, header: bytes) -> None:
    await stage.serve(await stage.worker(response(b"hello")), proxy_protocol=LOOPBACK)
    client = await stage.client()
    for byte in header + get():
        await client.send(bytes((byte,)))
        await stage.turn(2)
    assert (await client.response()).body == b"hello"


@pytest.mark.parametrize("header", [LINE, BLOCK])
async def test_header_before_tls(stage: Stage, tmp_path: Path, header: bytes) -> None:
    """The header precedes the handshake; a connection without it is refused."""
    shelf = Shelf(tmp_path)
    worker = await stage.worker(response(b"hello"))
    await stage.serve(worker, proxy_protocol=LOOPBACK, tls=shelf.pair("a.example.org"))
    client = await stage.client(tls=shelf.client(), name="a.example.org", first=header)
    assert (await client.ask(get())).body == b"hello"
    request = worker.requests[0]
    assert request.value(b"X-Forwarded-For") == b"203.0.113.7"
    assert request.value(b"X-Forwarded-Proto") == b"https"
    with pytest.raises((ssl.SSLError, ConnectionError)):
        await stage.client(tls=shelf.client(), name="a.example.org")


@pytest.mark.parametrize("first", [get(), b"\x16\x03\x01\x00", b"PROXY TCP4 a b c d\r\n"])
async def test_missing_header_closes_the_connection(stage: Stage, first: bytes) -> None:
    """The connection closes without a response, and nothing is forwarded."""
    worker = await stage.serve_worker(response(), proxy_protocol=LOOPBACK)
    client = await stage.client()
    client.write(first)
    await client.closed()
    assert (bytes(client.received), worker.connections) == (b"", [])
    assert stage.cluster.process.counts.failed_arrivals == 1


async def test_header_from_an_unlisted_peer(stage: Stage) -> None:
    """From a peer that is not listed the header is a malformed request."""
    await stage.serve(await stage.worker(response()), proxy_protocol=["10.0.0.0/8"])
    assert (await stage.ask(LINE + get())).status == 400
    assert (await stage.ask(get())).status == 200


async def test_header_timeout(stage: Stage) -> None:
    """The head timeout, however slowly the header arrives."""
    await stage.serve(await stage.worker(response()), proxy_protocol=LOOPBACK, timeouts={"head": 5})
    client = await stage.sending(b"PROXY TCP4 ")
    arrivals = stage.running.arrivals
    await stage.eventually(lambda: len(arrivals))
    stage.advance(4)
    await client.send(b"203.0.113.7 ")
    await stage.turn()
    stage.advance(1.1)
    await client.closed()
    assert (len(arrivals), stage.cluster.process.counts.failed_arrivals) == (0, 1)


async def test_peer_closes_before_its_header(stage: Stage) -> None:
    """As health checks do that only connect."""
    await stage.serve(await stage.worker(response()), proxy_protocol=LOOPBACK)
    client = await stage.sending(b"PROXY")
    client.half_close()
    await client.closed()
    await stage.eventually(lambda: stage.cluster.process.counts.failed_arrivals == 1)
