"""Rows of recorded requests, made by a queue."""

from __future__ import annotations

import numpy as np

from tests.experiments.tapes import Row


def served(
    rate: float, slots: int, rtt: float, means: list[float], *, reports: bool, seed: int = 1
) -> list[Row]:
    """Poisson arrivals at workers of `slots` slots each, round robin, first come first served."""
    rng = np.random.default_rng(seed)
    free = [[0.0] * slots for _ in means]
    rows, at = [], 0.0
    for number in range(6000):
        at += rng.exponential(1 / rate)
        worker = number % len(means)
        service = means[worker] * rng.uniform(0.8, 1.2)
        slot = int(np.argmin(free[worker]))
        start = max(at + rtt / 2, free[worker][slot])
        free[worker][slot] = start + service
        latency = start + service + rtt / 2 - at
        rows.append(Row(at, worker, latency, service if reports else float("nan")))
    return rows
