"""Closed-loop load of one run, by wrk or the built-in generator, and its parsed report.

Serves to keep the proxy busy. Latency is not read, because a closed loop hides it (coordinated omission). Without wrk
this module is the generator:

    python -m benchmarks.harness.closed_load JSON

JSON has the fields of `ClosedLoop`.
"""

from __future__ import annotations

import asyncio
import json
import math
import re
import signal
import sys
import time
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path

import uvloop

from benchmarks.harness.cases import Case
from benchmarks.harness.certificates import client_context
from benchmarks.harness.load_process import Place, generator_argv, report_in, report_of, started
from experiments.errors import FleetFailedError
from experiments.generator.client import GeneratorConnection, GeneratorTls, NotConnected, connect


@dataclass(frozen=True, slots=True)
class LoadOutcome:
    """Answered requests, requests per second, and errors."""

    requests: int
    rate: float
    bad_status: int = 0
    socket_errors: int = 0

    @property
    def fault(self) -> str:
        """Reason why the result is invalid; empty if it is valid."""
        if not self.requests:
            return "no request was answered"
        if not (self.bad_status or self.socket_errors):
            return ""
        return f"{self.bad_status} non-2xx, {self.socket_errors} socket errors"


CONNECT_TIMEOUT_S = 5.0


class LoopClient:
    """Owner and receiver of a connection that sends the next request as soon as the response is complete."""

    def __init__(self, request: bytes, method: bytes, counts: Counter[str]) -> None:
        self._request, self._method = request, method
        self._counts = counts

    async def open(self, port: int, tls: GeneratorTls | None) -> None:
        """Connect and send the first request. Raises `NotConnected`."""
        self._connection = await connect(self, "127.0.0.1", port, CONNECT_TIMEOUT_S, tls)
        self._connection.send(self._request, self, self._method)

    def close(self) -> None:
        """Close the connection; a request in flight is not counted."""
        self._connection.close()

    def answer_started(self, status: int, head: bytes) -> None:
        self._counts["bad status"] += status >= 400

    def answer_ended(self) -> None:
        self._counts["requests"] += 1
        if self._connection.is_reusable:
            self._connection.send(self._request, self, self._method)
        else:
            self._counts["read"] += 1

    def answer_failed(self) -> None:
        self._counts["read"] += 1

    def connection_closed(self, connection: GeneratorConnection) -> None: ...


@dataclass(frozen=True, slots=True)
class ClosedLoop:
    """Load on 127.0.0.1:`port` for `seconds`; `body` is the size of the request's body in bytes."""

    port: int
    method: str
    path: str
    body: int
    connections: int
    seconds: float
    is_tls: bool

    @property
    def request(self) -> bytes:
        length = f"Content-Length: {self.body}\r\n" if self.body else ""
        head = f"{self.method} {self.path} HTTP/1.1\r\nHost: 127.0.0.1:{self.port}\r\n{length}\r\n"
        return head.encode() + b"x" * self.body

    async def run(self) -> LoadOutcome:
        """Keep all connections busy; returns what was answered."""
        counts, clients = Counter[str](), list[LoopClient]()
        tls = GeneratorTls(client_context(), "localhost") if self.is_tls else None
        began_at = time.monotonic()
        for _ in range(self.connections):
            client = LoopClient(self.request, self.method.encode(), counts)
            try:
                await client.open(self.port, tls)
                clients.append(client)
            except NotConnected:
                counts["connect"] += 1
        await asyncio.sleep(began_at + self.seconds - time.monotonic())
        took = time.monotonic() - began_at
        for client in clients:
            client.close()
        return LoadOutcome(
            counts["requests"],
            counts["requests"] / took,
            counts["bad status"],
            counts["connect"] + counts["read"],
        )


TOTAL = re.compile(r"^\s*(\d+) requests in ", re.MULTILINE)
RATE = re.compile(r"^Requests/sec:\s*([\d.]+)", re.MULTILINE)
SOCKET_ERRORS = re.compile(r"Socket errors: connect (\d+), read (\d+), write (\d+), timeout (\d+)")
H2LOAD_RATE = re.compile(r"^finished in .*?, ([\d.]+) req/s", re.MULTILINE)
H2LOAD_STATUS = re.compile(r"^status codes: (\d+) 2xx, \d+ 3xx, (\d+) 4xx, (\d+) 5xx", re.MULTILINE)
H2LOAD_LOST = re.compile(r"(\d+) failed, (\d+) errored", re.MULTILINE)
BAD_STATUS = re.compile(r"Non-2xx or 3xx responses: (\d+)")


