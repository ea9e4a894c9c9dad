"""`TlsTransport` between a recording transport and a recording protocol."""

from __future__ import annotations

import asyncio
import ssl
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from balancer.tls.transport import MAX_UNREAD_BYTES, TlsTransport
from tests.support.certificates import Shelf


class PlainTransport(asyncio.Transport):
    """A plain transport that records; `ends` are its closing calls."""

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


class RecordingProtocol(asyncio.Protocol):
    """A protocol that records its callbacks; `stays` is what `eof_received` returns."""

    def __init__(self) -> None:
        self.events: list[Any] = []
        self.stays = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.events.append("made")

    def data_received(self, data: bytes) -> None:
        self.events.append(data)

    def eof_received(self) -> bool:
        self.events.append("eof")
        return self.stays

    def connection_lost(self, error: Exception | None) -> None:
        self.events.append(("lost", error))


class Pair:
    """A `TlsTransport` and an OpenSSL peer after their handshake."""

    def __init__(self, shelf: Shelf, version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3) -> None:
        self.plain, self.protocol = PlainTransport(), RecordingProtocol()
        self.tls = TlsTransport(shelf.worker("a.org"), self.protocol, self._shaken)
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        context = shelf.client()
        context.maximum_version = version
        self.peer = context.wrap_bio(self._incoming, self._outgoing, server_hostname="a.org")
        self.tls.connection_made(self.plain)
        for _ in range(3):
            try:
                self.peer.do_handshake()
            except ssl.SSLWantReadError:
                self.exchange()
        self.exchange()
        assert self.protocol.events.pop() == "made"

    def _shaken(self, error: Exception | None) -> None:
        assert error is None
        assert self.protocol.events == []

    def records(self) -> bytes:
        return self._outgoing.read()

    def exchange(self) -> None:
        if data := self.records():
            self.tls.data_received(data)
        self._incoming.write(self.plain.written)
        self.plain.written = b""

    def read(self) -> bytes:
        """What the peer can read now; "|end" is close_notify."""
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


def test_records_of_one_read_are_delivered_together(pair: Pair) -> None:
    """An incomplete record waits."""
    for data in (b"a" * 40_000, b"b"):
        pair.peer.write(data)
    records = pair.records()
    pair.tls.data_received(records[:-1])
    pair.tls.data_received(records[-1:])
    assert pair.protocol.events == [b"a" * 40_000, b"b"]


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_records_cut_anywhere(tmp_path: Path, version: ssl.TLSVersion) -> None:
    """Three records in three reads: each read delivers all records that it completes, and nothing is left for later."""
    pair = Pair(Shelf(tmp_path), version)
    texts = (b"a", b"a" * 20, b"abc")
    for first, second in combinations(range(1, 90), 2):
        stream, complete = b"", {0: b""}  # what is complete after so many bytes
        for text in texts:
            pair.peer.write(text)
            stream += pair.records()
            complete[len(stream)] = complete[max(complete)] + text
        for begin, end in ((0, first), (first, second), (second, len(stream))):
            if begin < end:
                pair.tls.data_received(stream[begin:end])
            given = b"".join(pair.protocol.events)
            assert given == complete[max(size for size in complete if size <= end)], (first, second, end)
        pair.protocol.events.clear()


@pytest.mark.parametrize("size", [1, 2, 16_383, 16_384, 16_385, 65_536])
def test_each_size_of_a_read(pair: Pair, size: int) -> None:
    """Of one record and of several, after a whole one."""
    for data in (b"first", b"x" * size, b"y" * size):
        pair.peer.write(data)
        pair.exchange()
    assert pair.protocol.events == [b"first", b"x" * size, b"y" * size]


def test_writes_are_passed_on_at_once(pair: Pair) -> None:
    """Of any size; nothing is buffered."""
    pair.tls.write(b"x" * 100_000)
    pair.tls.write(bytearray(b"y"))
    pair.tls.write(b"")
    pair.tls.writelines([b"1", b"2"])
    assert pair.read() == b"x" * 100_000 + b"y12"


