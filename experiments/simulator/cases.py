"""What the certificate holds the simulator to: a system that theory has solved, and what is simulated of it.

Rule of this file: a case is a name, the closed form's number, how far off the simulated one may be, and how to get it.
Service takes 1 on average unless something else is said. All is deterministic by seed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import exp
from typing import Any

import numpy as np

from experiments.load.arrivals import poisson
from experiments.load.samples import Floats
from experiments.simulator import theory
from experiments.simulator.columns import Columns
from experiments.simulator.model import HedgeModel, Mechanisms, Model, WorkerModel
from experiments.simulator.simulation import Simulation
from workers.service import Exponential, Fixed, Lognormal, Profile

MEMORYLESS = Exponential(1.0)

SKIPPED = 0.1
"""Share of the requests that come while the empty system fills, and are not looked at."""

ONE_PERCENT = 0.01
THREE_PERCENT = 0.03
"""For many queues that theory takes for infinitely many."""


@dataclass(frozen=True, slots=True)
class Case:
    """`simulated(samples, seed)` is the number for so many requests. `samples` are enough for the bound."""

    name: str
    theory: float
    bound: float
    samples: int
    simulated: Callable[[int, int], float]

    def error(self, simulated: float) -> float:
        """By how much of theory's number it is off."""
        return simulated / self.theory - 1


def farm(count: int, policy: Mapping[str, Any], service: Profile = MEMORYLESS, **rest: Any) -> Model:
    """So many equal workers."""
    workers = tuple(WorkerModel(f"w{n}", service=service, **rest) for n in range(count))
    return Model(workers=workers, policy=policy)


def simulated(model: Model, rate: float, samples: int, seed: int) -> Columns:
    """Poisson arrivals into an empty system."""
    instants = poisson(rate, samples, np.random.default_rng([0xCE27, seed]))
    return Simulation(model, seed).open(instants)


def times(columns: Columns) -> Floats:
    """Seconds in the system of those who succeeded after it had filled."""
    first = int(columns.count * SKIPPED)
    return np.asarray(columns.latencies[first:][columns.kinds[first:] == 0])


def mean(
    name: str, number: float, model: Model, rate: float, samples: int, bound: float = ONE_PERCENT
) -> Case:
    """The mean time in the system at `rate`."""
    return Case(
        f"{name}, mean",
        number,
        bound,
        samples,
        lambda count, seed: float(times(simulated(model, rate, count, seed)).mean()),
    )


RANDOM = {"name": "random"}
IN_TURN = {"name": "round-robin"}
TWO = {"name": "least-in-flight"}
THREE = {"name": "least-in-flight", "choices": 3}
LEAST_WORK = {"name": "oracle-least-work-of-two"}
SHARED: dict[str, Any] = {"discipline": "shared"}


def single_servers() -> list[Case]:
    """M/M/1, M/G/1 and processor sharing; random choice makes n of them."""
    many, half = farm(20, RANDOM), theory.mm1_mean(0.5)
    deterministic, skewed = 1 + theory.mg1_wait(0.5, 0.0), 1 + theory.mg1_wait(0.5, exp(0.25) - 1)

    def late(count: int, seed: int) -> float:
        return float(np.quantile(times(simulated(many, 10.0, count, seed)), 0.9))

    return [
        mean("M/M/1, ρ .5", half, farm(1, RANDOM), 0.5, 500_000),
        mean("random over 20, ρ .7", theory.mm1_mean(0.7), many, 14.0, 800_000),
        Case("random over 20, ρ .5, p90", theory.mm1_quantile(0.5, 0.9), ONE_PERCENT, 500_000, late),
        mean("M/D/1, ρ .5", deterministic, farm(1, RANDOM, Fixed(1.0)), 0.5, 150_000),
        mean("M/G/1 lognormal, ρ .5", skewed, farm(1, RANDOM, Lognormal(1.0, 0.5)), 0.5, 300_000),
        mean("M/M/1 shared, ρ .5", half, farm(1, RANDOM, **SHARED), 0.5, 500_000),
        mean("M/D/1 shared, ρ .5", half, farm(1, RANDOM, Fixed(1.0), **SHARED), 0.5, 250_000),
    ]


