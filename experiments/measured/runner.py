"""The measured world: a fresh fleet for each run, warm-up, the measured load, and the recorded facts.

Samples are returned even when the run was stopped half-way; an invalid run states its reasons.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final, TypeVar

from experiments.generator.arrivals import closed, first_instants, requests_of
from experiments.generator.completions import CompletionGenerator
from experiments.generator.demand import BATCH, Demand
from experiments.generator.generator import Generator
from experiments.generator.ledger import Ledger
from experiments.inference.prompts import prompts_of
from experiments.measured.faults import LiveEvents
from experiments.measured.fleet import Fleet
from experiments.platform.terminal import interruptible
from experiments.results.directory import PlannedRun, facts_of
from experiments.run_data import Run, WorldName
from experiments.running.runner import Interrupted, Observer
from experiments.scenario.places import first_connections, profiles_of, warm_requests
from experiments.scenario.scenario import Entry, Scenario
from experiments.stats.measures import POLICY_FAILED, lag_percentiles, validity

T = TypeVar("T")

WARM_BATCH = 10
"""Outstanding requests per worker during warm-up."""

MOST_FALLBACK_PICKS = 0.005
"""Maximum fraction of fallback picks in a valid run. A shared machine occasionally suspends a process for some
milliseconds, and a pick during that time overruns its budget. A failing policy does so far more often.
"""

Watch = Callable[[Ledger], None]

Following = Callable[[tuple[str, int]], AbstractContextManager[object]]
"""Context in which somebody follows the balancer at an address."""


class MeasuredRunner:
    """Execute planned runs on a fresh fleet of processes each. Implements `Runner`."""

    name: Final[WorldName] = "measured"

    def __init__(self, following: Following = nullcontext) -> None:
        self._following = following

    def run(self, scenario: Scenario, planned: PlannedRun, observer: Observer) -> Run:
        """Measure one planned run.

        Raises `FleetFailedError`, `Interrupted`, and before the load `KeyboardInterrupt`.
        """
        return run_loop(measure(scenario, planned, observer.load_started, self._following))


def run_loop(work: Awaitable[T]) -> T:
    """Run on uvloop where available, so that the load generator is as fast as the proxy.

    A stop signal cancels the work. Raises `KeyboardInterrupt` then, unless the work raises another error.
    """
    try:
        if sys.platform == "win32":
            return asyncio.run(interruptible(work))
        import uvloop

        return uvloop.run(interruptible(work))
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


async def measure(
    scenario: Scenario, planned: PlannedRun, watch: Watch, following: Following = nullcontext
) -> Run:
    """Measure one planned run; `watch` is called with the ledger when the load starts.

    Raises `FleetFailedError`, and `Interrupted` when cancelled after the load has started.
    """
    entry = scenario.entry(planned.label)
    async with Fleet(scenario, entry, planned.seed) as fleet:
        await asyncio.gather(warm_workers(scenario, fleet), fleet.balancer.ready())
        with following(fleet.balancer.address):
            await warm_up_through_balancer(scenario, entry, fleet)
            if fleet.steps:  # the first admin request takes long: it imports what serves it
                await fleet.status()
            generator = measured_load(scenario, entry, planned, fleet)
            watch(generator.ledger)
            events = LiveEvents(fleet)
            try:
                await generator.run(first_connections(scenario, entry), events.begin)
            except asyncio.CancelledError:
                raise Interrupted(conclude(scenario, entry, planned, generator.ledger, {}, ())) from None
            finally:
                failed_steps = await events.end()
            status, crashed_processes = await fleet.status(), fleet.crashed_processes()
    return conclude(scenario, entry, planned, generator.ledger, status, (*crashed_processes, *failed_steps))


async def warm_workers(scenario: Scenario, fleet: Fleet) -> None:
    """Warm up every worker directly and concurrently, so that no policy leaves one cold.

    Workers added later stay cold, and workers with TLS are warmed through the balancer only.
    """
    count, timeout = scenario.warmup, scenario.timeout * scenario.time_scale
    width, path = min(WARM_BATCH, count), warm_path(scenario)
    generators = [
        Generator(worker.address, "warm", fleet.places, closed(width, count), count, timeout, path)
        for worker in fleet.to_be_warmed()
    ]
    if count:
        await asyncio.gather(*(generator.run(width) for generator in generators))


async def warm_up_through_balancer(scenario: Scenario, entry: Entry, fleet: Fleet) -> None:
    """Warm up through the balancer at the load's concurrency, including its connection pools and policy state."""
    width, count = first_connections(scenario, entry), warm_requests(scenario, entry)
    if not scenario.warmup:
        return
    timeout = scenario.timeout * scenario.time_scale
    address, instants = fleet.balancer.address, closed(width, count)
    through = Generator(address, "warm", fleet.places, instants, count, timeout, warm_path(scenario))
    await through.run(min(width, count))


