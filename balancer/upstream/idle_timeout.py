"""How long a worker keeps an idle connection, learned from how idle times have ended.

Rule of this file: pure and clocked. Every idle time ends with the worker's close, an event, or with a lease or a close
of ours, and then it is only known to have lasted so long: it is censored. From both, the product-limit estimator
(Kaplan and Meier, JASA 53, 1958) tells the chance of standing still at each age, here over logarithmic classes of age.
Old evidence fades. What ended before `REST` is one class: it is leased without a look at the clock.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, log2
from typing import Final

REST: Final = 0.25
"""Seconds below which ages are not told apart: a period of the sweep."""

PER_DOUBLING: Final = 8
"""Classes of age, so each is 9 % wide."""

CLASSES: Final = 2 + PER_DOUBLING * 14
"""Of which the last is for more than an hour."""

TRUSTED: Final = 4.0
"""Seconds that an unknown worker is trusted to keep a connection for: the shortest usual time is 5 s, of Node and
gunicorn's kin, and a request takes its time to get there."""

ENOUGH: Final = 0.5
"""Idle times, faded, that must have come so far for an age to be judged at all."""

NEARLY: Final = 1.1
"""What is known of an age is no nearer than this: a class, and a period of the sweep."""

LONGER: Final = 2.0
"""A timer has closed nearly everything at so many times the age at which it begins to."""


@dataclass(frozen=True, slots=True)
class IdleTimeoutRules:
    """`risk`: the chance of having been closed that is run with a request that may be repeated, and `strict_risk` with
    one that may not; 0: nothing is learned. Evidence has half its weight after `half_life` seconds."""

    risk: float = 0.01
    strict_risk: float = 0.001
    half_life: float = 600.0


class IdleTimeout:
    """One endpoint's. `age` and `strict_age` are the greatest ages, in seconds, at which a connection should be leased
    for a request that may be repeated and for one that may not, as of the last `judge`; `announced` is what the worker
    itself says, None: nothing. `is_learned`: there is evidence, or a word of the worker's."""

    def __init__(self, rules: IdleTimeoutRules, now: float) -> None:
        self.rules = rules
        self.age = self.strict_age = TRUSTED
        self.announced: float | None = None
        self.is_learned = False
        self._is_new = False
        self._faded_at = now
        self._events = [0.0] * CLASSES
        self._ends = [0.0] * CLASSES  # events and censored ones

    # --- evidence

    def closed(self, age: float) -> None:
        """The worker has closed a connection that was idle so long, at least."""
        at = class_of(age)
        self._events[at] += 1.0
        self._ends[at] += 1.0
        self._is_new = True

    def stood(self, age: float) -> None:
        """It was leased, or closed by us, at this age, and stood till then."""
        self._ends[class_of(age)] += 1.0
        self._is_new = True

    def died(self, age: float) -> None:
        """It was leased at this age, which was told with `stood`, and had been closed after all."""
        self._events[class_of(age)] += 1.0
        self._is_new = True

    def stood_young(self, times: int) -> None:
        """So many were leased before the age of `REST`."""
        self._ends[0] += times

    def announce(self, seconds: float) -> None:
        """The worker says that it keeps connections for so long."""
        if seconds != self.announced:
            self.announced = seconds
            self._is_new = True

    # --- judgement

    def judge(self, now: float) -> None:
        """Draw the conclusions. Costs nothing where nothing has happened since the last time."""
        if not self._is_new:
            return
        self._is_new = False
        self._fade(now)
        sure, likely, half, reached = self._ages()
        base = max(reached, self.announced or TRUSTED)
        bound = self.announced or inf
        if self.announced is not None and likely >= self.announced / NEARLY - REST:
            likely = inf  # it closes when it says so, as far as can be told
            sure = sure if sure < self.announced / NEARLY - REST else inf
        self.is_learned = self.announced is not None or likely < inf or reached > TRUSTED
        self.strict_age = min(bound, sure if sure < inf else base)
        self.age = min(bound, self._tolerant(likely, half, base))
        self.age = max(self.age, REST)

    def _tolerant(self, likely: float, half: float, base: float) -> float:
        """The age at which a timer begins to close. Where half still stand at twice that age there is no timer: the
        worker closes at random, so a young connection is hardly safer than an old one, and what is lost is a retry."""
        if likely == inf:
            return base
        if half >= LONGER * max(likely, REST):
            return half if half < inf else max(base, likely)
        return likely

    def _ages(self) -> tuple[float, float, float, float]:
        """Where the chance of standing falls below 1 - strict_risk, 1 - risk and 1/2, inf: nowhere; and the age that
        enough have reached."""
        standing, at_risk, reached = 1.0, sum(self._ends), 0.0
        found = [inf, inf, inf]
        bounds = (1.0 - self.rules.strict_risk, 1.0 - self.rules.risk, 0.5)
        for at in range(CLASSES):
            if at_risk < ENOUGH:
                break
            reached = beginning(at)
            standing *= max(0.0, 1.0 - self._events[at] / at_risk)
            at_risk -= self._ends[at]
            for which in range(3):
                if found[which] == inf and standing < bounds[which]:
                    found[which] = reached
        return found[0], found[1], found[2], reached

    def _fade(self, now: float) -> None:
        factor = 0.5 ** ((now - self._faded_at) / self.rules.half_life)
        self._faded_at = now
        self._events = [weight * factor for weight in self._events]
        self._ends = [weight * factor for weight in self._ends]


def class_of(age: float) -> int:
    """The class that an age in seconds belongs to."""
    if age < REST:
        return 0
    return min(CLASSES - 1, 1 + int(PER_DOUBLING * log2(age / REST)))


def beginning(at: int) -> float:
    """The least age in a class, in seconds."""
    return float(REST * 2.0 ** ((at - 1) / PER_DOUBLING)) if at else 0.0
