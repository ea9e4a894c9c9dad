"""Requests in HTTP/2 that would be other requests, or two, in HTTP/1.1: none reaches a worker."""

from __future__ import annotations

import struct

import pytest

from balancer.http.h2.events import PROTOCOL_ERROR
from tests.support import frames
from tests.support.frames import END_HEADERS, END_STREAM, block, frame
from tests.support.http2_client import Fields, fields, http2_client, raw_client
from tests.support.stage import Stage
from tests.support.wire import response

POST = fields(method=b"POST")


def without(name: bytes) -> Fields:
    return tuple(pair for pair in fields() if pair[0] != name)


def changed(name: bytes, value: bytes, *others: tuple[bytes, bytes]) -> Fields:
    return (*((key, value if key == name else old) for key, old in fields()), *others)


RESET = {
    "upper-case": fields(b"/", (b"X-Case", b"1")),
    "cr-lf-in-value": fields(b"/", (b"x", b"1\r\nevil: 1")),
    "cr-lf-request-in-value": fields(b"/", (b"x", b"1\r\n\r\nGET /evil HTTP/1.1\r\nHost: a\r\n\r\n")),
    "lf-in-value": fields(b"/", (b"x", b"1\nevil: 1")),
    "nul-in-value": fields(b"/", (b"x", b"1\0")),
    "cr-lf-in-name": fields(b"/", (b"x: 1\r\nevil", b"1")),
    "colon-in-name": fields(b"/", (b"x:y", b"1")),
    "space-in-name": fields(b"/", (b"x y", b"1")),
    "empty-name": fields(b"/", (b"", b"1")),
    "transfer-encoding": (*POST, (b"transfer-encoding", b"chunked")),
    "connection": fields(b"/", (b"connection", b"close")),
    "keep-alive": fields(b"/", (b"keep-alive", b"timeout=5")),
    "proxy-connection": fields(b"/", (b"proxy-connection", b"close")),
    "upgrade": fields(b"/", (b"upgrade", b"h2c")),
    "te-other-than-trailers": fields(b"/", (b"te", b"gzip")),
    "two-lengths": (*POST, (b"content-length", b"0"), (b"content-length", b"5")),
    "length-not-a-number": (*POST, (b"content-length", b"+5")),
    "length-list": (*POST, (b"content-length", b"5, 5")),
    "no-method": without(b":method"),
    "no-scheme": without(b":scheme"),
    "no-path": without(b":path"),
    "empty-path": changed(b":path", b""),
    "path-without-slash": changed(b":path", b"evil"),
    "path-absolute": changed(b":path", b"http://evil/"),
    "path-asterisk": changed(b":path", b"*"),
    "path-with-cr-lf": changed(b":path", b"/ HTTP/1.1\r\nHost: evil\r\n\r\nGET /"),
    "method-with-space": changed(b":method", b"GET /evil HTTP/1.1\r\nx: GET"),
    "empty-method": changed(b":method", b""),
    "authority-with-cr-lf": changed(b":authority", b"a\r\nevil: 1"),
    "two-paths": (*fields(), (b":path", b"/evil")),
    "two-methods": ((b":method", b"POST"), *fields()),
    "two-authorities": ((b":authority", b"evil"), *fields()),
    "pseudo-after-others": ((b"x", b"1"), *fields()),
    "unknown-pseudo": ((b":evil", b"1"), *fields()),
    "status": ((b":status", b"200"), *fields()),
    "protocol-without-connect": ((b":protocol", b"websocket"), *fields()),
    "connect-with-path": changed(b":method", b"CONNECT"),
    "path-with-space": changed(b":path", b"/ HTTP/1.1"),
    "path-with-tab": changed(b":path", b"/\tHTTP/1.1"),
    "two-hosts": (*without(b":authority"), (b"host", b"a"), (b"host", b"b")),
    "neither-host-nor-authority": without(b":authority"),
    "userinfo": changed(b":authority", b"user@example.org"),
    "scheme-is-a-url": changed(b":scheme", b"http://evil/?"),
    "length-but-no-body": fields(b"/", (b"content-length", b"5")),
}
"""What the engine refuses: RST_STREAM with PROTOCOL_ERROR (RFC 9113 § 8.1.1)."""

