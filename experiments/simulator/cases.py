"""What the certificate holds the simulator to: a system that theory has solved, and what is simulated of it.

Rule of this file: a case is a name, the closed form's number, how far off the simulated one may be, and how to get it.
Service takes 1 on average unless something else is said. All is deterministic by seed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from experiments.load.arrivals import poisson
from experiments.load.samples import Floats
from experiments.simulator import theory
from experiments.simulator.columns import Columns
from experiments.simulator.model import HedgeModel, Mechanisms, Model, WorkerModel
from experiments.simulator.simulation import Simulation
from workers.service import Exponential, Fixed, Lognormal, Profile

SKIPPED = 0.05
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


def farm(count: int, policy: Mapping[str, Any], service: Profile | None = None, **rest: Any) -> Model:
    """So many equal workers."""
    profile = service if service is not None else Exponential(1.0)
    workers = tuple(WorkerModel(f"w{n}", service=profile, **rest) for n in range(count))
    return Model(workers=workers, policy=policy)


def simulated(model: Model, rate: float, samples: int, seed: int) -> Columns:
    """Poisson arrivals into an empty system."""
    instants = poisson(rate, samples, np.random.default_rng([0xCE27, seed]))
    return Simulation(model, seed).open(instants)


def times(columns: Columns) -> Floats:
    """Seconds in the system of those who succeeded after it had filled."""
    first = int(len(columns.due) * SKIPPED)
    taken = np.frombuffer(columns.ended)[first:] - np.frombuffer(columns.due)[first:]
    return np.asarray(taken[np.frombuffer(columns.kind, dtype=np.int8)[first:] == 0])


def mean_of(model: Model, rate: float) -> Callable[[int, int], float]:
    """The mean time in the system."""
    return lambda samples, seed: float(times(simulated(model, rate, samples, seed)).mean())


def quantile_of(model: Model, rate: float, q: float) -> Callable[[int, int], float]:
    """A quantile of it."""
    return lambda samples, seed: float(np.quantile(times(simulated(model, rate, samples, seed)), q))


RANDOM = {"name": "random"}
IN_TURN = {"name": "round-robin"}
TWO = {"name": "least-in-flight"}
THREE = {"name": "least-in-flight", "choices": 3}


def single_servers() -> list[Case]:
    """M/M/1, M/G/1 and processor sharing; random choice makes n of them."""
    one = farm(1, RANDOM)
    many = farm(20, RANDOM)
    rho, c2 = 0.5, float(np.exp(0.5**2) - 1)
    shared = {"discipline": "shared"}
    return [
        Case("M/M/1, ρ .5, mean", theory.mm1_mean(0.5), ONE_PERCENT, 600_000, mean_of(one, 0.5)),
        Case("random over 20, ρ .7, mean", theory.mm1_mean(0.7), ONE_PERCENT, 1_200_000, mean_of(many, 14.0)),
        Case("random over 20, ρ .5, p99", theory.mm1_quantile(0.5, 0.99), ONE_PERCENT, 800_000, quantile_of(many, 10.0, 0.99)),
        Case("M/D/1, ρ .5, mean", 1 + theory.mg1_wait(rho, 0.0), ONE_PERCENT, 300_000, mean_of(farm(1, RANDOM, Fixed(1.0)), rho)),
        Case("M/G/1 lognormal σ .5, ρ .5, mean", 1 + theory.mg1_wait(rho, c2), ONE_PERCENT, 400_000, mean_of(farm(1, RANDOM, Lognormal(1.0, 0.5)), rho)),
        Case("M/M/1 shared, ρ .5, mean", theory.mm1_mean(rho), ONE_PERCENT, 600_000, mean_of(farm(1, RANDOM, **shared), rho)),
        Case("M/D/1 shared, ρ .5, mean", theory.mm1_mean(rho), ONE_PERCENT, 300_000, mean_of(farm(1, RANDOM, Fixed(1.0), **shared), rho)),
    ]


def many_servers() -> list[Case]:
    """M/M/c, the same behind a central queue, join the shortest queue, and the loss system."""
    def lost(samples: int, seed: int) -> float:
        columns = simulated(farm(1, RANDOM, slots=5, queue=0), 4.0, samples, seed)
        return float(np.mean(np.frombuffer(columns.kind, dtype=np.int8) != 0))

    central = farm(10, {"name": "oracle-central-queue"})
    return [
        Case("M/M/2, ρ .7, mean", 1 + theory.mmc_wait(0.7, 2), ONE_PERCENT, 600_000, mean_of(farm(1, RANDOM, slots=2), 1.4)),
        Case("M/M/10, ρ .9, mean", 1 + theory.mmc_wait(0.9, 10), ONE_PERCENT, 600_000, mean_of(farm(1, RANDOM, slots=10), 9.0)),
        Case("M/M/100, ρ .9, mean", 1 + theory.mmc_wait(0.9, 100), ONE_PERCENT, 200_000, mean_of(farm(1, RANDOM, slots=100), 90.0)),
        Case("central queue of 10, ρ .8, mean", 1 + theory.mmc_wait(0.8, 10), ONE_PERCENT, 200_000, mean_of(central, 8.0)),
        Case("Erlang B, 5 slots, load 4, loss", theory.erlang_b(4.0, 5), ONE_PERCENT, 400_000, lost),
    ]


def turns_and_choices() -> list[Case]:
    """Round-robin, and choices among very many queues."""
    def queues(policy: Mapping[str, Any], rho: float) -> Callable[[int, int], float]:
        return mean_of(farm(500, policy), 500 * rho)

    work = {"name": "oracle-least-work-of-two"}
    return [
        Case("round-robin over 2, ρ .7, mean", theory.erlang_m1_mean(0.7, 2), ONE_PERCENT, 800_000, mean_of(farm(2, IN_TURN), 1.4)),
        Case("round-robin over 10, ρ .7, mean", theory.erlang_m1_mean(0.7, 10), ONE_PERCENT, 600_000, mean_of(farm(10, IN_TURN), 7.0)),
        Case("two choices of 500, ρ .7, mean", theory.power_of_d_mean(0.7, 2), THREE_PERCENT, 150_000, queues(TWO, 0.7)),
        Case("two choices of 500, ρ .9, mean", theory.power_of_d_mean(0.9, 2), THREE_PERCENT, 300_000, queues(TWO, 0.9)),
        Case("three choices of 500, ρ .9, mean", theory.power_of_d_mean(0.9, 3), THREE_PERCENT, 200_000, queues(THREE, 0.9)),
        *(
            Case(f"least work of two of 500, ρ {rho}, mean", mean, THREE_PERCENT, 150_000, queues(work, rho))
            for rho, mean in theory.LEAST_WORK_OF_TWO.items()
        ),
    ]


def splits() -> list[Case]:
    """The best static split, without and with distance."""
    def split_model(speeds: Sequence[float], rtt: Sequence[float], rate: float) -> Model:
        pairs = enumerate(zip(speeds, rtt, strict=True))
        workers = tuple(WorkerModel(f"w{n}", speed=s, rtt=r, setup_rtts=0) for n, (s, r) in pairs)
        return Model(workers=workers, policy={"name": "oracle-static-split", "rate": rate})

    near, far = (4.0, 4.0, 1.0), (4.0, 4.0, 4.0)
    nowhere, away = (0.0, 0.0, 0.0), (0.1, 0.2, 0.6)
    return [
        Case("static split {4, 4, 1}, mean", theory.static_split(near, 5.4)[1], ONE_PERCENT, 800_000, mean_of(split_model(near, nowhere, 5.4), 5.4)),
        Case("static split with distance, mean", theory.static_split(far, 5.0, away)[1], ONE_PERCENT, 400_000, mean_of(split_model(far, away, 5.0), 5.0)),
    ]


def hedges() -> list[Case]:
    """A second request a fixed time after the first, where nobody waits."""
    after = 0.7
    mechanisms = Mechanisms(hedging=HedgeModel(after=after))
    workers = tuple(WorkerModel(f"w{n}", slots=64) for n in range(4))
    model = Model(workers=workers, policy=RANDOM, mechanisms=mechanisms)

    def share(samples: int, seed: int) -> float:
        attempts = np.frombuffer(simulated(model, 8.0, samples, seed).attempts, dtype=np.int8)
        return float(attempts.mean() - 1)

    return [
        Case("hedge after .7, mean", theory.hedged_mean(after), ONE_PERCENT, 100_000, mean_of(model, 8.0)),
        Case("hedge after .7, extra load", theory.hedged_share(after), ONE_PERCENT, 100_000, share),
    ]


def cases() -> list[Case]:
    """All of them."""
    return [*single_servers(), *many_servers(), *turns_and_choices(), *splits(), *hedges()]
