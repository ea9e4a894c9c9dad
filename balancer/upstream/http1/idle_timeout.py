"""Idle-timeout estimate: how long a worker keeps an idle connection open, learned from how idle times end.

Each idle time ends either with a close by the worker, an event, or with a lease or a close by the balancer, which only
shows that the connection was kept for that long: a censored observation. The product-limit estimator (Kaplan and Meier,
JASA 53, 1958) gives from both the probability that a connection is still open at each age, here over logarithmic
classes of age. Old evidence decays. Idle times below `MIN_IDLE_AGE` form one class, because such connections are
leased without reading the clock. Pure: the caller passes the time.
"""

from __future__ import annotations

from math import inf, log2
from typing import Final

MIN_IDLE_AGE: Final = 0.25
"""Seconds of idle time below which ages are not distinguished: the period of the sweep."""

ESTIMATE_INTERVAL: Final = 1.0
"""Seconds between two updates of the idle-timeout estimate."""

PER_DOUBLING: Final = 8
"""Classes per doubling of age: each is 9 % wide."""

CLASSES: Final = 2 + PER_DOUBLING * 14
"""Number of classes; the last holds ages over an hour."""

DEFAULT_IDLE_TIMEOUT: Final = 4.0
"""Estimate in seconds for a worker without evidence. The shortest common idle timeout is 5 s (Node, gunicorn and
similar), and a request takes time to arrive."""

STRICTER: Final = 10
"""Factor by which less risk is accepted for requests that may not be retried."""

HALF_LIFE: Final = 600.0
"""Seconds after which evidence has half its weight."""

MIN_EVIDENCE: Final = 0.5
"""Decayed number of idle times that must have reached an age for that age to be judged."""

AGE_PRECISION: Final = 1.1
"""Relative precision of an age: the width of a class plus a period of the sweep."""

TIMER_SPREAD: Final = 2.0
"""A worker with an idle timer has closed nearly all connections at this multiple of the age at which it begins to close
them."""


class IdleTimeout:
    """Idle-timeout estimate of one endpoint.

    `risk`: accepted probability that a leased connection is already closed, for requests that may be retried; 0 turns
    learning off. `age` and `strict_age`: maximum idle time in seconds at which a connection should be leased, for
    requests that may be retried and for those that may not, as of the last `judge`. `announced`: keep-alive timeout
    that the worker states, None: none. `is_learned`: whether the estimate rests on evidence or on `announced`.
    """

    def __init__(self, risk: float, now: float) -> None:
        self.risk = risk
        self.age = self.strict_age = DEFAULT_IDLE_TIMEOUT
        self.announced: float | None = None
        self.is_learned = False
        self._is_new = False
        self._faded_at = now
        self._events = [0.0] * CLASSES
        self._ends = [0.0] * CLASSES  # events and censored observations

    # --- evidence

    def closed(self, age: float) -> None:
        """Record that the worker closed a connection after at least `age` idle seconds."""
        at = class_of(age)
        self._events[at] += 1.0
        self._ends[at] += 1.0
        self._is_new = True

    def stood(self, age: float) -> None:
        """Record a censored observation: the connection was open at `age`, when it was leased or closed by the
        balancer."""
        self._ends[class_of(age)] += 1.0
        self._is_new = True

    def died(self, age: float) -> None:
        """Record that a connection leased at `age`, already counted by `stood`, had been closed by the worker."""
        self._events[class_of(age)] += 1.0
        self._is_new = True

    def stood_young(self, times: int) -> None:
        """Record leases before an idle time of `MIN_IDLE_AGE`."""
        self._ends[0] += times

    def announce(self, seconds: float) -> None:
        """Record the keep-alive timeout in seconds that the worker states."""
        if seconds != self.announced:
            self.announced = seconds
            self._is_new = True

    # --- judgement

    def judge(self, now: float) -> None:
        """Update the estimate. Returns at once if there is no new evidence."""
        if not self._is_new:
            return
        self._is_new = False
        self._fade(now)
        sure, likely, half, reached = self._ages()
        base = max(reached, self.announced or DEFAULT_IDLE_TIMEOUT)
        bound = self.announced or inf
        if self.announced is not None and likely >= self.announced / AGE_PRECISION - MIN_IDLE_AGE:
            likely = inf  # consistent with the stated timeout
            sure = sure if sure < self.announced / AGE_PRECISION - MIN_IDLE_AGE else inf
        self.is_learned = self.announced is not None or likely < inf or reached > DEFAULT_IDLE_TIMEOUT
        self.strict_age = min(bound, sure if sure < inf else base)
        self.age = min(bound, self._tolerant(likely, half, base))
        self.age = max(self.age, MIN_IDLE_AGE)

    def _tolerant(self, likely: float, half: float, base: float) -> float:
        """Age at which the worker's idle timer begins to close connections.

        If half of the connections are still open at `TIMER_SPREAD` times that age, there is no timer: the worker closes
        at random, a young connection is hardly safer than an old one, and a loss costs only a retry. The limit is
        then the median.
        """
        if likely == inf:
            return base
        if half >= TIMER_SPREAD * max(likely, MIN_IDLE_AGE):
            return half if half < inf else max(base, likely)
        return likely

    def _ages(self) -> tuple[float, float, float, float]:
        """Ages at which survival falls below 1 - risk / `STRICTER`, 1 - risk and 1/2, inf if it never does; and the
        greatest age with enough evidence. O(`CLASSES`)."""
        standing, at_risk, reached = 1.0, sum(self._ends), 0.0
        found = [inf, inf, inf]
        bounds = (1.0 - self.risk / STRICTER, 1.0 - self.risk, 0.5)
        for at in range(CLASSES):
            if at_risk < MIN_EVIDENCE:
                break
            reached = beginning(at)
            standing *= max(0.0, 1.0 - self._events[at] / at_risk)
            at_risk -= self._ends[at]
            for which in range(3):
                if found[which] == inf and standing < bounds[which]:
                    found[which] = reached
        return found[0], found[1], found[2], reached

    def _fade(self, now: float) -> None:
        factor = 0.5 ** ((now - self._faded_at) / HALF_LIFE)
        self._faded_at = now
        self._events = [weight * factor for weight in self._events]
        self._ends = [weight * factor for weight in self._ends]


def class_of(age: float) -> int:
    """Index of the class that holds an age in seconds."""
    if age < MIN_IDLE_AGE:
        return 0
    return min(CLASSES - 1, 1 + int(PER_DOUBLING * log2(age / MIN_IDLE_AGE)))


def beginning(at: int) -> float:
    """Lower bound of a class, in seconds."""
    return float(MIN_IDLE_AGE * 2.0 ** ((at - 1) / PER_DOUBLING)) if at else 0.0
