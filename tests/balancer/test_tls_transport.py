"""The TLS layer between a plain transport that only notes and a protocol that only notes: what passes, and when."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path
from typing import Any

import pytest

from balancer.tls.transport import UNASKED, TlsTransport
from tests.balancer.certificates import Shelf


class Below(asyncio.Transport):
    """A plain transport: what is written stands in `written`."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.ends: list[str] = []
        self.waiting = 0

    def write(self, data: Any) -> None:
        self.written += bytes(data)

    def write_eof(self) -> None:
        self.ends.append("eof")

    def close(self) -> None:
        self.ends.append("close")

    def abort(self) -> None:
        self.ends.append("abort")

    def is_closing(self) -> bool:
        return bool({"close", "abort"} & set(self.ends))

    def get_write_buffer_size(self) -> int:
        return self.waiting


class Above(asyncio.Protocol):
    """A protocol: `stays` is what it answers to the end of the peer's side."""

    def __init__(self) -> None:
        self.told: list[Any] = []
        self.stays = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.told.append("made")

    def data_received(self, data: bytes) -> None:
        self.told.append(data)

    def eof_received(self) -> bool:
        self.told.append("eof")
        return self.stays

    def connection_lost(self, error: Exception | None) -> None:
        self.told.append(("lost", error))


class Pair:
    """A layer of ours and a peer of OpenSSL's own, hands shaken."""

    def __init__(self, shelf: Shelf) -> None:
        self.below, self.above = Below(), Above()
        self.tls = TlsTransport(shelf.worker("a.org"), self.above, self._shaken)
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.peer = shelf.client().wrap_bio(self._incoming, self._outgoing, server_hostname="a.org")
        self.tls.connection_made(self.below)
        for _ in range(3):
            try:
                self.peer.do_handshake()
            except ssl.SSLWantReadError:
                self.exchange()
        self.exchange()
        assert self.above.told.pop() == "made"

    def _shaken(self, error: Exception | None) -> None:
        assert error is None
        assert self.above.told == []

    def records(self) -> bytes:
        return self._outgoing.read()

    def exchange(self) -> None:
        if data := self.records():
            self.tls.data_received(data)
        self._incoming.write(self.below.written)
        self.below.written = b""

    def read(self) -> bytes:
        """What the peer reads now."""
        self.exchange()
        data = b""
        while True:
            try:
                piece = self.peer.read(65536)
            except ssl.SSLWantReadError:
                return data
            if not piece:
                return data + b"|end"
            data += piece


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    return Pair(Shelf(tmp_path))


def test_records_of_one_read_are_one_piece(pair: Pair) -> None:
    """However many there are, and what is not whole waits."""
    for data in (b"a" * 40_000, b"b"):
        pair.peer.write(data)
    records = pair.records()
    pair.tls.data_received(records[:-1])
    pair.tls.data_received(records[-1:])
    assert pair.above.told == [b"a" * 40_000, b"b"]


def test_writes_pass_at_once(pair: Pair) -> None:
    """Of any size; nothing is kept."""
    pair.tls.write(b"x" * 100_000)
    pair.tls.write(bytearray(b"y"))
    pair.tls.write(b"")
    pair.tls.writelines([b"1", b"2"])
    assert pair.read() == b"x" * 100_000 + b"y12"


def test_our_end_is_said_once_and_nothing_after_it(pair: Pair) -> None:
    """write_eof sends close_notify and FIN; what comes is still read; close sends no second one."""
    pair.tls.write_eof()
    assert pair.read() == b"|end"
    pair.tls.write(b"too late")
    pair.tls.write_eof()
    pair.peer.write(b"still")
    pair.exchange()
    assert pair.above.told == [b"still"]
    pair.tls.close()
    assert (pair.below.written, pair.below.ends) == (b"", ["eof", "close"])


@pytest.mark.parametrize("stays", [False, True])
def test_the_peer_s_end(pair: Pair, stays: bool) -> None:
    """Told once, after what came before it; whoever stays can still write."""
    pair.above.stays = stays
    pair.peer.write(b"last")
    with pytest.raises(ssl.SSLWantReadError):
        pair.peer.unwrap()
    pair.exchange()
    assert pair.above.told == [b"last", "eof"]
    assert pair.tls.eof_received() == stays
    assert pair.below.ends == ([] if stays else ["close"])
    pair.tls.data_received(b"garbage behind it")
    assert pair.above.told == [b"last", "eof"]


def test_a_fin_alone_is_an_error(pair: Pair) -> None:
    assert not pair.tls.eof_received()
    pair.tls.connection_lost(None)
    ((kind, error),) = pair.above.told
    assert (kind, str(error)) == ("lost", "the connection ended without close_notify")
    assert pair.tls.is_closing()


def test_a_broken_record_is_told_after_what_came_before(pair: Pair) -> None:
    """With an alert to the peer, and nothing is read behind it."""
    pair.peer.write(b"good")
    pair.tls.data_received(pair.records() + b"\x17\x03\x03\x00\x20" + bytes(32))
    assert (pair.above.told, pair.below.ends) == ([b"good"], ["close"])
    assert pair.below.written
    pair.tls.data_received(b"more")
    pair.tls.write(b"more")
    pair.tls.connection_lost(None)
    assert isinstance(pair.above.told[1][1], ssl.SSLError)


def test_another_protocol(pair: Pair) -> None:
    """From the next piece on."""
    other = Above()
    pair.tls.set_protocol(other)
    pair.peer.write(b"hello")
    pair.exchange()
    assert (pair.above.told, other.told) == ([], [b"hello"])
    assert pair.tls.get_protocol() is other


def test_unasked_answers_are_bounded(pair: Pair) -> None:
    """What reading makes us send to a peer that does not read: beyond the bound the connection is cut."""
    pair.peer.write(b"hello")
    pair.below.waiting = UNASKED + 1
    pair.tls._outgoing.write(b"as OpenSSL answers KeyUpdate")
    pair.exchange()
    assert (pair.above.told, pair.below.ends) == ([], ["abort"])


def test_what_it_tells_of_itself(pair: Pair) -> None:
    assert pair.tls.get_extra_info("ssl_object").version() == "TLSv1.3"
    assert pair.tls.get_extra_info("sslcontext") is not None
    assert pair.tls.get_extra_info("peername", "nobody") == "nobody"
