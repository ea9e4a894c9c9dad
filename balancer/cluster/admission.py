"""Admission control: decide before routing whether a request is accepted.

A level is rejected while the load is at or above its own threshold, so that lower levels make room for higher ones
before anything is full. The sweep computes everything that depends on the number of endpoints; a request costs two
comparisons.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Final

from balancer.cluster.wait_queue import RequestQueue
from balancer.config.schema.queue import AdmissionConfig, LevelConfig, QueueConfig
from balancer.errors import Shed
from balancer.http.h1.request_hints import HintFields, RequestHints
from policies.routing.router import Router
from policies.stats.load import WindowedMinimum

BASE_WINDOW: Final = 60.0
"""Seconds of one bucket of the windowed minimum of the start-to-admission delay, as in LEDBAT (RFC 6817 § 3.4.2)."""


ONLY_LEVEL: Final = (LevelConfig(name="all"),)


@dataclass(frozen=True, slots=True)
class AdmissionRules:
    """Configuration of admission control.

    `levels` are the priority levels, highest first; `default` is the index of the level for requests without one.
    `patience` is the number of seconds after a request's stated start at which its response becomes useless.
    `of_trusted` and `of_others` are the hint fields read from trusted proxies and from all other clients.
    """

    of_trusted: HintFields | None
    of_others: HintFields | None
    levels: Sequence[LevelConfig] = ONLY_LEVEL
    default: int = 0
    patience: float = inf


def admission_rules(queue: QueueConfig, admission: AdmissionConfig) -> AdmissionRules | None:
    """Return the rules of admission control; None if no header for it is configured."""
    if queue.timeout_header is None and queue.start_header is None and admission.header is None:
        return None
    is_public = admission.trust == "all"
    levels = admission.by_name()
    of_trusted = HintFields(admission.header, levels, queue.timeout_header, queue.start_header)
    of_others = None
    if queue.timeout_header is not None or (is_public and admission.header is not None):
        of_others = HintFields(admission.header if is_public else None, levels, queue.timeout_header)
    if admission.header is None:
        return AdmissionRules(of_trusted, of_others, ONLY_LEVEL, 0, queue.start_timeout)
    return AdmissionRules(
        of_trusted, of_others, admission.levels, levels[admission.default.lower()], queue.start_timeout
    )


class Admission:
    """Admission control in front of one router and its wait queue."""

    def __init__(
        self, rules: AdmissionRules, router: Router, queue: RequestQueue, now: Callable[[], float]
    ) -> None:
        self.rules = rules
        self._router = router
        self._queue = queue
        self._now = now
        self._capacity = inf
        self._fastest = 0.0
        self._refused_share = 1.0
        self._least_delay = WindowedMinimum(BASE_WINDOW)
        self.sweep()

    def fields(self, is_trusted: bool) -> HintFields | None:
        """Return the hint fields to read from a client's requests."""
        return self.rules.of_trusted if is_trusted else self.rules.of_others

    def admit(self, stated: RequestHints | None) -> tuple[int, float]:
        """Return a request's priority level and the deadline for sending it to a worker.

        Raises `Shed`, `DeadlinePassed`.
        """
        now, rules = self._now(), self.rules
        level, deadline = rules.default, inf
        if stated is not None:
            level = rules.default if stated.level is None else stated.level
            deadline = self._deadline(stated, now)
            if now >= deadline:
                raise self._queue.too_late(level, now)
        if len(rules.levels) > 1:
            self._check_capacity(level, now)
        return level, deadline

    def sweep(self) -> None:
        """Update the capacity of the eligible endpoints and the lowest response latency; report refusals to limits."""
        fit = [state for state in self._router.states if state.is_eligible and state.is_called]
        for state in fit:
            if state.concurrency is not None:  # a level that is refused below a limit never fills it
                state.concurrency.refused(self._refused_share)
        self._refused_share = 1.0
        self._capacity = min(sum(state.limit for state in fit) or inf, self._router.in_flight_limit)
        floor = min((state.latency.floor for state in fit), default=inf)
        self._fastest = floor if floor < inf else 0.0

    def _deadline(self, stated: RequestHints, now: float) -> float:
        """Return the latest instant to send the request so that the fastest worker still responds in time."""
        deadline = inf if stated.limit is None else now + stated.limit
        if stated.started_at is not None:
            deadline = min(deadline, now - self._age(stated.started_at, now) + self.rules.patience)
        return deadline - self._fastest

    def _age(self, started_at: float, now: float) -> float:
        """Return the seconds since a request started, less the minimum start-to-arrival delay of the last minutes.

        The start comes from another machine's clock. Only differences between requests count, so a constant clock
        offset cancels out as long as all proxies use the same clock.
        """
        delay = now - started_at
        self._least_delay.add(delay, now)
        return delay - self._least_delay.least

    def _check_capacity(self, number: int, now: float) -> None:
        level, queue = self.rules.levels[number], self._queue
        waiting = len(queue)
        excess = waiting - level.queue * queue.tickets.limit + 1.0  # before there is room for it
        is_queue_full = level.queue < 1.0 and waiting > 0 and excess >= 1.0
        is_busy = level.in_flight < 1.0 and self._router.in_flight >= level.in_flight * self._capacity
        if is_busy or is_queue_full:
            self._refused_share = min(self._refused_share, level.in_flight)
            retry_after = queue.retry_after(now, excess if is_queue_full else 0.0)
            error = Shed(f"too much to do for requests of level {level.name}", retry_after)
            queue.note_dropped(number, error)
            raise error
