"""Stop signals: handlers are put back after a loop, and a load in turns restores the balancer's policy."""

from __future__ import annotations

import asyncio
import json
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import uvloop

from experiments.errors import STOPPED
from experiments.platform.terminal import (
    interruptible,
    signals_ignored,
    signals_interrupt,
    stop_signals,
)
from policies.stats.load import RATIO, SHORTEST, Histogram

Run = Callable[[Coroutine[Any, Any, None]], None]


@contextmanager
def handled(number: signal.Signals, handler: Any) -> Iterator[None]:
    """Handle a signal of this process by `handler` for a while."""
    before = signal.signal(number, handler)
    try:
        yield
    finally:
        signal.signal(number, before)


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_handlers_are_in_place_again_after_the_loop(run: Run, number: signal.Signals) -> None:
    """An event loop by itself leaves the default, by which the next signal ends the process at once."""
    inside: list[Any] = []

    async def work() -> None:
        inside.append(signal.getsignal(number))

    with signals_interrupt():
        outside = signal.getsignal(number)
        run(interruptible(work()))
        assert outside is signal.default_int_handler
        assert inside != [outside]
        assert signal.getsignal(number) is outside
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(number)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_stop_signal_cancels_once(number: signal.Signals) -> None:
    """The second one does not disturb the clean-up."""
    steps: list[str] = []

    async def work() -> None:
        try:
            signal.raise_signal(number)
            await asyncio.Event().wait()
        finally:
            signal.raise_signal(number)
            await asyncio.sleep(0)
            steps.append("cleaned up")

    with pytest.raises((asyncio.CancelledError, KeyboardInterrupt)):
        asyncio.run(interruptible(work()))
    assert steps == ["cleaned up"]


async def ends_in_the_same_moment() -> None:
    signal.raise_signal(signal.SIGINT)
    await asyncio.sleep(0)


async def ignores_the_cancellation() -> None:
    signal.raise_signal(signal.SIGINT)
    with suppress(asyncio.CancelledError):
        await asyncio.Event().wait()


@pytest.mark.parametrize("work", [ends_in_the_same_moment, ignores_the_cancellation])
@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_a_stop_signal_is_not_lost(run: Run, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Or a campaign would go on with its next run."""
    with pytest.raises((asyncio.CancelledError, KeyboardInterrupt)):
        run(interruptible(work()))


def test_a_hangup_that_is_ignored_stays_ignored() -> None:
    """As under nohup."""
    with handled(signal.SIGHUP, signal.SIG_IGN):
        assert signal.SIGHUP not in stop_signals()
        with signals_interrupt():
            signal.raise_signal(signal.SIGHUP)
    with signals_ignored():
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.raise_signal(number)


class MadeUpUnit(BaseHTTPRequestHandler):
    """Answers requests as a balancer with one endpoint does; `put` holds the policies that were put in force."""

    protocol_version = "HTTP/1.1"
    put: queue.Queue[dict[str, Any]]
    policy: dict[str, Any]

    def do_GET(self) -> None:
        endpoint = {"id": "a", "buckets": list(Histogram().counts), "outcomes": {"error_status": 0}}
        policy = {"name": self.policy["name"], "spec": self.policy, "fallback_picks": 0}
        counters = {"shortest": SHORTEST, "ratio": RATIO, "requests": 0, "errors": {}}
        self.answer({**counters, "policy": policy, "endpoints": [endpoint]})

    def do_PUT(self) -> None:
        policy = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if not self.path.endswith("?check"):
            type(self).policy = policy
            self.put.put(policy)
        self.answer({})

    def answer(self, document: dict[str, Any]) -> None:
        body = json.dumps(document).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.fixture
def unit() -> Iterator[tuple[str, queue.Queue[dict[str, Any]]]]:
    """URL of a made-up balancer, and the policies that are put in force."""
    found: queue.Queue[dict[str, Any]] = queue.Queue()
    handler = type("Handler", (MadeUpUnit,), {"put": found, "policy": {"name": "old"}})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", found
        server.shutdown()
        thread.join(10)


@pytest.mark.second_tier
@pytest.mark.parametrize(
    ("number", "turns"), [(signal.SIGINT, 1), (signal.SIGINT, 2), (signal.SIGHUP, 1), (signal.SIGTERM, 2)]
)
def test_a_stopped_load_restores_the_policy(
    unit: tuple[str, queue.Queue[dict[str, Any]]], tmp_path: Path, number: signal.Signals, turns: int
) -> None:
    """During the first run, and during the second, before which an event loop has ended."""
    url, put = unit
    options = ["--duration", "1s", "--warmup", "0", "--rate", "20", "--out", str(tmp_path / "out")]
    argv = [sys.executable, "-m", "experiments", "load", url, "--policies", "random,c3", *options]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    tried = [put.get(timeout=60)["name"] for _ in range(turns)]
    process.send_signal(number)
    out, error = process.communicate(timeout=60)
    assert process.returncode == STOPPED, error
    assert put.get(timeout=10) == {"name": "old"}
    assert put.empty()
    assert set(tried) <= {"random", "c3"}
    assert "'old' is in force again." in out
