"""A chunked body that is not legal is refused at the first byte that says so, however it is cut. RFC 9112 § 7.1."""

from __future__ import annotations

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from balancer.errors import MalformedBody
from balancer.http1.body import ChunkedBody
from tests.balancer.diligence import tries
from tests.balancer.messages import text
from tests.balancer.wireless import Wireless

POST = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
CHUNKS = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n"

SIZE_LINES = (b"", b"0", b"2", b"a", b"=", b"=a", b";a", b'"', b'a"')
"""One of these, and CRLF, ends any size line that can still become legal."""

TRAILERS = (b"", b"a", b":", b"a:", b"\r\n")
"""One of these, and CRLF, ends any trailer that can still become legal."""

ENDS = (*(end + b"\r\n" for end in (*SIZE_LINES, *TRAILERS)), b"\n")


def fed(data: bytes, *further: bytes) -> ChunkedBody:
    body = ChunkedBody()
    for piece in (data, *further):
        body.feed(piece)
    return body


def is_legal(data: bytes) -> bool:
    try:
        fed(data)
    except MalformedBody:
        return False
    return True


def bytewise(data: bytes) -> int:
    """Bytes that are taken one by one until one is refused, or the body ends."""
    body = ChunkedBody()
    for at in range(len(data)):
        try:
            body.feed(data[at : at + 1])
        except MalformedBody:
            return at
        if body.is_ended:
            return at + 1
    return len(data)


@tries(400)
@given(
    st.sampled_from((b"", b"0;", b"2\r\nok\r\n", b"0\r\n", b"0\r\na:")), text(b'0;="\\ \t\r\n:a\0(', 0, 12)
)
def test_what_is_not_refused_can_still_become_legal(begin: bytes, more: bytes) -> None:
    """Every beginning that is taken has an end; and bytes one by one are taken as far as all at once are."""
    sent = begin + more
    taken = bytewise(sent)
    legal = [size for size in range(len(sent) + 1) if is_legal(sent[:size])]
    if not (fed(sent[:taken]).is_ended):
        assert legal == [*range(taken + 1)]
        assert any(is_legal(sent[:taken] + end) for end in ENDS), sent[:taken]
    event(f"refused: {taken < len(sent)}")


@pytest.mark.parametrize("cut", [*range(1, 12)])
def test_trailers_of_exactly_the_limit_pass_however_they_are_cut(cut: int) -> None:
    """The limits count bytes and lines of the trailer section, without its empty line."""
    sent = b"0\r\nA: b\r\nC: d\r\n\r\n"
    for size, lines, is_taken in ((12, 2, True), (11, 2, False), (12, 1, False)):
        body = ChunkedBody(None, size, lines)
        try:
            for at in range(0, len(sent), cut):
                body.feed(sent[at : at + cut])
        except MalformedBody:
            assert not is_taken
        else:
            assert is_taken
            assert (body.is_ended, body.trailers) == (True, b"\r\nA: b\r\nC: d\r\n")


def test_an_illegal_trailer_frees_the_worker_at_once() -> None:
    """The client gets 400, and no connection to the worker stays leased."""
    with Wireless() as stage:
        client = stage.client()
        client.send(POST + b"5\r\nhello\r\n0\r\n")
        stage.turn()
        assert stage.proxy.pools.by_id["w0"].leased == 1
        client.send(b"\n")
        stage.turn()
        assert bytes(client.received).startswith(b"HTTP/1.1 400 ")
        assert b"malformed_body" in client.received
        assert stage.proxy.pools.by_id["w0"].leased == 0
        assert not stage.workers[0].is_open


@pytest.mark.parametrize("pieces", [[CHUNKS, b"0\r\nX: y\n"], [CHUNKS + b"0\r\n\n"]])
def test_an_illegal_trailer_of_a_worker_cuts_the_response_at_once(pieces: list[bytes]) -> None:
    """The client sees that it is not whole, and no connection to the worker stays leased."""
    with Wireless(retries=0) as stage:
        client = stage.client()
        client.send(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        stage.turn()
        (worker,) = stage.workers
        for piece in pieces:
            worker.send(piece)
            stage.turn()
        assert client.ending == "reset"
        assert not worker.is_open
        assert stage.proxy.pools.by_id["w0"].leased == 0
