"""Who may come in: the question that is asked of every request before it is routed, where it is asked at all.

Rule of this file: what depends on the number of endpoints is worked out by the sweep; a request costs two comparisons.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Final

from balancer.errors import DeadlinePassed, Shed
from balancer.exchange.wait_queue import TOO_LATE, RequestQueue
from balancer.http1.request_hints import HintFields, RequestHints
from policies.overload.admission import Level, Pressure, excess, is_refused
from policies.routing.router import Router
from policies.stats.load import WindowedMinimum

BASE_WINDOW: Final = 60.0
"""Seconds of one bucket of the least delay between a stated start and the gate, as in LEDBAT (RFC 6817 § 3.4.2)."""

ONLY_LEVEL: Final = (Level("all"),)


@dataclass(frozen=True, slots=True)
class AdmissionRules:
    """What is asked. `levels` stand highest first, and `default` is the one of requests that say none; `patience` is
    how many seconds after a stated start an answer is of no use. The fields that are read are those of trusted proxies,
    or of everybody else."""

    of_trusted: HintFields | None
    of_others: HintFields | None
    levels: Sequence[Level] = ONLY_LEVEL
    default: int = 0
    patience: float = inf


class Admission:
    """The gate of a unit."""

    def __init__(
        self, rules: AdmissionRules, router: Router, queue: RequestQueue, now: Callable[[], float]
    ) -> None:
        self.rules = rules
        self._router = router
        self._queue = queue
        self._now = now
        self._capacity = inf
        self._fastest = 0.0
        self._least_delay = WindowedMinimum(BASE_WINDOW)
        self.sweep()

    def fields(self, is_trusted: bool) -> HintFields | None:
        """What is read of the requests of one client."""
        return self.rules.of_trusted if is_trusted else self.rules.of_others

    def admit(self, stated: RequestHints | None) -> tuple[int, float]:
        """The level of a request, and the instant by which it must be on its way to a worker. Raises `Shed`,
        `DeadlinePassed`."""
        now, rules = self._now(), self.rules
        level, deadline = rules.default, inf
        if stated is not None:
            level = rules.default if stated.level is None else stated.level
            deadline = self._deadline(stated, now)
            if now >= deadline:
                error = DeadlinePassed(TOO_LATE, self._queue.retry_after(now))
                self._queue.note_dropped(level, error)
                raise error
        if len(rules.levels) > 1:
            self._check_capacity(level, now)
        return level, deadline

    def sweep(self) -> None:
        """Look at the endpoints: what they may hold, and the least time that an answer takes."""
        fit = [state for state in self._router.states if state.is_fit]
        self._capacity = min(sum(state.limit for state in fit) or inf, self._router.in_flight_limit)
        floor = min((state.latency.floor for state in fit), default=inf)
        self._fastest = floor if floor < inf else 0.0

    def pressure(self) -> Pressure:
        """How full everything is."""
        line = self._queue.line
        return Pressure(len(line), line.limit, self._router.in_flight, self._capacity)

    def _deadline(self, stated: RequestHints, now: float) -> float:
        """When it is too late to begin: the fastest worker would not answer in time."""
        deadline = inf if stated.limit is None else now + stated.limit
        if stated.started_at is not None:
            deadline = min(deadline, now - self._age(stated.started_at, now) + self.rules.patience)
        return deadline - self._fastest

    def _age(self, started_at: float, now: float) -> float:
        """Seconds since a request started, beyond what the quickest of the last minutes took to come.

        The clock that it was read from is not ours: only differences to other requests mean anything, so a clock that
        is wrong by an hour costs nobody an answer, if all proxies go by the same.
        """
        delay = now - started_at
        self._least_delay.add(delay, now)
        return delay - self._least_delay.read()

    def _check_capacity(self, number: int, now: float) -> None:
        level, pressure = self.rules.levels[number], self.pressure()
        if is_refused(level, pressure):
            retry_after = self._queue.retry_after(now, excess(level, pressure))
            error = Shed(f"too much to do for requests of level {level.name}", retry_after)
            self._queue.note_dropped(number, error)
            raise error