def parsed(text: str) -> LoadOutcome:
    """Parse the report of wrk. Raises `FleetFailedError` if it is none."""
    total, rate = TOTAL.search(text), RATE.search(text)
    if total is None or rate is None:
        raise FleetFailedError(f"the load generator gave no report: {text.strip()[-200:]}")
    sockets, status = SOCKET_ERRORS.search(text), BAD_STATUS.search(text)
    return LoadOutcome(
        requests=int(total[1]),
        rate=float(rate[1]),
        bad_status=int(status[1]) if status else 0,
        socket_errors=sum(map(int, sockets.groups())) if sockets else 0,
    )


def parsed_h2load(text: str) -> LoadOutcome:
    """Parse the report of h2load. Raises `FleetFailedError` if it is none."""
    rate, status, lost = H2LOAD_RATE.search(text), H2LOAD_STATUS.search(text), H2LOAD_LOST.search(text)
    if rate is None or status is None or lost is None:
        raise FleetFailedError(f"h2load gave no report: {text.strip()[-200:]}")
    good, *bad = map(int, status.groups())
    return LoadOutcome(good, float(rate[1]), bad_status=sum(bad), socket_errors=sum(map(int, lost.groups())))


@dataclass(frozen=True, slots=True)
class Load:
    """A configured generator. `wrk` is its path, or None for the built-in one; scripts are written to `folder`."""

    case: Case
    connections: int
    wrk: str | None
    folder: Path

    async def run(self, port: int, seconds: float, place: Place) -> LoadOutcome:
        """Load 127.0.0.1:`port` for `seconds`. Raises `FleetFailedError`."""
        case = self.case
        if case.streams:
            async with started(self.h2load_argv(port, seconds), place) as process:
                return parsed_h2load(await report_of(process, seconds))
        own = ClosedLoop(port, case.method, case.path, case.body, self.connections, seconds, case.is_tls)
        argv = (
            self.wrk_argv(port, seconds)
            if self.wrk
            else generator_argv("benchmarks.harness.closed_load", own)
        )
        async with started(argv, place) as process:
            if self.wrk and seconds % 1:  # wrk knows whole seconds only, and reports when interrupted
                await asyncio.sleep(seconds)
                process.send_signal(signal.SIGINT)
            text = await report_of(process, seconds)
            return parsed(text) if self.wrk else report_in(LoadOutcome, text)

    def h2load_argv(self, port: int, seconds: float) -> list[str]:
        at_once = ["-c", str(self.connections), "-m", str(self.case.streams)]
        return [
            "h2load",
            *at_once,
            "-D",
            f"{seconds * 1e3:.0f}ms",
            f"http://127.0.0.1:{port}{self.case.path}",
        ]

    def wrk_argv(self, port: int, seconds: float) -> list[str]:
        assert self.wrk is not None
        timing = ["--threads", "1", "--connections", str(self.connections), "--duration"]
        script = ["--script", str(self._script())] if self.case.body or self.case.script else []
        url = f"{'https' if self.case.is_tls else 'http'}://127.0.0.1:{port}{self.case.path}"
        return [self.wrk, *timing, f"{math.ceil(seconds)}s", *script, url]

    def _script(self) -> Path:
        """Write the Lua script of the case, or with method and body; wrk has no options for them."""
        path = self.folder / f"{self.case.name}.lua"
        path.write_text(
            self.case.script
            or f'wrk.method = "{self.case.method}"\n'
            f'wrk.body = string.rep("x", {self.case.body})\n'
            'wrk.headers["Content-Type"] = "application/octet-stream"\n',
            encoding="utf-8",
        )
        return path


if __name__ == "__main__":
    print(json.dumps(asdict(uvloop.run(ClosedLoop(**json.loads(sys.argv[1])).run()))))