def warm_path(scenario: Scenario) -> str:
    """Target of the requests of a warm-up. Engines are asked nothing that they compute or cache."""
    return "/work" if scenario.inference is None else "/v1/models"


def measured_load(scenario: Scenario, entry: Entry, planned: PlannedRun, fleet: Fleet) -> Generator:
    load = scenario.load_of(entry)
    instants = first_instants(load, planned.seed, scenario.time_scale)
    name = f"b{planned.block}-r{planned.order}"
    timeout = scenario.timeout * scenario.time_scale
    count = requests_of(load, planned.seed)
    if scenario.inference is not None:
        prompts = prompts_of(scenario, count, planned.seed)
        return CompletionGenerator(fleet.balancer.address, name, fleet.places, instants, timeout, prompts)
    demand = demand_of(scenario, entry, planned.seed, count)
    return Generator(fleet.balancer.address, name, fleet.places, instants, count, timeout, demand=demand)


def demand_of(scenario: Scenario, entry: Entry, seed: int, count: int) -> list[bytes]:
    """Demand of each request of the run: its service time in seconds for each profile, encoded for a header.

    The draws come from the same stream as in a simulated run, after those of its warm-up. A request is therefore the
    same work for every entry of a block, at any worker, live or simulated.
    """
    drawn = Demand(profiles_of(scenario), 1, seed)
    warm = warm_requests(scenario, entry) if scenario.warmup else 0
    for _ in range(0, warm, BATCH):
        drawn.renew()
    found = list[bytes]()
    while len(found) < count:
        drawn.renew()
        rows = zip(*drawn.seconds, strict=True)
        found += [",".join(f"{seconds:.9f}" for seconds in row).encode() for row in rows]
    return found[:count]


def conclude(
    scenario: Scenario,
    entry: Entry,
    planned: PlannedRun,
    ledger: Ledger,
    status: dict[str, Any],
    crashed_processes: tuple[str, ...],
) -> Run:
    samples = ledger.samples()
    lag_p50, lag_p99 = lag_percentiles(samples)
    facts = facts_of(
        scenario,
        entry,
        requests_of(scenario.load_of(entry), planned.seed),
        samples,
        warmup_requests=scenario.warmup
        and warm_requests(scenario, entry) + scenario.warmup * len(ledger.places),
        block=planned.block,
        order=planned.order,
        seed=planned.seed,
        lag_p50=lag_p50,
        lag_p99=lag_p99,
        places=tuple(ledger.places),
        status=status,
    )
    return Run(
        facts.model_copy(
            update={"invalid_reasons": (*validity(facts, samples), *crashed_processes, *faults(status))}
        ),
        samples,
    )


def faults(status: dict[str, Any]) -> tuple[str, ...]:
    """Reasons against the run in the balancer's status: too many fallback picks by another policy."""
    policy = status.get("policy", {})
    fallback_picks, routed = policy.get("fallback_picks", 0), policy.get("routed", 0)
    if fallback_picks <= MOST_FALLBACK_PICKS * routed:
        return ()
    return (
        f"{POLICY_FAILED} {fallback_picks} of {routed} times and was stood in for: {policy.get('last_fault')}",
    )
