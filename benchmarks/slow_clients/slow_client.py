"""Slow clients as a process of its own: each connection sends or reads one byte at a time and reconnects when closed.

Raw sockets, no code shared with the proxy under test. On SIGTERM it writes how often connections ended in each way.

    python -m benchmarks.slow_clients.slow_client PORT KIND COUNT PACE REPORT

KIND is head, body, read or mixed; PACE is the interval between bytes in seconds; REPORT is the file that is written.
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

from experiments.platform.instant_worker import HUGE_NAME

HOST = b"Host: 127.0.0.1\r\n"
OPENINGS = {
    "head": b"GET / HTTP/1.1\r\n" + HOST + b"X-Slow: ",
    "body": b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: 1000000\r\n\r\n",
    "read": b"GET /" + HUGE_NAME.encode() + b" HTTP/1.1\r\n" + HOST + b"\r\n",
}
"""Bytes that each kind sends at once on connecting; the rest follows byte by byte and never ends."""

RECEIVE_BUFFER = 4096
MAX_CATCH_UP_S = 0.01
"""Seconds of lateness that the schedule catches up on; a longer pause is skipped."""

NICE = 19
"""Niceness of the slow clients: the proxy that shares their core has priority."""


def kinds(kind: str, count: int) -> list[str]:
    """Kind of each of `count` connections; `mixed` cycles through all kinds."""
    return list(islice(cycle(OPENINGS if kind == "mixed" else (kind,)), count))


class SlowClient:
    """One slow connection, reopened after it is closed."""

    def __init__(self, port: int, kind: str) -> None:
        self._port = port
        self._kind = kind
        self._sock: socket.socket | None = None
        self.open()

    def open(self) -> None:
        """Connect and send the opening bytes. Raises `OSError`."""
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
        """Send or read one byte, or reconnect; returns how the connection ended, empty while it is open."""
        if self._sock is None:
            try:
                self.open()
            except OSError:
                return "refused"
            return ""
        try:
            ended = self._moved(self._sock)
        except BlockingIOError:
            return ""
        except OSError:
            ended = "reset"
        if ended:
            self.close()
        return ended

    def close(self) -> None:
        if self._sock is not None:
            self._sock.close()
            self._sock = None

    def _moved(self, sock: socket.socket) -> str:
        if self._kind == "read":
            return "" if sock.recv(1) else "closed"
        try:
            return ending(sock.recv(4096))
        except BlockingIOError:
            sock.send(b"a")
            return ""


def ending(answer: bytes) -> str:
    """Status code of an unexpected response, or `closed` if there is none."""
    words = answer.split(b" ", 2)
    return words[1].decode("latin-1") if len(words) > 1 and answer.startswith(b"HTTP/1.") else "closed"


def run_slow_clients(port: int, kind: str, count: int, pace: float, report: Path) -> None:
    """Run the slow clients until SIGTERM, then write `report`. Raises `OSError` if the first connections fail."""
    os.nice(NICE)
    endings: Counter[str] = Counter()
    is_over: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: is_over.append(number))
    clients = [SlowClient(port, one) for one in kinds(kind, count)]
    print(f"slow-clients ready on http://127.0.0.1:{port}", flush=True)
    due = time.monotonic()
    # Each client moves at its own instant: independent clients are not synchronised.
    for client in cycle(clients):
        if is_over:
            break
        if ended := client.move():
            endings[ended] += 1
        due = max(due + pace / count, time.monotonic() - MAX_CATCH_UP_S)
        if (left := due - time.monotonic()) > 0:
            time.sleep(left)
    report.write_text(json.dumps(endings), encoding="utf-8")


if __name__ == "__main__":
    run_slow_clients(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), float(sys.argv[4]), Path(sys.argv[5]))
