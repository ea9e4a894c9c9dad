"""Queueing systems with a known closed form, to validate the simulator.

A case is a name, the value of the closed form, the allowed relative error and the function that simulates it. The mean
service time is 1 unless stated otherwise. Deterministic by seed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import exp
from typing import Any

import numpy as np

from experiments.generator.arrivals import poisson
from experiments.platform.session import BoundVerdict, Session
from experiments.run_data import Floats
from experiments.simulator import theory
from experiments.simulator.columns import Columns
from experiments.simulator.model import Model, WorkerModel
from experiments.simulator.simulation import Simulation
from workers.service import Exponential, Fixed, Lognormal, Profile

STEP = 1e-4
"""Step of the numerical derivative."""

MEMORYLESS = Exponential(1.0)

SKIPPED_SHARE = 0.1
"""Share of requests at the start that are dropped as warm-up: the system starts empty."""

ONE_PERCENT = 0.01
THREE_PERCENT = 0.03
"""Allowed error where theory assumes infinitely many queues."""


Form = Callable[[float], float]
"""A closed form as a function of the load."""


@dataclass(frozen=True, slots=True)
class SpeedCase:
    """One case. `simulated(count, seed)` returns the value from `count` requests; `samples` suffice for the bound."""

    name: str
    theory: float
    bound: float
    samples: int
    simulated: Callable[[int, int], float]

    def error(self, simulated: float) -> float:
        return simulated / self.theory - 1


def farm(count: int, policy: Mapping[str, Any], service: Profile = MEMORYLESS, **rest: Any) -> Model:
    """Model of `count` equal workers."""
    workers = tuple(WorkerModel(f"w{n}", service=service, **rest) for n in range(count))
    return Model(workers=workers, policy=policy)


def simulated(model: Model, rate: float, samples: int, seed: int) -> Simulation:
    """Simulate Poisson arrivals into an empty system."""
    instants = poisson(rate, samples, np.random.default_rng([0xCE27, seed]))
    simulation = Simulation(model, seed)
    simulation.open(instants)
    return simulation


def times(columns: Columns) -> Floats:
    """Times in the system, in seconds, of successful requests after the warm-up."""
    first = int(columns.count * SKIPPED_SHARE)
    return np.asarray(columns.latencies[first:][columns.kinds[first:] == 0])


def mean(
    name: str, form: Form, model: Model, rho: float, samples: int, bound: float = ONE_PERCENT
) -> SpeedCase:
    """Case of the mean time in the system of workers of speed 1 at load `rho`, of which `form` is the closed form.

    The mean of the drawn service times is a control variate: if they took s times what they should on average, theory
    says s·form(ρ·s), and the difference, to first order, is subtracted. That halves the samples needed.
    """
    slots = sum(worker.slots for worker in model.workers)
    slope = form(rho) + rho * (form(rho + STEP) - form(rho - STEP)) / (2 * STEP)

    def number(count: int, seed: int) -> float:
        simulation = simulated(model, rho * slots, count, seed)
        return float(times(simulation.columns).mean()) - slope * (drawn(simulation) - 1)

    return SpeedCase(f"{name}, ρ {rho}, mean", form(rho), bound, samples, number)


def drawn(simulation: Simulation) -> float:
    """Mean of the service times that were drawn."""
    workers = simulation.fleet.workers.values()
    stations = [worker.slots if worker.shared is None else worker.shared for worker in workers]
    return sum(station.work for station in stations) / sum(station.admitted for station in stations)


RANDOM = {"name": "random"}
IN_TURN = {"name": "round-robin"}
TWO = {"name": "least-in-flight"}
THREE = {"name": "least-in-flight", "choices": 3}
LEAST_WORK = {"name": "oracle-least-work-of-two"}
SHARED: dict[str, Any] = {"discipline": "shared"}


def single_servers() -> list[SpeedCase]:
    """M/M/1, M/G/1 and processor sharing; random choice splits arrivals into n such queues."""
    one, many = farm(1, RANDOM), farm(20, RANDOM)
    skewed = farm(1, RANDOM, Lognormal(1.0, 0.5))

    def late(count: int, seed: int) -> float:
        return float(np.quantile(times(simulated(many, 10.0, count, seed).columns), 0.9))

    return [
        mean("M/M/1", theory.mm1_mean, one, 0.5, 400_000),
        mean("random over 20", theory.mm1_mean, many, 0.5, 400_000),
        SpeedCase("random over 20, ρ 0.5, p90", theory.mm1_quantile(0.5, 0.9), ONE_PERCENT, 300_000, late),
        mean("M/D/1", lambda rho: 1 + theory.mg1_wait(rho, 0.0), farm(1, RANDOM, Fixed(1.0)), 0.5, 150_000),
        mean("M/G/1 lognormal", lambda rho: 1 + theory.mg1_wait(rho, exp(0.25) - 1), skewed, 0.5, 200_000),
        mean("M/M/1 shared", theory.mm1_mean, farm(1, RANDOM, **SHARED), 0.5, 250_000),
        mean("M/D/1 shared", theory.mm1_mean, farm(1, RANDOM, Fixed(1.0), **SHARED), 0.5, 200_000),
    ]


def many_servers() -> list[SpeedCase]:
    """M/M/c, the same with a central queue, and the Erlang B loss system."""

    def lost(count: int, seed: int) -> float:
        simulation = simulated(farm(1, RANDOM, slots=5, queue=0), 4.0, count, seed)
        return float(np.mean(simulation.columns.kinds != 0))

    def waited(c: int) -> Form:
        return lambda rho: 1 + theory.mmc_wait(rho, c)

    central = farm(10, {"name": "oracle-central-queue"})
    return [
        mean("M/M/2", waited(2), farm(1, RANDOM, slots=2), 0.6, 400_000),
        mean("M/M/10", waited(10), farm(1, RANDOM, slots=10), 0.8, 250_000),
        mean("M/M/100", waited(100), farm(1, RANDOM, slots=100), 0.9, 100_000),
        mean("central queue of 10", waited(10), central, 0.8, 250_000),
        SpeedCase("Erlang B, 5 slots, load 4, loss", theory.erlang_b(4.0, 5), ONE_PERCENT, 250_000, lost),
    ]


def turns() -> list[SpeedCase]:
    """Round-robin: Erlang arrivals at each M/1 queue."""

    def form(n: int) -> Form:
        return lambda rho: theory.erlang_m1_mean(rho, n)

    return [
        mean("round-robin over 2", form(2), farm(2, IN_TURN), 0.7, 500_000),
        mean("round-robin over 10", form(10), farm(10, IN_TURN), 0.7, 400_000),
    ]


def choices() -> list[SpeedCase]:
    """Power of d choices among 500 queues, within 3 %."""

    def of_500(name: str, form: Form, policy: Mapping[str, Any], rho: float, samples: int) -> SpeedCase:
        return mean(f"{name} of 500", form, farm(500, policy), rho, samples, THREE_PERCENT)

    def two(rho: float) -> float:
        return theory.power_of_d_mean(rho, 2)

    def three(rho: float) -> float:
        return theory.power_of_d_mean(rho, 3)

    def work(rho: float) -> float:
        known = theory.LEAST_WORK_OF_TWO
        return float(np.interp(rho, list(known), list(known.values())))

    return [
        of_500("two choices", two, TWO, 0.7, 100_000),
        of_500("two choices", two, TWO, 0.9, 250_000),
        of_500("three choices", three, THREE, 0.9, 200_000),
        of_500("least work of two", work, LEAST_WORK, 0.5, 60_000),
        of_500("least work of two", work, LEAST_WORK, 0.7, 100_000),
        of_500("least work of two", work, LEAST_WORK, 0.9, 200_000),
    ]


def splits() -> list[SpeedCase]:
    """Optimal static split of the load, without and with network distance."""

    def split(
        name: str, speeds: Sequence[float], rtts: Sequence[float], rate: float, samples: int
    ) -> SpeedCase:
        pairs = enumerate(zip(speeds, rtts, strict=True))
        workers = tuple(WorkerModel(f"w{n}", speed=s, rtt=r, setup_rtts=0) for n, (s, r) in pairs)
        model = Model(workers=workers, policy={"name": "oracle-static-split", "rate": rate})

        def number(count: int, seed: int) -> float:
            return float(times(simulated(model, rate, count, seed).columns).mean())

        return SpeedCase(
            f"{name}, mean", theory.static_split(speeds, rate, rtts)[1], ONE_PERCENT, samples, number
        )

    return [
        split("static split {4, 4, 1}", (4.0, 4.0, 1.0), (0.0, 0.0, 0.0), 5.4, 400_000),
        split("static split with distance", (4.0, 4.0, 4.0), (0.1, 0.2, 0.6), 5.0, 200_000),
    ]


def cases() -> list[SpeedCase]:
    return [*single_servers(), *many_servers(), *turns(), *choices(), *splits()]


SEED = 1


def certify(session: Session, samples: float, chosen: Sequence[SpeedCase] | None = None) -> int:
    """Simulate every case with `samples` times the usual number and present; returns the exit code."""
    verdicts: list[BoundVerdict] = []
    session.say(f"Simulated beside closed forms, seed {SEED}, {samples:g} times the usual samples.")
    chosen = cases() if chosen is None else chosen
    with session.interruptible(len(chosen)):
        for case in chosen:
            began_at = time.process_time()
            verdicts.append(verdict_on(case, samples))
            session.run_ended(case.name, f"{time.process_time() - began_at:.1f} s")
    within = sum(verdict.is_met is True for verdict in verdicts)
    return session.conclude(verdicts, doubt=f"{within} of {len(verdicts)} within their bounds.")


def verdict_on(case: SpeedCase, samples: float) -> BoundVerdict:
    count = max(1, round(case.samples * samples))
    simulated = case.simulated(count, SEED)
    error = case.error(simulated)
    found = f"{simulated:.4f} simulated, {case.theory:.4f} in theory, {error:+.2%}, {count:,} requests"
    return BoundVerdict(case.name, f"within {case.bound:.0%} of theory", abs(error) <= case.bound, found)
