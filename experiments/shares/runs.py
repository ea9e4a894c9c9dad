"""Who gets the requests when one endpoint is new, fails, is slow, or a region is lost: one policy, one trouble.

Rule of this file: a fresh unit and fresh emulated workers for every run, met over HTTP as an operator would. Nobody
tells the unit what is going to happen; only the endpoint that is added is told to it, because that is what adding is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from experiments import processes
from experiments.bench.serving import lasting_ports
from experiments.campaign.crew import toml
from experiments.campaign.fleet import all_ready
from experiments.control import order_unit, order_worker
from experiments.errors import FleetFailedError
from experiments.load.arrivals import poisson
from experiments.load.generator import Generator
from experiments.load.samples import Place, Samples
from experiments.processes import Child, program
from policies import registry

REGIONS = {"home": 0.010, "near": 0.040, "far": 0.080}
"""Round trip of each, in seconds."""

PLACES = tuple(Place(worker=f"{region}-{n}", region=region) for region in REGIONS for n in range(2))
NEEDS_A_REGION = "single-region"
SERVICE, SLOTS = "18-22ms", 2
TIMEOUT = 5.0
CONNECTIONS = 32


@dataclass(frozen=True, slots=True)
class Trouble:
    """Something that befalls `victims` from one instant to another. `faults` as the workers' /-/faults takes them."""

    name: str
    words: str
    victims: tuple[str, ...]
    faults: dict[str, Any]

    @property
    def is_addition(self) -> bool:
        return not self.faults


TROUBLES = (
    Trouble("cold", "an endpoint is added", ("home-0",), {}),
    Trouble("failing", "one answers 500 at once", ("home-0",), {"fail": 1.0}),
    Trouble("slow", "one takes 5 × as long", ("home-0",), {"slow": 5.0}),
    Trouble("lost", "the home region is lost", ("home-0", "home-1"), {"down": True}),
)


@dataclass(frozen=True, slots=True)
class Tempo:
    """`rate` in requests per second; seconds from the start to the trouble, to its end, and to the run's."""

    rate: float = 120.0
    begins: float = 8.0
    ends: float = 20.0
    over: float = 32.0


QUICK = Tempo(rate=60.0, begins=1.5, ends=3.5, over=5.0)


@dataclass(frozen=True, slots=True)
class Course:
    """What came of one policy in one trouble. Empty samples where nothing could be measured."""

    policy: str
    trouble: Trouble
    samples: Samples | None = None
    was_added: bool = False
    """Whether the endpoint came by /-/endpoints; else it stood in the file, and its worker began late."""

    fault: str = ""


def policies_known() -> tuple[str, ...]:
    return tuple(registry.TABLE)


def options_of(policy: str) -> dict[str, Any]:
    """The table of a policy in the unit's file."""
    return {"name": policy, **({"region": "home"} if policy == NEEDS_A_REGION else {})}


async def course_of(policy: str, trouble: Trouble, tempo: Tempo, seed: int, folder: Path) -> Course:
    """One run; whatever fails is its fault."""
    try:
        async with AsyncExitStack() as stack:
            return await _course_of(policy, trouble, tempo, seed, folder, stack)
    except (FleetFailedError, OSError, TimeoutError) as failure:
        return Course(policy, trouble, fault=str(failure) or type(failure).__name__)


async def _course_of(
    policy: str, trouble: Trouble, tempo: Tempo, seed: int, folder: Path, stack: AsyncExitStack
) -> Course:
    ports = dict(zip((place.worker for place in PLACES), lasting_ports(len(PLACES)), strict=True))
    may_add = trouble.is_addition and await knows_endpoints(policy, ports, folder)
    # Who cannot be added to a unit that runs stands in its file from the beginning, and starts late.
    late = trouble.victims if trouble.is_addition and not may_add else ()
    await all_ready(
        [await started(place, ports, seed, stack) for place in PLACES if place.worker not in late]
    )
    listed = [place for place in PLACES if not (may_add and place.worker in trouble.victims)]
    unit = await unit_before(policy, listed, ports, folder, stack)
    befall = asyncio.ensure_future(befallen(trouble, tempo, ports, unit, may_add, seed, stack))
    stack.callback(befall.cancel)
    instants = poisson(tempo.rate, round(tempo.rate * tempo.over), np.random.default_rng(seed))
    generator = Generator(unit.address, "shares", PLACES, instants, len(instants), TIMEOUT)
    ledger = await generator.run(CONNECTIONS)
    await befall
    return Course(policy, trouble, ledger.samples(), may_add)


