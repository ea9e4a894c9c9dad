"""Runs of `experiments live`: a period of a policy on a balancer under its own traffic, as rows of its histograms.

before     the initial policy for one period: reference of the rails, and check that there is traffic
block 1    each policy for one period, in random order; its wash-out does not count
block 2    …
"""

from __future__ import annotations

from functools import partial
from typing import Final

import numpy as np

from experiments.errors import BadInputError
from experiments.measured.runner import faults, run_loop
from experiments.platform.build import versions
from experiments.platform.printable import LONGEST_NAME, printable
from experiments.platform.terminal import in_ms
from experiments.results.directory import PlannedRun
from experiments.run_data import Kind, Place, Run, RunFacts, Samples, WorldName
from experiments.running.runner import Observer
from experiments.scenario.scenario import Scenario
from experiments.scenario.service import LiveScenario
from experiments.stats.measures import INTERRUPTED
from experiments.switchback.readings import MIN_REQUESTS, MetricsWindow
from experiments.switchback.turns import PolicyTurns, status_of
from experiments.verdict.phrases import tail_text

ROWS_PER_BUCKET = 16
"""Most rows of a bucket, which is a tenth wide: they lie within half a percent of where it is interpolated."""


class LiveRunner:
    """Gives each planned run its turn at a running balancer. Implements `Runner`."""

    name: Final[WorldName] = "measured"

    def __init__(self, turns: PolicyTurns) -> None:
        self._turns = turns

    def run(self, scenario: Scenario, planned: PlannedRun, observer: Observer) -> Run:
        """Observe the run's policy for a period. Raises `ExperimentError` and `KeyboardInterrupt`."""
        assert isinstance(scenario, LiveScenario)
        return run_loop(self._observe(scenario, planned))

    async def _observe(self, scenario: LiveScenario, planned: PlannedRun) -> Run:
        turns = self._turns
        if turns.rails is None:
            await self._observe_initial(scenario)
        began = turns.now()
        await turns.apply(scenario.entry(planned.label).policy.model_dump())
        await turns.observe(began + scenario.washout)
        return run_of(scenario, planned, await turns.observe(began + scenario.period))

    async def _observe_initial(self, scenario: LiveScenario) -> None:
        window = await self._turns.observe_initial(partial(self._turns.sleep, scenario.period))
        if window.answered < MIN_REQUESTS:
            raise BadInputError(
                f"URL: {window.answered} requests were answered in {scenario.period:g} s, too few to compare; "
                f"--block must be long enough for {MIN_REQUESTS}"
            )
        self._turns.notify(f"before: {window_in_words(window)}")


def window_in_words(window: MetricsWindow) -> str:
    """Text such as `120.3/s, p50 21 ms, p99 48 ms, errors 0.00%`."""
    tail = tail_text(window.answered, window.quantile)
    return f"{window.rate:.1f}/s, p50 {in_ms(window.quantile(0.5))}{tail}, errors {window.error_share:.2%}"


def run_of(scenario: LiveScenario, planned: PlannedRun, window: MetricsWindow) -> Run:
    """The window as a run: rows for the successes of each endpoint by bucket, and one for each kind of failure."""
    policy = scenario.entry(planned.label).policy.model_dump()
    status, samples = status_of(policy, window), samples_of(window)
    silent = () if samples.requests else (f"{INTERRUPTED}: no request ended",)
    facts = RunFacts(
        label=planned.label,
        policy=policy,
        mode="open",
        achieved_rate=window.rate,
        requests=samples.requests,
        block=planned.block,
        order=planned.order,
        seed=planned.seed,
        timeout=scenario.timeout,
        seconds=window.seconds,
        places=tuple(Place(worker=printable(id_)[:LONGEST_NAME], region="") for id_ in window.by_endpoint),
        invalid_reasons=(*silent, *faults(status)),
        status=status,
        versions=versions(),
    )
    return Run(facts, samples)


def samples_of(window: MetricsWindow) -> Samples:
    """Rows of the window, whose latencies are spread evenly over the logarithm of their bucket."""
    rows = [
        (latency, count, endpoint, Kind.OK)
        for endpoint, counts in enumerate(window.by_endpoint.values())
        for bucket in np.flatnonzero(counts)
        for latency, count in spread(window, int(bucket), int(counts[bucket]))
    ]
    ends = ((window.errors, Kind.ERROR_STATUS), (window.abandoned, Kind.ABANDONED))
    failures = [(np.nan, count, -1, kind) for count, kind in ends if count]
    table = np.array([*rows, *failures], dtype=np.float64).reshape(-1, 4)
    latency, (weight, worker, kind) = table[:, 0].copy(), table[:, 1:].T.astype(np.int64)
    zeros = np.zeros(len(latency))
    none = np.zeros(len(latency), dtype=np.int64)
    return Samples(
        scheduled_at=zeros,
        sent_at=zeros,
        first_byte_at=zeros + np.nan,
        ended_at=latency,
        status=none,
        kind=kind,
        worker=worker,
        region=np.minimum(worker, 0),
        sequence=np.arange(len(latency)),
        attempts=none,
        weight=weight,
    )


def spread(window: MetricsWindow, bucket: int, count: int) -> list[tuple[float, int]]:
    """Latencies in seconds for the `count` requests of a bucket, each with the number of requests that have it."""
    parts = min(count, ROWS_PER_BUCKET)
    weights = np.diff(np.arange(parts + 1) * count // parts)
    inside = (np.cumsum(weights) - weights / 2) / count
    exponents = bucket - 1 + inside if bucket else np.zeros(parts)
    return list(zip(window.shortest * window.ratio**exponents, weights.tolist(), strict=True))
