"""Field names that CGI or WSGI workers take for others, and the canonical Content-Length and Transfer-Encoding."""

from __future__ import annotations

import re
from typing import Any

import pytest

from balancer.http.h1.chunks import passing_trailers
from balancer.http.h1.client import Client
from balancer.http.h1.internal_fields import InternalFields
from tests.support.outgoing import outgoing_request
from tests.support.scripted_transports import (
    TRANSPORTS,
    Play,
    echo,
    over,
    serve_over,
    values,
)
from tests.support.stage import Stage
from tests.support.wire import ScriptedWorker, Wire, get, playing, response
from tests.support.wireless import CLIENTS, Wireless, sends

ADDED = (b"X-Forwarded-For", b"X-Forwarded-Proto", b"X-Forwarded-Host", b"X-Request-ID")
REMOVED = (*ADDED, b"X-Real-IP", b"X-Request-Start", b"X-Forwarded-Port", b"Keep-Alive", b"Proxy-Connection")

CHUNKS = b"5\r\nhello\r\n0\r\n\r\n"
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"


def spellings(name: bytes) -> list[bytes]:
    """Variants with an underscore for one or all hyphens, and with every other sign that a name may contain."""
    words = name.split(b"-")
    some = [b"-".join(words[:at]) + b"_" + b"-".join(words[at:]) for at in range(1, len(words))]
    signs = [bytes((sign,)).join(words) for sign in b"!#$%&'*+.^`|~"]
    return [*some, b"_".join(words), b"_".join(words).lower(), b"_".join(words).upper(), *signs]


def at_worker(*lines: bytes, body: bytes = b"", is_trusted: bool = False) -> bytes:
    """What the worker receives of a request with these fields; a second request on the connection must pass, too."""
    options: dict[str, Any] = {"trusted_proxies": frozenset((CLIENTS,))} if is_trusted else {}
    with Wireless(headers=(("internal", ("x-shard", "Steel-*")),), **options) as stage:
        client = stage.client()
        client.send(
            b"POST / HTTP/1.1\r\nHost: a\r\n" + b"".join(line + b"\r\n" for line in lines) + b"\r\n" + body
        )
        stage.turn()
        assert len(stage.workers) == 1, bytes(client.received)
        worker = stage.workers[0]
        received = bytes(worker.received)
        sends(stage, worker, OK)
        sends(stage, client, get(b"/next"))
        assert worker.received[len(received) :].startswith(b"GET /next HTTP/1.1\r\n")
        stage.leave()
    return received


def names_at(received: bytes) -> list[bytes]:
    """Names as CGI converts them."""
    lines = received.partition(b"\r\n\r\n")[0].split(b"\r\n")[1:]
    return [re.sub(rb"[^a-z0-9]", b"_", line.partition(b":")[0].lower()) for line in lines]


# --- names


@pytest.mark.parametrize("name", REMOVED, ids=bytes.decode)
@pytest.mark.parametrize("is_trusted", [False, True], ids=["untrusted", "proxy"])
def test_field_under_a_variant_name_is_removed(name: bytes, is_trusted: bool) -> None:
    """From any client: a field that the balancer writes arrives once, one that it removes does not arrive."""
    for spelling in spellings(name):
        received = at_worker(b"X-A: 1", spelling + b": 192.0.2.66", b"X_B: 2", is_trusted=is_trusted)
        assert b"192.0.2.66" not in received
        assert names_at(received).count(name.lower().replace(b"-", b"_")) == (name in ADDED)
        assert b"\r\nX-A: 1\r\nX_B: 2\r\n" in received


def test_exact_name_beside_a_variant_is_used() -> None:
    """A trusted proxy's field is used under its exact name only; its other fields may have signs in their names."""
    lines = (
        b"X-Forwarded-For: 198.51.100.7",
        b"X_Forwarded_For: 192.0.2.66",
        b"X-Forwarded-Some_Thing: 1",
        b"X-Real-IP: 198.51.100.8",
        b"X_Real_IP: 192.0.2.66",
    )
    received = at_worker(*lines, is_trusted=True)
    assert b"\r\nX-Forwarded-For: 198.51.100.7, 192.0.2.7\r\n" in received
    assert b"\r\nX-Forwarded-Some_Thing: 1\r\nX-Real-IP: 198.51.100.8\r\n" in received
    assert b"192.0.2.66" not in received


@pytest.mark.parametrize(
    "name", [b"X_Shard", b"x.shard", b"Steel-Key", b"STEEL_Key", b"steel_a_b", b"X-Shard"]
)
@pytest.mark.parametrize("is_trusted", [False, True], ids=["untrusted", "proxy"])
def test_internal_field_under_a_variant_name_is_removed(name: bytes, is_trusted: bool) -> None:
    received = at_worker(name + b": forged", b"X_Shards: 1", is_trusted=is_trusted)
    assert b"forged" not in received
    assert b"\r\nX_Shards: 1\r\n" in received


def test_internal_name_with_an_underscore() -> None:
    """In requests it covers the name with a hyphen; in responses names are compared as they are."""
    internal = InternalFields(["X_Old", "x_mesh_*"])
    client = Client(b"192.0.2.7", b"a", internal=internal)
    lines = b"Host: a\r\nX-Old: 1\r\nX_Old: 2\r\nX-Mesh-Id: 3\r\nx_mesh_id: 4\r\nX-Olds: 5\r\n"
    head = outgoing_request(b"GET / HTTP/1.1\r\n%b\r\n" % lines, client, b"id").head
    assert head.startswith(b"GET / HTTP/1.1\r\nHost: a\r\nX-Olds: 5\r\nX-Forwarded-For: ")
    assert internal.without(b"\r\nX_Old: 1\r\nX-Old: 2\r\n") == b"\r\nX-Old: 2\r\n"