async def started(place: Place, ports: dict[str, int], seed: int, stack: AsyncExitStack) -> Child:
    """A worker on its port, ended with the stack; it is not ready yet."""
    options = {
        "region": place.region,
        "name": place.worker,
        "port": str(ports[place.worker]),
        "rtt": f"{REGIONS[place.region] * 1e3:g}ms",
        "service": SERVICE,
        "slots": str(SLOTS),
        "seed": str(seed + PLACES.index(place)),
    }
    flags = [part for name, value in options.items() for part in (f"--{name}", value)]
    child = await processes.start(place.worker, [*program("workers"), "serve", *flags])
    stack.push_async_callback(child.stop)
    return child


def endpoint_of(place: Place, ports: dict[str, int]) -> dict[str, str]:
    return {
        "id": place.worker,
        "region": place.region,
        "address": f"http://127.0.0.1:{ports[place.worker]}",
    }


def configuration(policy: str, places: Sequence[Place], ports: dict[str, int]) -> str:
    """The unit's file: what is not said has its default."""
    lines = ['listen = "127.0.0.1:0"', 'home_region = "home"', "seed = 1"]
    lines += [f"policy = {toml(options_of(policy))}"]
    for place in places:
        lines += ["[[endpoints]]", *(f"{key} = {toml(v)}" for key, v in endpoint_of(place, ports).items())]
    return "\n".join(lines) + "\n"


async def unit_before(
    policy: str, places: Sequence[Place], ports: dict[str, int], folder: Path, stack: AsyncExitStack
) -> Child:
    """A unit that is ready, ended with the stack."""
    file = folder / f"{policy}.toml"
    await asyncio.to_thread(file.write_text, configuration(policy, places, ports), "utf-8")
    child = await processes.start("balancer", [*program("balancer"), "serve", "--config", str(file)])
    stack.push_async_callback(child.stop)
    await child.ready()
    return child


async def knows_endpoints(policy: str, ports: dict[str, int], folder: Path) -> bool:
    """Whether the unit takes endpoints at run time."""
    async with AsyncExitStack() as stack:
        unit = await unit_before(policy, PLACES, ports, folder, stack)
        try:
            await order_unit(unit.address, "GET", "/-/endpoints")
        except FleetFailedError:
            return False
        return True


async def befallen(
    trouble: Trouble,
    tempo: Tempo,
    ports: dict[str, int],
    unit: Child,
    may_add: bool,
    seed: int,
    stack: AsyncExitStack,
) -> None:
    """The trouble, at its time; faults heal by themselves. Raises FleetFailedError when somebody does not obey."""
    places = [place for place in PLACES if place.worker in trouble.victims]
    await asyncio.sleep(tempo.begins)
    if trouble.is_addition and not may_add:
        await all_ready([await started(place, ports, seed, stack) for place in places])
    for place in places if may_add else ():
        await order_unit(unit.address, "POST", "/-/endpoints", endpoint_of(place, ports))
    faults = trouble.faults | {"lasts": tempo.ends - tempo.begins}
    for place in places if trouble.faults else ():
        await order_worker(("127.0.0.1", ports[place.worker]), faults)


async def carry_out(
    policies: Sequence[str],
    troubles: Sequence[Trouble],
    tempo: Tempo,
    seed: int,
    at_once: int,
    folder: Path,
    told: Callable[[Course], None],
) -> None:
    """Every policy in every trouble, `at_once` of them side by side, told as they end."""
    seats = asyncio.Semaphore(at_once)

    async def one(policy: str, trouble: Trouble) -> None:
        async with seats:
            own = folder / f"{policy}-{trouble.name}"
            own.mkdir()
            told(await course_of(policy, trouble, tempo, seed, own))

    async with asyncio.TaskGroup() as group:
        for trouble in troubles:
            for policy in policies:
                group.create_task(one(policy, trouble))
