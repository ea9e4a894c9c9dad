"""Processes of one session (setsid(2)): members and end. Linux only.

A balancer that replaces another stays in the session of the first. Processes outside of the session are never
signalled.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from contextlib import suppress

from experiments.errors import FleetFailedError
from experiments.platform.cpu_time import PROC

LOOK_AGAIN = 0.05
GRACE = 5.0
STATE, SESSION = 0, 3
"""Fields of /proc/PID/stat (proc(5)), counted from the state."""

ENDED = "ZX"
"""States of ended processes: zombie and dead."""


def members(session: int) -> list[int]:
    """Process ids of all live processes of a session; zombies are not counted."""
    found = []
    for pid in [int(folder.name) for folder in PROC.iterdir() if folder.name.isdigit()]:
        fields = fields_of(pid)
        if fields and fields[STATE] not in ENDED and int(fields[SESSION]) == session:
            found.append(pid)
    return found


def fields_of(pid: int) -> list[str]:
    """Fields of a process from its state on; empty if it is gone."""
    try:
        text = (PROC / str(pid) / "stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return []
    return text.rpartition(")")[2].split()


def is_alive(pid: int) -> bool:
    fields = fields_of(pid)
    return bool(fields) and fields[STATE] not in ENDED


async def wait_for_end(pid: int, within: float) -> None:
    """Wait until a process ends. Raises `FleetFailedError` after `within` seconds."""
    if not await wait_until(lambda: not is_alive(pid), within):
        raise FleetFailedError(f"process {pid} did not end within {within:g} s")


async def wait_until(look: Callable[[], bool], within: float) -> bool:
    """Poll a condition every `LOOK_AGAIN` seconds; returns whether it came true within `within` seconds."""
    for _ in range(round(within / LOOK_AGAIN)):
        if look():
            return True
        await asyncio.sleep(LOOK_AGAIN)
    return look()


async def end(session: int) -> None:
    """End all processes of a session: SIGTERM, a grace period, SIGKILL."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        for pid in members(session):
            with suppress(ProcessLookupError):
                os.kill(pid, number)
        await wait_until(lambda: not members(session), GRACE)
