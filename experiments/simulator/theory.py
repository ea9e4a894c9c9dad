"""Closed forms of queueing theory, with which the simulator is validated.

Pure arithmetic. The mean service time is 1, so times are in services; `rho` is the load of one server, `c` the number
of servers, `n` the number of queues.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, log, sqrt


def mm1_mean(rho: float) -> float:
    """Mean sojourn time in M/M/1, in mean service times."""
    return 1 / (1 - rho)


def mm1_quantile(rho: float, q: float) -> float:
    """Quantile `q` (0..1) of the sojourn time in M/M/1."""
    return -log(1 - q) / (1 - rho)


def erlang_b(load: float, c: int) -> float:
    """Loss probability of `c` servers without a queue under an offered load of `load` servers (Erlang 1917)."""
    blocked = 1.0
    for k in range(1, c + 1):
        blocked = load * blocked / (k + load * blocked)
    return blocked


def mmc_wait(rho: float, c: int) -> float:
    """Mean wait in M/M/c (Erlang C)."""
    blocked = erlang_b(rho * c, c)
    waits = blocked / (1 - rho * (1 - blocked))
    return waits / (c * (1 - rho))


def mg1_wait(rho: float, c2: float) -> float:
    """Mean wait in M/G/1, `c2` the squared coefficient of variation of service (Pollaczek, Khinchine)."""
    return rho * (1 + c2) / (2 * (1 - rho))


def erlang_m1_mean(rho: float, n: int) -> float:
    """Mean sojourn time in Erlang-n/M/1: every n-th arrival of a Poisson stream goes to one of `n` servers."""
    sigma = rho
    for _ in range(10_000):
        sigma = (n * rho / (n * rho + 1 - sigma)) ** n
    return 1 / (1 - sigma)


def power_of_d_mean(rho: float, d: int) -> float:
    """Mean sojourn time when each joins the shortest of `d` queues drawn from very many (Mitzenmacher 1996)."""
    total, i = 0.0, 1
    while True:
        term = float(rho ** ((d**i - d) / (d - 1)))
        if term < 1e-15:
            return total
        total += term
        i += 1


LEAST_WORK_OF_TWO = {0.5: 1.1507, 0.7: 1.3742, 0.9: 2.0503}
"""Mean sojourn time when each joins the least work of two queues drawn from very many, by load (Hellemans and Van
Houdt, SIGMETRICS 2018: solved numerically).
"""


def static_split(
    mu: Sequence[float], rate: float, rtt: Sequence[float] | None = None
) -> tuple[list[float], float]:
    """Optimal constant split of a Poisson stream over M/M/1 servers of rates `mu` at round trips `rtt`.

    Returns the rates and the mean time. With α the marginal cost of one more request, λ_i = μ_i − √(μ_i/(α − r_i))
    where that is positive. Raises `ValueError` when `rate` exceeds the capacity.
    """
    trips = rtt if rtt is not None else [0.0] * len(mu)

    def split(price: float) -> list[float]:
        return [
            m - sqrt(m / (price - r)) if price > r + 1 / m else 0.0 for m, r in zip(mu, trips, strict=True)
        ]

    low, high = 0.0, 1.0
    while sum(split(high)) < rate:
        high *= 2
        if high == inf or high > 1e12:
            raise ValueError(f"a rate of {rate} is more than the {sum(mu)} that all can serve")
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if sum(split(middle)) < rate else (low, middle)
    rates = split(high)
    mean = sum(a / rate * (1 / (m - a) + r) for a, m, r in zip(rates, mu, trips, strict=True) if a > 0)
    return rates, mean
