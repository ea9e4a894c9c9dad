"""A machine that others use too: a run waits for a quiet moment, and one that was disturbed is measured again.

    wait until it is quiet ─→ measure ─→ disturbed? ─→ wait …      until patience is over: then it stays as it is

Rule of this file: that it is quiet is known from the kernel's account of what the host took away, and that a run was
disturbed from the generator's own lag. Neither is a latency, so measuring again says nothing in favour of anybody.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Sequence

from experiments import cpu_time
from experiments.campaign.statistics import LAG
from experiments.load.samples import Run

QUIET = 0.005
"""Part of the processors' time that others may take. Twice as much would be all that the lag of a valid run allows."""

LOOK = 2.0
"""Seconds of the account that say whether it is quiet. A host that is busy is so for many of them."""


def has_lagged(run: Run) -> bool:
    """Whether the generator was late, and the run must not be believed for it."""
    return any(reason.startswith(LAG) for reason in run.facts.invalid_reasons)


def stolen_seconds() -> float:
    """What the host took of all our processors so far; nothing where no account of it is kept."""
    try:
        return cpu_time.stolen_seconds(processors())
    except OSError:
        return 0.0


def processors() -> Sequence[int]:
    """Those that we may run on; none where nobody tells."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else ()


class Patience:
    """Up to `seconds` for each planned run, for waiting and for measuring again. 0: a run is taken as it comes."""

    def __init__(
        self,
        seconds: float = 0.0,
        is_disturbed: Callable[[Run], bool] = has_lagged,
        *,
        stolen: Callable[[], float] = stolen_seconds,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._seconds = seconds
        self._is_disturbed = is_disturbed
        self._stolen = stolen
        self._now = now
        self._sleep = sleep
        self._until = now()

    def begin(self) -> None:
        """The next planned run."""
        self._until = self._now() + self._seconds

    async def quiet(self, print_verdict: Callable[[float], None]) -> None:
        """Wait for a quiet moment, as long as there is patience; `print_verdict` hears which part (0..1) others take."""
        while self._now() < self._until:
            at, before = self._now(), self._stolen()
            await self._sleep(LOOK)
            taken = (self._stolen() - before) / ((self._now() - at) * max(1, len(processors())))
            if taken <= QUIET:
                return
            print_verdict(taken)

    def should_repeat(self, run: Run) -> bool:
        """Whether what has just been measured is worth another try, and there is patience for one."""
        return self._is_disturbed(run) and self._now() < self._until
