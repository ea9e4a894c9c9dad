"""When requests are due: pure functions from a load and a seed to absolute instants.

Rule of this file: every instant is fixed before the first request is sent, so no answer, however slow, can
delay a request of an open loop. Instants are seconds from the start of the run, ascending.
"""

from __future__ import annotations

import numpy as np

from experiments.campaign.scenario import Load
from experiments.load.samples import Floats

STREAM = 0xA2214A15
"""Sets the arrivals' random stream apart from every other that grows from the same block seed."""


def poisson(rate: float, count: int, rng: np.random.Generator) -> Floats:
    """`count` arrivals at `rate` per second, shape (count,).

    Given how many arrivals a Poisson process has in a span, they lie uniformly in it: sorting uniform draws is
    the process itself, with the offered rate exact in every run instead of in the mean over runs.
    """
    return np.sort(rng.uniform(0.0, count / rate, count))


def constant(rate: float, count: int) -> Floats:
    """`count` arrivals `1 / rate` seconds apart, the first at 0; shape (count,)."""
    return np.arange(count) / rate


def closed(batch: int, count: int) -> Floats:
    """The first arrivals of a closed loop: all at 0, as many as the batch holds; the rest follow answers."""
    return np.zeros(min(batch, count))


def first_instants(load: Load, seed: int, time_scale: float) -> Floats:
    """Instants known before the run in measured seconds: all of an open loop, the first batch of a closed one."""
    if load.mode == "closed":
        return closed(load.batch, load.planned)
    rate = load.rate / time_scale
    if load.arrivals == "constant":
        return constant(rate, load.planned)
    return poisson(rate, load.planned, np.random.default_rng([STREAM, seed]))
