"""Reports of other routers on an endpoint: sibling processes are one source, other units another."""

from __future__ import annotations

from math import exp, inf

from policies.prompts import NO_TOKENS
from policies.stats.latency import FORGET_AFTER, TAU
from policies.stats.shared_latency import NOTHING


class Elsewhere:
    """Reports of one source: `believed` requests in flight, `tokens` of prompts, and `latency`, the measurements.

    A count older than one service time is out of date: an endpoint that was idle then has been found by all routers
    since. Its weight falls exponentially with its age, and the mean of the counts takes the rest. `counted_at` is the
    time of the last count.
    """

    def __init__(self) -> None:
        self.believed = 0
        self.tokens = NO_TOKENS
        self.latency = NOTHING
        self._mean = 0.0
        self.counted_at = -inf

    def update(self, count: int, now: float, age: float, service: float) -> int:
        """Take a count that will be `age` seconds old when it is used, on average; return the change of `believed`.

        `service` is the service time in seconds; 0 if it is unknown, and then the count is used as it is. A time
        before the last count's is taken for it: a sweep began before the requests that it has routed.
        """
        interval = max(0.0, now - self.counted_at)
        self.counted_at = max(now, self.counted_at)
        before = self.believed
        if interval < FORGET_AFTER and service > 0.0:
            self._mean += (count - self._mean) * (1.0 - exp(-interval / TAU))
            self.believed = round(self._mean + (count - self._mean) * exp(min(0.0, -age) / service))
        else:
            self._mean = float(count)
            self.believed = count
        return self.believed - before

    def forget(self) -> int:
        """Forget counts and measurements; return the change of `believed`."""
        change = -self.believed
        self.believed = 0
        self.tokens = NO_TOKENS
        self.latency = NOTHING
        self._mean = 0.0
        self.counted_at = -inf
        return change
