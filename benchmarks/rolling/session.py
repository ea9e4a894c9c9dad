"""Processes of one session: who is there, who is the root of the rest, and who is gone. Linux only.

Rule of this file: a unit that replaces another stands in the session in which the first was started, so nobody has to
say who it is, and nobody outside of it is ever looked at or ended.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from contextlib import suppress

from experiments.cpu_time import PROC
from experiments.errors import FleetFailedError

LOOK_AGAIN = 0.05
GRACE = 5.0
STATE, PARENT, SESSION = 0, 1, 3
"""Fields of /proc/PID/stat (proc(5)), counted from the state."""

ENDED = "ZX"
"""States of who has ended, and of whom perhaps nobody takes note."""


def members(session: int) -> dict[int, int]:
    """Process id and parent of all that live in a session; who has ended and waits to be asked is not counted."""
    found = {}
    for pid in [int(folder.name) for folder in PROC.iterdir() if folder.name.isdigit()]:
        fields = fields_of(pid)
        if fields and fields[STATE] not in ENDED and int(fields[SESSION]) == session:
            found[pid] = int(fields[PARENT])
    return found


def fields_of(pid: int) -> list[str]:
    """The fields of a process from its state on; none when it is gone."""
    try:
        text = (PROC / str(pid) / "stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return []
    return text.rpartition(")")[2].split()


def is_alive(pid: int) -> bool:
    fields = fields_of(pid)
    return bool(fields) and fields[STATE] not in ENDED


def is_caught(pid: int, number: signal.Signals) -> bool:
    """Whether a process has something of its own to do on a signal (SigCgt of proc(5))."""
    for line in (PROC / str(pid) / "status").read_text(encoding="ascii", errors="replace").splitlines():
        if line.startswith("SigCgt:"):
            return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False


def root_of(session: int) -> int:
    """The process that stands above the others. Raises FleetFailedError when nobody is left."""
    everybody = members(session)
    for pid, parent in everybody.items():
        if parent not in everybody:
            return pid
    raise FleetFailedError("nobody took the unit's place")


async def wait_for_end(pid: int, within: float) -> None:
    """Raises FleetFailedError when it does not end."""

    if not await came_true(lambda: not is_alive(pid), within):
        raise FleetFailedError(f"process {pid} did not end within {within:g} s")


async def came_true(look: Callable[[], bool], within: float) -> bool:
    """Whether something that nobody tells us of has come true in time."""
    for _ in range(round(within / LOOK_AGAIN)):
        if look():
            return True
        await asyncio.sleep(LOOK_AGAIN)
    return look()


async def end(session: int) -> None:
    """Whoever is left of a session that was begun here: SIGTERM, a grace, SIGKILL."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        for pid in members(session):
            with suppress(ProcessLookupError):
                os.kill(pid, number)
        await came_true(lambda: not members(session), GRACE)
