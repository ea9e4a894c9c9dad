"""Processor time of a process tree, and on which core it is spent. Linux only.

Rule of this file: it reads what the kernel accounts and samples nothing itself. The total is the process's CPU clock,
exact to the nanosecond and counting threads that have ended; user and system time are kept in ticks of 10 ms, so
they only say how the total divides.
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
"""Kind of clock in the id that clock_getcpuclockid(3) makes of a process id."""

PARENT, USER, SYSTEM = 1, 11, 12
"""Fields of /proc/PID/stat (proc(5)), counted from the state, which follows the name in brackets."""


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
        """Part of the total that was spent outside the kernel; 0 when not a tick was counted."""
        ticks = self.user + self.system
        return self.user / ticks if ticks else 0.0


def is_known_here() -> bool:
    """Whether this system accounts as we read it."""
    return sys.platform == "linux" and (PROC / "self" / "stat").exists()


def cpu_of(pid: int) -> Cpu:
    """What a process and all that descend from it have used. Raises OSError when `pid` is gone."""
    return sum(cpu_of_each(pid).values(), Cpu(0.0, 0, 0))


def cpu_of_each(pid: int) -> dict[int, Cpu]:
    """What each of them has used, by process id. Raises OSError when `pid` is gone."""
    spent = {pid: _cpu_of_one(pid)}
    for child in descendants(pid):
        try:
            spent[child] = _cpu_of_one(child)
        except OSError:  # it ended between the two looks
            continue
    return spent


def cpu_of_ended_children() -> float:
    """Seconds that processes have used that we had started, and that have ended."""
    used = os.times()
    return used.children_user + used.children_system


def busy_seconds(core: int) -> float:
    """Seconds for which a core was not there for whoever came: in use, or taken away by the host."""
    user, nice, system, _idle, _iowait, irq, softirq, steal = _ticks_of(core)
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def stolen_seconds(cores: Sequence[int]) -> float:
    """Seconds for which the host took any of these cores away, all together; nothing where it accounts for nothing."""
    return sum(_ticks_of(core)[7] for core in cores) / os.sysconf("SC_CLK_TCK")


def _ticks_of(core: int) -> list[int]:
    """What /proc/stat (proc(5)) says of a core: user to steal. Raises OSError when there is no such core."""
    for line in (PROC / "stat").read_text(encoding="ascii").splitlines():
        name, *ticks = line.split()
        if name == f"cpu{core}":
            return [int(tick) for tick in ticks[:8]]
    raise OSError(f"no core {core} in /proc/stat")


def descendants(pid: int) -> list[int]:
    """Process ids of the children, their children, and so on."""
    parents = dict(_parents())
    found, waiting = [], [pid]
    while waiting:
        parent = waiting.pop()
        children = [child for child, its_parent in parents.items() if its_parent == parent]
        found += children
        waiting += children
    return found


def cores() -> list[int]:
    """The cores that this process may use, in order."""
    return sorted(os.sched_getaffinity(0)) if sys.platform == "linux" else []


@contextmanager
def pinned_to(core: int) -> Iterator[None]:
    """Processes that are started inside inherit this core and keep it; we ourselves go back to ours."""
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
    """(process, its parent) of everything that runs."""
    for folder in PROC.iterdir():
        if folder.name.isdigit():
            try:
                yield int(folder.name), int(_stat(folder)[PARENT])
            except OSError:  # gone
                continue


def _stat(folder: Path) -> list[str]:
    """The fields from the state on; the name before them may hold blanks and brackets."""
    return (folder / "stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
