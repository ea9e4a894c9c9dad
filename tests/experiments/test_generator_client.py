"""The client of the load generator: which bytes end a response, which break it, and when it may be used again."""

from __future__ import annotations

import asyncio
import gc
import sys
from typing import Any

import pytest

from experiments.generator.client import GeneratorConnection, NotConnected, connect


class Wire(asyncio.Transport):
    """Transport that keeps what was written and whether it was aborted."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[Any] = []
        self.is_aborted = False

    def write(self, data: Any) -> None:
        self.written.append(data)

    def abort(self) -> None:
        self.is_aborted = True


class Heard:
    """Receiver and owner that notes its events."""

    def __init__(self) -> None:
        self.events: list[object] = []

    def answer_started(self, status: int, head: bytes) -> None:
        self.events.append((status, head))

    def answer_ended(self) -> None:
        self.events.append("ended")

    def answer_failed(self) -> None:
        self.events.append("failed")

    def connection_closed(self, connection: GeneratorConnection) -> None:
        self.events.append("closed")


def opened() -> tuple[GeneratorConnection, Heard]:
    heard = Heard()
    connection = GeneratorConnection(heard)
    connection.connection_made(Wire())
    return connection, heard


HEAD = b"HTTP/1.1 200 OK\r\nX-Worker-Name: a\r\nContent-Length: 2"
WHOLE = HEAD + b"\r\n\r\nhi"
CHUNKED = b"HTTP/1.1 404 No\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n"
INTERIM = b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"


@pytest.mark.parametrize("size", [1, 7, 1000], ids="{} bytes at a time".format)
@pytest.mark.parametrize(
    ("answer", "method", "status", "is_reusable"),
    [
        (WHOLE, b"GET", 200, True),
        (CHUNKED, b"GET", 404, True),
        (INTERIM + INTERIM + WHOLE, b"GET", 200, True),
        (HEAD + b"\r\n\r\n", b"HEAD", 200, True),
        (b"HTTP/1.1 204 No Content\r\n\r\n", b"GET", 204, True),
        (WHOLE.replace(b"X-Worker-Name: a", b"Connection: close"), b"GET", 200, False),
        (b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n", b"HEAD", 200, False),
        (WHOLE.replace(b"1.1", b"1.0"), b"GET", 200, False),
    ],
)
def test_a_response_ends_where_it_ends(
    answer: bytes, method: bytes, status: int, is_reusable: bool, size: int
) -> None:
    connection, heard = opened()
    for _ in range(2 if is_reusable else 1):
        heard.events.clear()
        connection.send(b"request", heard, method)
        for begin in range(0, len(answer), size):
            assert "ended" not in heard.events
            connection.data_received(answer[begin : begin + size])
        head = answer.removeprefix(INTERIM + INTERIM).partition(b"\r\n\r\n")[0]
        assert heard.events == [(status, head), "ended"]
        assert connection.is_reusable is is_reusable
    assert connection.has_answered


@pytest.mark.parametrize("surplus", [b"x", WHOLE, b"HTTP/1.1 2"])
def test_bytes_behind_a_response_make_the_connection_not_reusable(surplus: bytes) -> None:
    for answer, method in ((WHOLE, b"GET"), (HEAD + b"\r\n\r\n", b"HEAD")):
        connection, heard = opened()
        connection.send(b"request", heard, method)
        connection.data_received(answer + surplus)
        assert heard.events == [(200, HEAD), "ended"]
        assert not connection.is_reusable


@pytest.mark.parametrize(
    "answer",
    [b"SSH-2.0\r\n", b"HTTP/1.1 200 OK\r\nA b: c\r\n\r\n", b"HTTP/1.1 200 OK\r\nA: " + b"a" * 70_000],
)
def test_a_malformed_response_fails(answer: bytes) -> None:
    connection, heard = opened()
    connection.send(b"request", heard)
    connection.data_received(answer)
    assert heard.events == ["closed", "failed"]
    assert not connection.has_died


def test_an_end_of_the_connection_ends_a_body_of_unknown_length_only() -> None:
    connection, heard = opened()
    connection.send(b"request", heard)
    connection.data_received(b"HTTP/1.1 200 OK\r\n\r\nwhat there is")
    connection.eof_received()
    assert heard.events == [(200, b"HTTP/1.1 200 OK"), "closed", "ended"]
    connection, heard = opened()
    connection.send(b"request", heard)
    connection.data_received(HEAD + b"\r\n\r\nh")
    connection.eof_received()
    assert heard.events == [(200, HEAD), "closed", "failed"]
    assert not connection.has_died


@pytest.mark.parametrize(("received", "has_died"), [(b"", True), (b"HTTP", False), (INTERIM, False)])
def test_a_connection_has_died_if_nothing_was_answered(received: bytes, has_died: bool) -> None:
    connection, heard = opened()
    connection.send(b"request", heard)
    if received:
        connection.data_received(received)
    connection.connection_lost(ConnectionResetError())
    assert heard.events == ["closed", "failed"]
    assert connection.has_died is has_died


def test_bytes_that_nothing_asked_for_close_the_connection() -> None:
    connection, heard = opened()
    connection.data_received(WHOLE)
    assert heard.events == ["closed"]


async def test_no_connection_is_one_line() -> None:
    server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1")
    port = server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()
    with pytest.raises(NotConnected, match=rf"^no connection to 127\.0\.0\.1:{port}: .*refused") as refused:
        await connect(Heard(), "127.0.0.1", port, 5.0)
    assert not refused.value.is_certificate


async def test_a_cancelled_connection_loses_no_socket() -> None:
    """Cancelled at every step of the event loop; a lost socket is a ResourceWarning, which is an error here."""
    accepted: list[asyncio.StreamWriter] = []
    server = await asyncio.start_server(lambda reader, writer: accepted.append(writer), "127.0.0.1")
    port = server.sockets[0].getsockname()[1]
    lost: list[str] = []
    hook, sys.unraisablehook = sys.unraisablehook, lambda found: lost.append(str(found.exc_value))
    try:
        for steps in range(8):
            opening = asyncio.ensure_future(connect(Heard(), "127.0.0.1", port, 5.0))
            for _ in range(steps):
                await asyncio.sleep(0)
            opening.cancel()
            (found,) = await asyncio.gather(opening, return_exceptions=True)
            if isinstance(found, GeneratorConnection):
                found.close()
            del opening, found
            await asyncio.sleep(0)
        gc.collect()
    finally:
        sys.unraisablehook = hook
        server.close()
        for writer in accepted:
            writer.close()
    assert not [text for text in lost if f"raddr=('127.0.0.1', {port})" in text]