def many_servers() -> list[Case]:
    """M/M/c, the same behind a central queue, and the loss system."""

    def lost(count: int, seed: int) -> float:
        return float(np.mean(simulated(farm(1, RANDOM, slots=5, queue=0), 4.0, count, seed).kinds != 0))

    def waited(rho: float, c: int) -> float:
        return 1 + theory.mmc_wait(rho, c)

    central = farm(10, {"name": "oracle-central-queue"})
    return [
        mean("M/M/2, ρ .7", waited(0.7, 2), farm(1, RANDOM, slots=2), 1.4, 600_000),
        mean("M/M/10, ρ .8", waited(0.8, 10), farm(1, RANDOM, slots=10), 8.0, 250_000),
        mean("M/M/100, ρ .9", waited(0.9, 100), farm(1, RANDOM, slots=100), 90.0, 150_000),
        mean("central queue of 10, ρ .8", waited(0.8, 10), central, 8.0, 250_000),
        Case("Erlang B, 5 slots, load 4, loss", theory.erlang_b(4.0, 5), ONE_PERCENT, 250_000, lost),
    ]


def turns() -> list[Case]:
    """Round-robin."""
    return [
        mean("round-robin over 2, ρ .7", theory.erlang_m1_mean(0.7, 2), farm(2, IN_TURN), 1.4, 600_000),
        mean("round-robin over 10, ρ .7", theory.erlang_m1_mean(0.7, 10), farm(10, IN_TURN), 7.0, 400_000),
    ]


def choices() -> list[Case]:
    """A few of very many queues: 500, at 3 %."""

    def of_500(name: str, number: float, policy: Mapping[str, Any], rho: float, samples: int) -> Case:
        return mean(f"{name} of 500, ρ {rho}", number, farm(500, policy), 500 * rho, samples, THREE_PERCENT)

    return [
        of_500("two choices", theory.power_of_d_mean(0.7, 2), TWO, 0.7, 100_000),
        of_500("two choices", theory.power_of_d_mean(0.9, 2), TWO, 0.9, 400_000),
        of_500("three choices", theory.power_of_d_mean(0.9, 3), THREE, 0.9, 300_000),
        of_500("least work of two", theory.LEAST_WORK_OF_TWO[0.5], LEAST_WORK, 0.5, 100_000),
        of_500("least work of two", theory.LEAST_WORK_OF_TWO[0.7], LEAST_WORK, 0.7, 100_000),
        of_500("least work of two", theory.LEAST_WORK_OF_TWO[0.9], LEAST_WORK, 0.9, 300_000),
    ]


def splits() -> list[Case]:
    """The best static split, without and with distance."""

    def split(name: str, speeds: Sequence[float], rtts: Sequence[float], rate: float, samples: int) -> Case:
        pairs = enumerate(zip(speeds, rtts, strict=True))
        workers = tuple(WorkerModel(f"w{n}", speed=s, rtt=r, setup_rtts=0) for n, (s, r) in pairs)
        model = Model(workers=workers, policy={"name": "oracle-static-split", "rate": rate})
        return mean(name, theory.static_split(speeds, rate, rtts)[1], model, rate, samples)

    return [
        split("static split {4, 4, 1}", (4.0, 4.0, 1.0), (0.0, 0.0, 0.0), 5.4, 700_000),
        split("static split with distance", (4.0, 4.0, 4.0), (0.1, 0.2, 0.6), 5.0, 250_000),
    ]


def hedges() -> list[Case]:
    """A second request a fixed time after the first, where nobody waits."""
    after = 0.7
    mechanisms = Mechanisms(hedging=HedgeModel(after=after))
    workers = tuple(WorkerModel(f"w{n}", slots=64) for n in range(4))
    model = Model(workers=workers, policy=RANDOM, mechanisms=mechanisms)

    def share(count: int, seed: int) -> float:
        return float(simulated(model, 8.0, count, seed).attempts.mean() - 1)

    return [
        mean("hedge after .7", theory.hedged_mean(after), model, 8.0, 100_000),
        Case("hedge after .7, extra load", theory.hedged_share(after), ONE_PERCENT, 100_000, share),
    ]


def cases() -> list[Case]:
    """All of them."""
    return [*single_servers(), *many_servers(), *turns(), *choices(), *splits(), *hedges()]