def test_trailer_under_a_variant_name_is_removed() -> None:
    block = b"\r\nX_Forwarded_For: 1\r\nA_B: 2\r\ncontent_length: 3\r\nIf_Match: 4\r\nX-Request_ID: 5\r\n"
    assert passing_trailers(block) == b"\r\nA_B: 2\r\n"


# --- framing fields


@pytest.mark.parametrize(
    "name", [b"Content_Length", b"content.LENGTH", b"Transfer_Encoding", b"TRANSFER~ENCODING"]
)
@pytest.mark.parametrize("other", [(), (b"Content-Length: 5",), (b"Transfer-Encoding: chunked",)], ids=str)
@pytest.mark.parametrize("is_trusted", [False, True], ids=["untrusted", "proxy"])
def test_framing_field_under_a_variant_name_is_rejected(
    name: bytes, other: tuple[bytes, ...], is_trusted: bool
) -> None:
    """A proxy or worker that honours it would find another end of the message."""
    options: dict[str, Any] = {"trusted_proxies": frozenset((CLIENTS,))} if is_trusted else {}
    with Wireless(**options) as stage:
        client = stage.client()
        lines = b"".join(line + b"\r\n" for line in (*other, name + b": 0"))
        sends(stage, client, b"POST / HTTP/1.1\r\nHost: a\r\n%b\r\n%b" % (lines, get(b"/smuggled")))
        assert client.received.startswith(b"HTTP/1.1 400 Bad Request\r\n")
        assert b'"bad_framing"' in client.received
        assert client.received.count(b"HTTP/1.1") == 1
        assert stage.workers == []
        stage.leave()


CODINGS = (
    *(b"Transfer-Encoding:\tchunked", b"Transfer-Encoding: chunked\t", b"Transfer-Encoding: chunked \t "),
    *(b"transfer-encoding:CHUNKED", b"TRANSFER-ENCODING:  \t Chunked "),
)
"""llhttp refuses a tab behind the value, and a worker may too."""

LENGTHS = (b"Content-Length:\t5", b"Content-Length: 05", b"Content-Length:5  ", b"Content-Length: \t000005 ")


@pytest.mark.parametrize("line", [*CODINGS, *LENGTHS])
def test_framing_is_forwarded_in_canonical_form(line: bytes) -> None:
    """In place; the fields around it stay."""
    plain, body = (
        (b"Transfer-Encoding: chunked", CHUNKS) if line in CODINGS else (b"Content-Length: 5", b"hello")
    )
    received = at_worker(b"X-A: 1", line, b"X-B: " + plain, body=body)
    assert b"\r\nX-A: 1\r\n%b\r\nX-B: %b\r\nX-For" % (plain, plain) in received
    assert names_at(received).count(plain.partition(b":")[0].lower().replace(b"-", b"_")) == 1
    assert received.endswith(body)


@pytest.mark.parametrize("line", [b"Content-Length: 5", b"content-length: 5", b"CONTENT-LENGTH: 5"])
def test_plain_content_length_is_forwarded_unchanged(line: bytes) -> None:
    """With the case of its name."""
    assert b"\r\n%b\r\n" % line in at_worker(line, body=b"hello")


@pytest.mark.parametrize("line", [CODINGS[-1], LENGTHS[-1]])
@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_request_framing_on_each_transport(stage: Stage, transport: str, line: bytes) -> None:
    """The body arrives and its length is stated once, in canonical form. HTTP/2 has no Transfer-Encoding."""
    plays: list[Play] = []
    worker = over(transport, echo, plays)
    await serve_over(stage, worker, transport)
    is_chunked = line in CODINGS
    answer = await stage.ask(get(b"/", line, method=b"POST") + (CHUNKS if is_chunked else b"hello"))
    assert (answer.status, answer.body) == (200, b"hello")
    lengths, codings = (values(plays[0].fields, name) for name in (b"content-length", b"transfer-encoding"))
    assert lengths == ([] if is_chunked else [b"5"])
    assert codings == ([b"chunked"] if is_chunked and transport != "http2" else [])
    if is_chunked and transport != "http2":
        assert worker.received.count(b"\r\nTransfer-Encoding: chunked\r\n") == 1


@pytest.mark.parametrize("line", [CODINGS[-1], LENGTHS[-1]])
@pytest.mark.parametrize("transport", [each for each in TRANSPORTS if each != "http2"])
async def test_response_framing_on_each_transport(stage: Stage, transport: str, line: bytes) -> None:
    is_chunked = line in CODINGS
    script = playing(
        Wire.request,
        b"HTTP/1.1 200 OK\r\nX-A: 1\r\n%b\r\n\r\n%b" % (line, CHUNKS if is_chunked else b"hello"),
    )
    await serve_over(stage, ScriptedWorker(script), transport)
    client = await stage.client()
    answer = await client.ask(get())
    assert (answer.status, answer.body) == (200, b"hello")
    head = client.received.partition(b"\r\n\r\n")[0] + b"\r\n"
    plain = b"\r\nTransfer-Encoding: chunked\r\n" if is_chunked else b"\r\nContent-Length: 5\r\n"
    assert head.count(plain) == 1
    assert head.lower().count(b"content-length") + head.lower().count(b"transfer-encoding") == 1


async def test_response_framing_to_head(stage: Stage) -> None:
    await stage.serve(await stage.worker(response().replace(b"Content-Length: 2", b"Content-Length:\t002")))
    client = await stage.client()
    assert (await client.ask(get(method=b"HEAD"), to_head=True)).status == 200
    assert b"\r\nContent-Length: 2\r\n" in client.received
