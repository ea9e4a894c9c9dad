"""Scripts of workers in raw HTTP/1.1: what they answer, when, and how they break off."""

from __future__ import annotations

import asyncio

from tests.support.stage import Stage
from tests.support.wire import (
    Script,
    ScriptedWorker,
    Wire,
    answering,
    answering_after,
    get,
    playing,
    response,
)


async def holding(stage: Stage, go: asyncio.Event) -> ScriptedWorker:
    """A worker that answers once `go` is set."""
    return await stage.worker(answering_after(go, response(b"held")))


def patient(body: bytes) -> Script:
    """Answer every request, with a long wait for the next one."""

    async def script(wire: Wire) -> None:
        wire.patience = 60.0
        await answering(response(body))(wire)

    return script


QUICK = response(b"quick")


LATE = 1.1
"""Seconds: a little more than the default delay of a hedge without measurements."""


reset_after_request = playing(Wire.request, Wire.reset)


def gated(go: asyncio.Event) -> Script:
    """Answer with the request's target once `go` is set."""
    return answering_after(go, lambda request: response(request.line.split()[1]))


async def check(stage: Stage, seconds: float = 6.0) -> None:
    """Let a check of each endpoint become due and finish."""
    stage.advance(seconds)
    await stage.turn(5)
    await stage.eventually(lambda: all(c.request is None for c in stage.control_plane.checks.by_id.values()))


async def fill(stage: Stage, worker: ScriptedWorker) -> Wire:
    """Occupy the endpoint's only place."""
    return await stage.asking(worker, get(b"/first"))


def after_a_request(data: bytes = b"", *, resets: bool = False) -> Script:
    """Read a request, send `data` and close."""
    return playing(Wire.request, data, *([Wire.reset] if resets else []))


hang = playing(Wire.request, Wire.closed)
"""Read a request and never answer."""


UPGRADE_FIELDS = (b"Connection: Upgrade", b"Upgrade: chat/2, chat/1", b"Sec-Chat-Key: a b")


SWITCHED = b"HTTP/1.1 101 Go On\r\nConnection: upgrade\r\nUpgrade: chat/1\r\nSec-Chat-Accept: x\r\n\r\n"


def send_then_disconnect(data: bytes) -> Script:
    """Answer with `data` and reset."""
    return playing(Wire.request, data, lambda _: asyncio.sleep(0), Wire.reset)


def check_results(stage: Stage, endpoint: str = "w0") -> tuple[int, int, str | None]:
    """Numbers of passed and of failed checks, and the last fault."""
    state = stage.control_plane.checks.by_id[endpoint].state
    return state.passed, state.failed, state.last_fault
