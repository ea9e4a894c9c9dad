"""A crowd of slow clients: each connection moves one byte at a time, and comes back when it is put out.

Rule of this file: a process of its own on raw sockets, so that it neither disturbs the generator nor shares code with
what it tries. It reports how its connections ended, and how many stood at the end, when it gets SIGTERM.

    python -m benchmarks.slow_clients.crowd PORT KIND COUNT PACE REPORT

KIND is head, body, read or mixed; PACE is seconds from byte to byte; REPORT is the file that is written.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
from collections import Counter
from itertools import cycle, islice
from pathlib import Path

from benchmarks.cost.peer_files import HUGE_NAME

HOST = b"Host: 127.0.0.1\r\n"
OPENINGS = {
    "head": b"GET / HTTP/1.1\r\n" + HOST + b"X-Slow: ",
    "body": b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: 1000000\r\n\r\n",
    "read": b"GET /" + HUGE_NAME.encode() + b" HTTP/1.1\r\n" + HOST + b"\r\n",
}
"""What each kind sends at once; whatever follows goes byte by byte, and never ends."""

RECEIVE_BUFFER = 4096
MADE_UP = 0.01
"""Seconds of lateness that are made up for; a pause is not."""

NICE = 19
"""The crowd has time; the unit that shares its core has not."""


def kinds(kind: str, count: int) -> list[str]:
    """The kind of each connection."""
    return list(islice(cycle(OPENINGS if kind == "mixed" else (kind,)), count))


class SlowClient:
    """One place in the crowd, and the connection that holds it now."""

    def __init__(self, port: int, kind: str) -> None:
        self._port = port
        self._kind = kind
        self._sock: socket.socket | None = None
        self.open()

    def open(self) -> None:
        """Connect and send what is sent at once. Raises OSError."""
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER)
        sock.settimeout(5.0)
        try:
            sock.connect(("127.0.0.1", self._port))
            sock.sendall(OPENINGS[self._kind])
        except OSError:
            sock.close()
            raise
        sock.setblocking(False)
        self._sock = sock

    def move(self) -> str:
        """One byte on; returns how the connection ended, empty while it stands."""
        if self._sock is None:
            return self._come_back()
        try:
            ended = self._read_one() if self._kind == "read" else self._send_one(self._sock)
        except OSError:
            ended = "reset"
        if ended:
            self.close()
        return ended

    def close(self) -> None:
        """Leave."""
        if self._sock is not None:
            self._sock.close()
            self._sock = None

    def _come_back(self) -> str:
        try:
            self.open()
        except OSError:
            return "refused"
        return ""

    def _read_one(self) -> str:
        assert self._sock is not None
        try:
            return "" if self._sock.recv(1) else "closed"
        except BlockingIOError:
            return ""

    def _send_one(self, sock: socket.socket) -> str:
        try:
            return ending(sock.recv(4096))
        except BlockingIOError:
            sock.send(b"a")
            return ""


def ending(answer: bytes) -> str:
    """The status of an answer that nobody expected; "closed" where there is none."""
    words = answer.split(b" ", 2)
    return words[1].decode("latin-1") if len(words) > 1 and answer.startswith(b"HTTP/1.") else "closed"


def crowd(port: int, kind: str, count: int, pace: float, report: Path) -> None:
    """Be slow until SIGTERM. Raises OSError where the first connections cannot be made."""
    os.nice(NICE)
    endings: Counter[str] = Counter()
    is_over: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: is_over.append(number))
    clients = [SlowClient(port, one) for one in kinds(kind, count)]
    print(f"crowd ready on http://127.0.0.1:{port}", flush=True)
    due = time.monotonic()
    for client in cycle(clients):  # each at its own instant: strangers do not move at once
        if is_over:
            break
        if ended := client.move():
            endings[ended] += 1
        due = max(due + pace / count, time.monotonic() - MADE_UP)
        if (left := due - time.monotonic()) > 0:
            time.sleep(left)
    report.write_text(json.dumps(endings), encoding="utf-8")


if __name__ == "__main__":
    crowd(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), float(sys.argv[4]), Path(sys.argv[5]))
