"""Hostile TLS clients: server names (SNI) and ClientHello messages that no ordinary client sends."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from tests.support.certificates import Shelf
from tests.support.peers import output_of
from tests.support.programs import starting, workers
from tests.support.stage import Stage
from tests.support.wire import get, response


def sized_by(width: int, data: bytes) -> bytes:
    """`data` after its length in `width` bytes."""
    return len(data).to_bytes(width, "big") + data


def extension(kind: int, data: bytes) -> bytes:
    return kind.to_bytes(2, "big") + sized_by(2, data)


def server_name(name: bytes) -> bytes:
    """A list of one name (RFC 6066 § 3)."""
    return sized_by(2, b"\0" + sized_by(2, name))


PLACE = b"name-to-replace.example.org"
NOT_ASCII = {
    "latin-1": b"b\xfccher.example.org",
    "utf-8": "bücher.example.org".encode(),
    "surrogate": b"\xed\xa0\x80.example.org",
    "after an A-label": b"xn--bcher-kva.\xff",
    "only bytes 0xff": b"\xff" * 255,
}
ODD = {"upper case": b"SECOND.Example.ORG", "a trailing dot": b"second.example.org."}
UNKNOWN = {
    "empty": b"",
    "only dots": b"...",
    "IPv4": b"127.0.0.1",
    "IPv6": b"[::1]",
    "terminal escapes": b"\x1b[31m\r\n",
    "a path": b"../../second.example.org",
}
DECODE_ERROR, ILLEGAL_PARAMETER, UNRECOGNIZED_NAME = 50, 47, 112
REFUSED = {
    "a NUL": (server_name(b"second.example.org\0.example.net"), UNRECOGNIZED_NAME),
    "too long": (server_name(b"a" * 256), UNRECOGNIZED_NAME),
    "empty": (b"", DECODE_ERROR),
    "an empty list": (b"\0\0", DECODE_ERROR),
    "two names": (sized_by(2, (b"\0" + sized_by(2, b"a")) * 2), DECODE_ERROR),
    "a list longer than the extension": (b"\xff\xff" + server_name(b"a")[2:], DECODE_ERROR),
    "another type": (sized_by(2, b"\x07" + sized_by(2, b"a")), DECODE_ERROR),
}
"""Content of the server_name extension, and the alert that it gets."""


def hello(shelf: Shelf, name: bytes, padding: int = 0) -> bytes:
    """The handshake message ClientHello of a client of the server `name`."""
    return hello_with(shelf, server_name(name), padding)


def hello_with(shelf: Shelf, names: bytes, padding: int = 0) -> bytes:
    """As `hello`, with `names` as content of the server_name extension and `padding` bytes in an unknown one."""
    context = shelf.client()
    context.maximum_version = ssl.TLSVersion.TLSv1_2  # its ServerHello and certificate come as plain text
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context.wrap_bio(incoming, outgoing, server_hostname=PLACE.decode())
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    record = outgoing.read()
    message = record[9:]
    at = 2 + 32  # version and random; then session id, cipher suites, compression methods
    at += 1 + message[at]
    at += 2 + int.from_bytes(message[at : at + 2], "big")
    at += 1 + message[at]
    extensions = message[at + 2 :].replace(extension(0, server_name(PLACE)), extension(0, names))
    if padding:
        extensions += extension(0x7A7A, bytes(padding))
    return b"\x01" + sized_by(3, message[:at] + sized_by(2, extensions))


def records(message: bytes, size: int = 16_384) -> bytes:
    """A handshake message in records of at most `size` bytes."""
    pieces = [message[at : at + size] for at in range(0, len(message), size)]
    return b"".join(b"\x16\x03\x01" + sized_by(2, piece) for piece in pieces)


async def serve_two(stage: Stage, shelf: Shelf) -> tuple[bytes, bytes]:
    """A server with two certificates; returns them in DER."""
    pairs = [shelf.pair("first.example.org"), shelf.pair("second.example.org")]
    await stage.serve(await stage.worker(response(b"hello")), tls={"certificates": pairs})
    first, second = (der(pair) for pair in pairs)
    return first, second


def der(pair: dict[str, str]) -> bytes:
    """The first certificate of a file."""
    end = "-----END CERTIFICATE-----"
    text = Path(pair["certificate"]).read_text()
    return ssl.PEM_cert_to_DER_cert(text[: text.index(end) + len(end)])


async def answer_to(stage: Stage, data: bytes, expected: bytes) -> None:
    """Send `data`, read until `expected` has arrived, and close."""
    client = await stage.sending(data)
    while expected not in client.received:
        assert await client.some(), bytes(client.received)
    await client.close()


# --- server names


@pytest.mark.parametrize("name", [*NOT_ASCII, *UNKNOWN])
async def test_strange_name_gets_the_first_certificate(stage: Stage, shelf: Shelf, name: str) -> None:
    """It gets the first certificate; no error is raised where only the interpreter could report it."""
    first, _ = await serve_two(stage, shelf)
    await answer_to(stage, records(hello(shelf, (NOT_ASCII | UNKNOWN)[name])), first)


@pytest.mark.parametrize("name", NOT_ASCII)
async def test_strange_name_with_a_single_certificate(stage: Stage, shelf: Shelf, name: str) -> None:
    """With one certificate no name is looked at; the result is the same as with several."""
    pair = shelf.pair("first.example.org")
    await stage.serve(await stage.worker(response()), tls=pair)
    await answer_to(stage, records(hello(shelf, NOT_ASCII[name])), der(pair))


@pytest.mark.parametrize("name", ODD)
async def test_name_in_upper_case_or_with_trailing_dot(stage: Stage, shelf: Shelf, name: str) -> None:
    _, second = await serve_two(stage, shelf)
    await answer_to(stage, records(hello(shelf, ODD[name])), second)


async def test_hello_in_single_bytes(stage: Stage, shelf: Shelf) -> None:
    """The handshake begins again with everything that has come."""
    first, _ = await serve_two(stage, shelf)
    client = await stage.client()
    for byte in records(hello(shelf, NOT_ASCII["utf-8"])):
        await client.send(bytes((byte,)))
        await stage.turn()
    while first not in client.received:
        assert await client.some(), bytes(client.received)


@pytest.mark.peer
@pytest.mark.parametrize("version", ["-tls1_2", "-tls1_3"])
async def test_full_handshake_with_a_strange_name(stage: Stage, shelf: Shelf, version: str) -> None:
    """A client with such a name is served: the handshake that begins again has the same transcript for both."""
    await serve_two(stage, shelf)
    name = NOT_ASCII["latin-1"].decode(errors="surrogateescape")
    printed = await output_of(
        "openssl",
        *("s_client", "-connect", str(stage.running.address), "-CAfile", str(shelf.ca), "-quiet", version),
        *("-servername", name),
        data=get(b"/", b"Connection: close"),
    )
    assert printed.endswith(b"hello")
    assert stage.cluster.process.counts.failed_arrivals == 0


async def test_strange_names_log_nothing(stage: Stage, shelf: Shelf, tmp_path: Path) -> None:
    """With several processes every handshake looks at the name, also for a single certificate."""
    pair = shelf.pair("first.example.org")
    config = tmp_path / "balancer.toml"
    config.write_text(f'[tls]\ncertificate = "{pair["certificate"]}"\nkey = "{pair["key"]}"\n')
    worker = await stage.worker(response())
    async with starting("--processes", "2", "--config", str(config)) as start:
        program = await start(*workers(worker))
        for name in NOT_ASCII.values():
            client = await program.client()
            await client.send(records(hello(shelf, name)))
            while der(pair) not in client.received:
                assert await client.some()
            await client.close()
        program.signal(15)
        assert await program.ended() == 0
        assert [line for line in await program.rest() if "stopp" not in line] == []


# --- ClientHello messages


@pytest.mark.parametrize("size", [1, 16_384])
async def test_large_hello(stage: Stage, shelf: Shelf, size: int) -> None:
    """60 KB of extensions in one piece, or each byte in a record of its own."""
    first, _ = await serve_two(stage, shelf)
    await answer_to(stage, records(hello(shelf, NOT_ASCII["utf-8"], padding=60_000), size), first)


async def test_hello_with_excessive_length_is_refused(stage: Stage, shelf: Shelf) -> None:
    """Refused by its length, before it has come."""
    await serve_two(stage, shelf)
    await answer_to(stage, records(b"\x01\xff\xff\xff" + bytes(100)), bytes((2, ILLEGAL_PARAMETER)))
    assert stage.cluster.process.counts.failed_arrivals == 1


@pytest.mark.parametrize(("names", "alert"), [*REFUSED.values()], ids=REFUSED)
async def test_refused_name_gets_an_alert(stage: Stage, shelf: Shelf, names: bytes, alert: int) -> None:
    """Unrecognized_name (RFC 6066 § 3) by OpenSSL, or decode_error for a broken list."""
    await serve_two(stage, shelf)
    await answer_to(stage, records(hello_with(shelf, names)), bytes((2, alert)))
    assert stage.cluster.process.counts.failed_arrivals == 1
