"""Measuring on a shared machine: wait for a quiet moment before a run, and repeat a disturbed block.

    wait until quiet ─→ measure all entries ─→ any disturbed? ─→ all again …   until the time is used up

Quietness is judged by the kernel's steal time, disturbance by the load generator's own lag. An entry that shares the
machine can cause lag; so a block is repeated for all entries, and what it replaces is kept and counted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from experiments.platform import cpu_time
from experiments.run_data import Run
from experiments.stats.measures import LAG

QUIET_STEAL = 0.005
"""Maximum steal fraction of a quiet machine. Twice as much makes the generator a millisecond late at p99."""

LOOK = 2.0
"""Seconds over which steal time is observed; a busy host stays busy for many of them."""


def has_lagged(run: Run) -> bool:
    """Whether the run is invalid because of generator lag."""
    return any(reason.startswith(LAG) for reason in run.facts.invalid_reasons)


def stolen_seconds() -> float:
    """Steal time of this process's cores so far, in seconds; 0 where it is not accounted."""
    try:
        return cpu_time.stolen_seconds(cpu_time.cores())
    except OSError:
        return 0.0


class Patience:
    """Time budget of `seconds` per planned run for waiting and repeating; a block has that of its runs together.

    With 0 every run is kept as it is.
    """

    def __init__(
        self,
        seconds: float = 0.0,
        *,
        stolen: Callable[[], float] = stolen_seconds,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._seconds = seconds
        self._stolen = stolen
        self._now = now
        self._sleep = sleep
        self._until = now()

    def begin(self, runs: int) -> None:
        """Start the budget of the next block of planned runs."""
        self._until = self._now() + self._seconds * runs

    def quiet(self, print_verdict: Callable[[float], None]) -> None:
        """Wait for a quiet moment, at most the budget of one run; `print_verdict` gets the steal fraction (0..1)."""
        until = min(self._until, self._now() + self._seconds)
        while self._now() < until:
            at, before = self._now(), self._stolen()
            self._sleep(LOOK)
            taken = (self._stolen() - before) / ((self._now() - at) * max(1, len(cpu_time.cores())))
            if taken <= QUIET_STEAL:
                return
            print_verdict(taken)

    def should_repeat(self, disturbed: Iterable[bool]) -> bool:
        """Whether any run of the block was disturbed and the budget allows a repetition."""
        return any(disturbed) and self._now() < self._until
