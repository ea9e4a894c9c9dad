"""Expected cost of one more request at an endpoint, in seconds, by named parts.

    cost = E[loss(T)] + (service / concurrency + wait) · ρ / (1 − ρ) + failures + room − margin

T = connect + distance + wait + service is the time to the answer, of which the mean and the variance are estimated.
`Prices` has the loss for each objective. The second term is what the request costs those after it: its work occupies an
endpoint that serves c at a time for service / c seconds, and at one that is busy for a share ρ of the time each second
of the rest of that busy period delays ρ / (1 − ρ) seconds of others (the first step of policy improvement for M/M/1;
Krishnan 1990). Distance occupies nothing, so it counts once.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import erf, erfc, exp, inf, log, log1p, pi, sqrt
from typing import Final

LOAD: Final = 0.667
"""Utilisation ρ for which requests are priced. It is not measured: a balancer does not see the share of others. With
it a wait counts 1 / (1 − ρ) = 3 times, which a search over simulated scenarios had found as well."""

DEVIATIONS: Final = 2.0
"""Standard deviations above the mean that the objective `tail` counts."""

REJECTION_S: Final = 100.0
"""Cost in seconds of a request that the endpoint or the policy will probably reject: more than it waits elsewhere."""

PARTS: Final = {
    "connect": "time to open a connection, if none is idle",
    "distance": "one round trip",
    "service": "what it takes there at present",
    "wait": "requests at the endpoint beyond its concurrency × service / concurrency",
    "occupancy": "what it costs those after it: (service / concurrency + wait) × load / (1 − load)",
    "risk": "expected loss by the objective beyond the mean time",
    "failure": "share of requests that failed lately × what a failure costs",
    "room": "5 s where a new endpoint has as many requests as it may, 100 s where its queue is full",
    "price": "price of the region",
    "margin": "discount of the home region",
}
"""Names of the parts of a cost, in their order, and what they are."""

CERTAIN: Final = 3.0
"""Standard deviations beyond which a normal variable is as good as its mean."""

ROOT_TWO_PI: Final = sqrt(2.0 * pi)


class Prices:
    """What a policy minimises: the loss of an answer's time by objective, and prices of regions in seconds.

    `mean`: the time itself. `tail`: its mean and DEVIATIONS standard deviations, an upper quantile, as p99 is one: a
    second of service counts more than one of distance. `deadline`: the mean, and the deadline again for each answer
    that is later, so a late answer costs as much as one that takes twice as long as it may.
    """

    def __init__(
        self, deviations: float, deadline: float, load: float, margin: float, regions: Mapping[str, float]
    ) -> None:
        self.deviations, self.deadline = deviations, deadline
        self.later = load / (1.0 - load)
        self.margin = margin
        self.regions = dict(regions)

    def risk(self, certain: float, mean: float, variance: float) -> float:
        """Return the expected loss of a time beyond its mean: `certain` seconds and a part of this mean, variance."""
        if self.deviations:
            return self.deviations * sqrt(variance)
        if self.deadline < inf:
            return self.deadline * late(self.deadline - certain, mean, variance)
        return 0.0


def late(left: float, mean: float, variance: float) -> float:
    """Return the probability that a lognormal time of this mean and variance exceeds `left` seconds."""
    if left <= 0.0:
        return 1.0
    spread = log1p(variance / (mean * mean)) if mean else 0.0
    if not spread:
        return 1.0 if mean > left else 0.0
    return 0.5 * erfc((log(left / mean) + 0.5 * spread) / sqrt(2.0 * spread))


class Costs:
    """Parts of the expected cost of one more request at one endpoint, in seconds, and their `total`."""

    def __init__(self) -> None:
        self.connect = self.distance = self.service = self.wait = self.occupancy = 0.0
        self.risk = self.failure = self.room = self.price = self.margin = self.total = 0.0

    def parts(self) -> dict[str, float]:
        """Return the parts that are not zero, by name."""
        parts = {name: float(getattr(self, name)) for name in PARTS}
        return {name: seconds for name, seconds in parts.items() if seconds}

    @property
    def services_waited(self) -> float:
        """Expected wait in service times at present."""
        return self.wait / self.service if self.service else 0.0


def expected_wait(in_flight: int, seconds: float, distance: float, concurrency: float) -> float:
    """Return the seconds that one more request is expected to wait behind `in_flight` others.

    Those others are at the endpoint or on their way to or from it. How many are there is binomial, each with a
    probability of service / (service + distance), about normal; those beyond `concurrency` wait. Where the endpoint is
    saturated, the way holds no more than it serves in that time.
    """
    if in_flight < concurrency:
        return 0.0
    others, share = float(in_flight), seconds / (seconds + distance)
    mean = max(others * share, others - concurrency * distance / seconds)
    beyond, deviation = mean + 1.0 - concurrency, sqrt(others * share * (1.0 - share))
    if beyond <= -CERTAIN * deviation:
        return 0.0
    if beyond < CERTAIN * deviation:  # the mean of the positive part of a normal variable
        z = beyond / deviation
        beyond = deviation * exp(-0.5 * z * z) / ROOT_TWO_PI + 0.5 * beyond * (1.0 + erf(z / sqrt(2.0)))
    return beyond * seconds / concurrency