def test_write_eof_sends_close_notify_once(pair: Pair) -> None:
    """`write_eof` sends close_notify and FIN, reading goes on, and `close` sends no second close_notify."""
    pair.tls.write_eof()
    assert pair.read() == b"|end"
    pair.tls.write(b"too late")
    pair.tls.write_eof()
    pair.peer.write(b"still")
    pair.exchange()
    assert pair.protocol.events == [b"still"]
    pair.tls.close()
    assert (pair.plain.written, pair.plain.ends) == (b"", ["eof", "close"])


@pytest.mark.parametrize("stays", [False, True])
def test_close_notify_of_the_peer(pair: Pair, stays: bool) -> None:
    """It is reported once, after earlier data; a protocol that stays can still write."""
    pair.protocol.stays = stays
    pair.peer.write(b"last")
    with pytest.raises(ssl.SSLWantReadError):
        pair.peer.unwrap()
    pair.exchange()
    assert pair.protocol.events == [b"last", "eof"]
    assert pair.tls.eof_received() == stays
    assert pair.plain.ends == ([] if stays else ["close"])
    pair.tls.data_received(b"garbage behind it")
    assert pair.protocol.events == [b"last", "eof"]


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize("cut", ["in one read", "between the records", "in the last record"])
def test_close_notify_of_the_peer_after_ours(tmp_path: Path, version: ssl.TLSVersion, cut: str) -> None:
    """It is the end, not an error. The record before it is delivered, of which a part had come before ours."""
    pair = Pair(Shelf(tmp_path), version)
    pair.peer.write(b"last word")
    record = pair.records()
    pair.tls.data_received(record[:7])
    pair.tls.write_eof()
    assert pair.read() == b"|end"
    pair.peer.unwrap()
    rest = record[7:] + pair.records()
    at = {"in one read": 0, "between the records": len(record) - 7, "in the last record": len(rest) - 1}[cut]
    for piece in (rest[:at], rest[at:]):
        pair.tls.data_received(piece)
    assert pair.protocol.events == [b"last word", "eof"]
    assert (pair.tls.eof_received(), pair.plain.ends) == (True, ["eof"])


def test_fin_without_close_notify_is_an_error(pair: Pair) -> None:
    assert not pair.tls.eof_received()
    pair.tls.connection_lost(None)
    ((kind, error),) = pair.protocol.events
    assert kind == "lost"
    assert "close_notify" in str(error)
    assert pair.tls.is_closing()


def test_broken_record_ends_the_connection_after_earlier_data(pair: Pair) -> None:
    """The peer gets an alert, and later data is ignored."""
    pair.peer.write(b"good")
    pair.tls.data_received(pair.records() + b"\x17\x03\x03\x00\x20" + bytes(32))
    assert (pair.protocol.events, pair.plain.ends) == ([b"good"], ["close"])
    assert pair.plain.written
    pair.tls.data_received(b"more")
    pair.tls.write(b"more")
    pair.tls.connection_lost(None)
    assert isinstance(pair.protocol.events[1][1], ssl.SSLError)


def test_set_protocol(pair: Pair) -> None:
    """From the next data on."""
    other = RecordingProtocol()
    pair.tls.set_protocol(other)
    pair.peer.write(b"hello")
    pair.exchange()
    assert (pair.protocol.events, other.events) == ([], [b"hello"])
    assert pair.tls.get_protocol() is other


def test_unsolicited_output_is_bounded(pair: Pair) -> None:
    """Output caused by reading, for a peer that does not read; beyond the bound the connection is aborted."""
    pair.peer.write(b"hello")
    pair.plain.waiting = MAX_UNREAD_BYTES + 1
    pair.tls._outgoing.write(b"as OpenSSL answers KeyUpdate")
    pair.exchange()
    assert (pair.protocol.events, pair.plain.ends) == ([], ["abort"])


def test_get_extra_info(pair: Pair) -> None:
    assert pair.tls.get_extra_info("ssl_object").version() == "TLSv1.3"
    assert pair.tls.get_extra_info("sslcontext") is not None
    assert pair.tls.get_extra_info("peername", "default") == "default"