REFUSED = {
    "host-and-authority": (fields(b"/", (b"host", b"evil")), 400),
    "scheme-unknown": (changed(b":scheme", b"ftp"), 400),
    "method-lower-case": (changed(b":method", b"get"), 400),
    "fragment": (changed(b":path", b"/#evil"), 400),
    "bytes-beyond-ascii": (changed(b":path", b"/\xc3\xa9"), 400),
    "underscores": ((*POST, (b"content_length", b"0")), 400),
    "connect": (((b":method", b"CONNECT"), (b":authority", b"a:80")), 405),
    "trace": (changed(b":method", b"TRACE"), 405),
    "expectation": (fields(b"/", (b"expect", b"200-ok")), 417),
    "many-fields": (fields(b"/", *((b"x-%d" % number, b"1") for number in range(101))), 431),
    "long-target": (changed(b":path", b"/" + b"x" * 9000), 414),
    "large-head": (fields(b"/", *((b"x-%d" % number, b"1" * 8000) for number in range(5))), 431),
    "protocol-unknown": (((b":method", b"CONNECT"), (b":protocol", b"connect-udp"), *fields()[1:]), 501),
}
"""What is refused with a status."""


def message(stream: int, given: Fields) -> bytes:
    """Frames of a head without a body, in HEADERS and CONTINUATION."""
    text = block(*given)
    pieces = [text[at : at + 16_384] for at in range(0, len(text), 16_384)]
    out = b""
    for number, piece in enumerate(pieces):
        kind = frames.CONTINUATION if number else frames.HEADERS
        flags = (0 if number else END_STREAM) | (END_HEADERS if number == len(pieces) - 1 else 0)
        out += frame(kind, piece, stream, flags)
    return out


@pytest.mark.parametrize("name", RESET)
async def test_malformed_request_resets_its_stream(stage: Stage, name: str) -> None:
    worker = await stage.serve_worker(response())
    client = await raw_client(stage)
    await client.send(message(1, RESET[name]))
    _, payload = await client.until(frames.RST_STREAM, 1)
    assert struct.unpack("!I", payload) == (PROTOCOL_ERROR,)
    await client.send(message(3, fields()))
    await client.until(frames.DATA, 3)
    assert [request.line for request in worker.requests] == [b"GET / HTTP/1.1"]
    assert b"evil" not in worker.received


@pytest.mark.parametrize("name", REFUSED)
async def test_request_that_http11_refuses(stage: Stage, name: str) -> None:
    worker = await stage.serve_worker(response())
    given, status = REFUSED[name]
    raw = await raw_client(stage)
    await raw.send(message(1, given))
    await raw.until(frames.DATA, 1)
    await raw.send(message(3, fields()))
    await raw.until(frames.DATA, 3)
    assert [request.line for request in worker.requests] == [b"GET / HTTP/1.1"]
    assert b"evil" not in worker.received
    assert stage.cluster.counts.responses[status] == 1


@pytest.mark.parametrize(("length", "body"), [(3, b"abcd"), (5, b"abcd"), (0, b"abcd")])
async def test_length_that_the_body_does_not_have(stage: Stage, length: int, body: bytes) -> None:
    """RFC 9113 § 8.1.1. The worker does not get a whole request."""
    worker = await stage.serve_worker(response())
    client = await raw_client(stage)
    await client.send(
        frame(frames.HEADERS, block(*POST, (b"content-length", b"%d" % length)), 1, END_HEADERS)
        + frame(frames.DATA, body, 1, END_STREAM)
    )
    _, payload = await client.until(frames.RST_STREAM, 1)
    assert struct.unpack("!I", payload) == (PROTOCOL_ERROR,)
    await stage.eventually(lambda: not stage.state().in_flight)
    assert not worker.requests


async def test_host_equal_to_authority_and_host_alone(stage: Stage) -> None:
    worker = await stage.serve_worker(response())
    client = await http2_client(stage)
    assert (await client.ask((b"host", b"example.org"))).status == 200
    stream = client.begin((*without(b":authority"), (b"host", b"a.example")), is_last=True)
    assert (await client.answer(stream)).status == 200
    assert [request.values(b"Host") for request in worker.requests] == [[b"example.org"], [b"a.example"]]
