"""Arrival processes: pure functions from a load and a seed to the instants at which requests are due.

Every instant is fixed before the first request is sent, so a slow answer cannot delay a request of an open loop.
Instants are seconds from the start of the run, ascending. Simulated runs use the same instants.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from experiments.recorded.instants import quantum_of, recorded, spread
from experiments.run_data import Floats
from experiments.scenario.load import Arrivals, Load, Stage
from experiments.scenario.streams import stream

Rng = np.random.Generator


def poisson(rate: float, count: int, rng: Rng) -> Floats:
    """`count` Poisson arrivals at `rate` per second, shape (count,).

    Given how many arrivals a Poisson process has in an interval, they are uniform in it: sorted uniform draws are the
    process itself, with the offered rate exact in every run instead of in the mean over runs.
    """
    return np.sort(rng.uniform(0.0, count / rate, count))


def constant(rate: float, count: int) -> Floats:
    """`count` arrivals `1 / rate` seconds apart, the first at 0; shape (count,)."""
    return np.arange(count) / rate


def closed(batch: int, count: int) -> Floats:
    """First arrivals of a closed loop: one batch at 0; the rest follow answers."""
    return np.zeros(min(batch, count))


def stepped(edges: Sequence[float], rates: Sequence[float], rng: Rng) -> Floats:
    """Poisson at `rates[i]` per second from `edges[i]` to `edges[i + 1]`, with the expected number of arrivals.

    Given their number, arrivals are independent draws with a density proportional to the rate (Çinlar, Introduction to
    Stochastic Processes, 4.7): uniform draws of the expected count are mapped to instants by its inverse.
    """
    expected = np.concatenate([[0.0], np.cumsum(np.diff(edges) * np.asarray(rates))])
    count = max(1, round(float(expected[-1])))
    return np.interp(np.sort(rng.uniform(0.0, expected[-1], count)), expected, edges)


def burst(load: Load, rng: Rng) -> Floats:
    """Poisson arrivals at `rate`, and at `peak` within each burst."""
    edges, rates = [0.0], list[float]()
    for begin, end in load.bursts:
        edges += [begin, end]
        rates += [load.rate, load.peak or load.rate]
    return stepped([*edges, load.duration], [*rates, load.rate], rng)


def mmpp(load: Load, rng: Rng) -> Floats:
    """Markov-modulated Poisson process with two rates (Fischer and Meier-Hellstern 1993).

    It starts in its stationary state. The durations of both states are exponential.
    """
    busy, every = load.lasts or 0.0, load.every or 1.0
    is_busy = bool(rng.random() < busy / every)
    edges, rates = [0.0], list[float]()
    while edges[-1] < load.duration:
        spell = rng.exponential(busy if is_busy else every - busy)
        edges.append(min(edges[-1] + spell, load.duration))
        rates.append((load.peak or load.rate) if is_busy else load.rate)
        is_busy = not is_busy
    return stepped(edges, rates, rng)


def staged(stages: Sequence[Stage], rng: Rng) -> Floats:
    """Poisson arrivals at the rate of one stage after another, with the expected number of arrivals.

    Drawn as by `stepped`. Within a stage the expected count is r·t + g·t²/2 with slope g; it is inverted by solving for
    t, in the form of the quadratic that stays exact where the slope is small, and finite where the rate is 0.
    """
    begins = np.cumsum([0.0, *(stage.duration for stage in stages)])
    expected = np.cumsum([0.0, *(stage.expected for stage in stages)])
    draws = np.sort(rng.uniform(0.0, expected[-1], max(1, round(float(expected[-1])))))
    number = np.searchsorted(expected[1:-1], draws, side="right")
    rates = np.array([stage.rate for stage in stages])
    slopes = np.array([(stage.end_rate - stage.rate) / stage.duration for stage in stages])
    rate, slope, within = rates[number], slopes[number], draws - expected[number]
    root = np.sqrt(np.maximum(rate**2 + 2 * slope * within, np.finfo(float).tiny))
    return np.asarray(np.minimum(begins[number] + 2 * within / (rate + root), begins[number + 1]))


def ramp(load: Load, rng: Rng) -> Floats:
    """Poisson arrivals whose rate changes linearly from `rate` to `peak`."""
    return staged([Stage(rate=load.rate, to=load.peak, duration=load.duration)], rng)


def replay(load: Load, rng: Rng) -> Floats:
    """The first `duration` seconds of a recording; quantised instants are spread. Raises `BadInputError`."""
    file = load.file or ""
    instants = recorded(file)
    return spread(instants[instants < load.duration], quantum_of(file), rng)


KINDS: dict[Arrivals, Callable[[Load, Rng], Floats]] = {
    "poisson": lambda load, rng: poisson(load.mean_rate, load.planned, rng),
    "constant": lambda load, rng: constant(load.rate, load.planned),
    "burst": burst,
    "mmpp": mmpp,
    "ramp": ramp,
    "stages": lambda load, rng: staged(load.stages, rng),
    "replay": replay,
}


def first_instants(load: Load, seed: int, time_scale: float) -> Floats:
    """Instants known before the run in measured seconds: all of an open loop, the first batch of a closed one."""
    if load.mode == "closed":
        return closed(load.batch, load.planned)
    return KINDS[load.arrivals](load, stream("arrivals", seed)) * time_scale


def requests_of(load: Load, seed: int) -> int:
    """Number of requests of a run in the block with this seed."""
    return len(first_instants(load, seed, 1.0)) if load.arrivals == "mmpp" else load.planned
