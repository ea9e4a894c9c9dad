"""Processor time of a process tree, and of each core. Linux only.

Only kernel accounting is read; nothing is sampled here. The total is the process's CPU clock, exact to the nanosecond
and including threads that have ended. User and system time are kept in ticks of 10 ms, so they only show how the total
divides.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from experiments.errors import BadInputError

PROC = Path("/proc")
CPUCLOCK_SCHED = 2
"""Clock kind in the clock id that `clock_getcpuclockid(3)` derives from a process id."""

PARENT, USER, SYSTEM = 1, 11, 12
"""Fields of `/proc/PID/stat` (proc(5)), counted from the state, which follows the name in brackets."""


@dataclass(frozen=True, slots=True)
class Cpu:
    """Processor time so far: `total` in seconds, `user` and `system` in ticks."""

    total: float
    user: int
    system: int

    def __add__(self, other: Cpu) -> Cpu:
        return Cpu(self.total + other.total, self.user + other.user, self.system + other.system)

    def __sub__(self, other: Cpu) -> Cpu:
        return Cpu(self.total - other.total, self.user - other.user, self.system - other.system)

    @property
    def user_share(self) -> float:
        """Fraction (0..1) of the total spent outside the kernel; 0 when no tick was counted."""
        ticks = self.user + self.system
        return self.user / ticks if ticks else 0.0


def is_known_here() -> bool:
    """Whether this system provides the accounting that this module reads."""
    return sys.platform == "linux" and (PROC / "self" / "stat").exists()


def cpu_of(pid: int) -> Cpu:
    """Processor time of a process and all its descendants. Raises `OSError` when `pid` is gone."""
    return sum(cpu_of_each(pid).values(), Cpu(0.0, 0, 0))


def cpu_of_each(pid: int) -> dict[int, Cpu]:
    """Processor time of a process and of each descendant, by process id. Raises `OSError` when `pid` is gone."""
    spent = {pid: _cpu_of_one(pid)}
    for child in descendants(pid):
        try:
            spent[child] = _cpu_of_one(child)
        except OSError:  # it ended between the listing and this read
            continue
    return spent


def cpu_of_ended_children() -> float:
    """Seconds of processor time used by child processes of this one that have ended."""
    used = os.times()
    return used.children_user + used.children_system


def busy_seconds(core: int) -> float:
    """Seconds for which a core was unavailable: in use, or stolen by the host."""
    user, nice, system, _idle, _iowait, irq, softirq, steal = _ticks_of(core)
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def stolen_seconds(cores: Sequence[int]) -> float:
    """Seconds of steal time on these cores, added up; 0 where the host does not account for it."""
    return sum(_ticks_of(core)[7] for core in cores) / os.sysconf("SC_CLK_TCK")


def _ticks_of(core: int) -> list[int]:
    """Ticks of a core in `/proc/stat` (proc(5)), from user to steal. Raises `OSError` when there is no such core."""
    for line in (PROC / "stat").read_text(encoding="ascii").splitlines():
        name, *ticks = line.split()
        if name == f"cpu{core}":
            return [int(tick) for tick in ticks[:8]]
    raise OSError(f"no core {core} in /proc/stat")


def descendants(pid: int) -> list[int]:
    """Process ids of all descendants of a process."""
    parents = dict(_parents())
    found, waiting = [], [pid]
    while waiting:
        parent = waiting.pop()
        children = [child for child, its_parent in parents.items() if its_parent == parent]
        found += children
        waiting += children
    return found


def cores() -> list[int]:
    """Cores that this process may use, in ascending order; empty outside Linux."""
    return sorted(os.sched_getaffinity(0)) if sys.platform == "linux" else []


@contextmanager
def pinned_to(core: int) -> Iterator[None]:
    """Pin child processes started in the block to `core`; they keep it, and this process returns to its own cores."""
    if sys.platform != "linux":
        raise BadInputError("processes can be pinned on Linux only")
    own = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, own)


def _cpu_of_one(pid: int) -> Cpu:
    fields = _stat(PROC / str(pid))
    return Cpu(time.clock_gettime(~pid << 3 | CPUCLOCK_SCHED), int(fields[USER]), int(fields[SYSTEM]))


def _parents() -> Iterator[tuple[int, int]]:
    """Yield (process id, parent process id) for every running process."""
    for folder in PROC.iterdir():
        if folder.name.isdigit():
            try:
                yield int(folder.name), int(_stat(folder)[PARENT])
            except OSError:  # it has ended
                continue


def _stat(folder: Path) -> list[str]:
    """Fields of a `stat` file from the state on; the name before them may hold blanks and brackets."""
    return (folder / "stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
