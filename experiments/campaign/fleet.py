"""Workers and a fresh balancer, alive for the length of one run.

Rule of this file: nothing outlives the `async with`, however it is left. The balancer is met as any operator
meets it: a configuration file, a ready line, and HTTP.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from experiments import processes
from experiments.campaign.scenario import Entry, Region, Scenario
from experiments.errors import FleetFailedError
from experiments.load.samples import Place
from experiments.processes import Child, program

STATUS_WITHIN = 5.0

TLS = {2: "1.3", 3: "1.2"}
"""Round trips that setting a connection up takes -> what a worker speaks so that it takes them."""


def places_of(scenario: Scenario) -> tuple[Place, ...]:
    """Every worker of the scenario, region by region."""
    pairs = zip(scenario.workers, scenario.region_of_each, strict=True)
    return tuple(Place(worker=worker, region=region) for worker, region in pairs)


class Fleet:
    """`async with Fleet(…) as fleet` starts everything and waits for the workers; `balancer.ready()` is yours.

    The balancer takes a second to start, in which the workers can be warmed.

    `seed` is the block's: workers draw the same demand and the policy the same numbers for every entry of it.
    """

    def __init__(self, scenario: Scenario, entry: Entry, seed: int) -> None:
        self._scenario, self._entry, self._seed = scenario, entry, seed
        self._folder = tempfile.TemporaryDirectory(prefix="steelyard-")
        self._children: list[Child] = []
        self.places = places_of(scenario)

    async def __aenter__(self) -> Self:
        try:
            await self._start()
        except BaseException:
            await self._stop()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stop()

    @property
    def workers(self) -> Sequence[Child]:
        return self._children[: len(self.places)]

    @property
    def balancer(self) -> Child:
        return self._children[-1]

    def casualties(self) -> tuple[str, ...]:
        """In words, every process that has ended by itself."""
        return tuple(f"{child.name} died{child.tail}" for child in self._children if not child.is_running)

    async def status(self) -> dict[str, Any]:
        """The balancer's own account of the run; an error in words when it gives none."""
        host, port = self.balancer.address
        try:
            return await asyncio.to_thread(fetch_json, f"http://{host}:{port}/-/status")
        except (OSError, ValueError) as error:
            return {"error": f"no status: {error}"}

    async def _start(self) -> None:
        for index, (region, number) in enumerate(crew(self._scenario)):
            argv = worker_argv(self._scenario, region, number, self._seed + index)
            self._children.append(await processes.start(f"{region.name}-{number}", argv))
        await all_ready(self._children)
        config = Path(self._folder.name) / "balancer.toml"
        await asyncio.to_thread(config.write_text, self._balancer_config(), "utf-8")
        argv = [*program("balancer"), "serve", "--config", str(config)]
        self._children.append(await processes.start("balancer", argv))

    async def _stop(self) -> None:
        """Stop everybody, the balancer first; a second Ctrl-C waits until nobody is left behind."""
        stopping = asyncio.gather(*(child.stop() for child in reversed(self._children)))
        was_cancelled = False
        while not stopping.done():
            try:
                await asyncio.shield(stopping)
            except asyncio.CancelledError:
                was_cancelled = True
        self._folder.cleanup()
        if was_cancelled:
            raise asyncio.CancelledError

    def _balancer_config(self) -> str:
        addresses = [child.address for child in self.workers]
        return balancer_config(self._scenario, self._entry, self._seed, self.places, addresses)


async def all_ready(children: Sequence[Child]) -> None:
    """Wait for every ready line; the first failure ends the wait."""
    try:
        async with asyncio.TaskGroup() as group:
            for child in children:
                group.create_task(child.ready())
    except* FleetFailedError as failures:
        raise failures.exceptions[0] from None


def crew(scenario: Scenario) -> list[tuple[Region, int]]:
    """(region, number inside the region) of every worker, in the order of `places_of`."""
    return [(region, number) for region in scenario.regions for number in range(region.workers)]


def worker_argv(scenario: Scenario, region: Region, number: int, seed: int) -> list[str]:
    """The command line of one worker, on a free port."""
    options = {
        "region": region.name,
        "name": f"{region.name}-{number}",
        "port": "0",
        "rtt": f"{region.rtt * 1e3:g}ms",
        "service": region.service,
        "slots": str(region.slots),
        "queue": str(region.queue),
        "seed": str(seed),
        "time-scale": f"{scenario.time_scale:g}",
        "speed": f"{region.speed_of(number):g}",
    }
    if region.idle_timeout is not None:
        options["keep-alive"] = f"{region.idle_timeout:g}s"
    if region.setup_rtts in TLS:
        options["tls"] = TLS[region.setup_rtts]
    flags = [part for name, value in options.items() for part in (f"--{name}", value)]
    return [*program("workers"), "serve", *flags]


def balancer_config(
    scenario: Scenario,
    entry: Entry,
    seed: int,
    places: Sequence[Place],
    addresses: Sequence[tuple[str, int]],
) -> str:
    """The balancer's TOML file for one entry."""
    lines = ['listen = "127.0.0.1:0"', f"home_region = {toml(scenario.home_region)}", f"seed = {seed}"]
    lines += [f"policy = {toml(entry.policy.model_dump())}"]
    lines += [f"{key} = {toml(value)}" for key, value in scenario.told_to(entry).items()]
    if any(region.setup_rtts in TLS for region in scenario.regions):
        lines += ["upstream_tls = { verify = false }"]
    for place, address, (region, number) in zip(places, addresses, crew(scenario), strict=True):
        lines += ["[[endpoints]]", f"id = {toml(place.worker)}", f"region = {toml(place.region)}"]
        lines += [f"address = {toml(url_of(region, address))}", f"weight = {region.weight_of(number):g}"]
    return "\n".join(lines) + "\n"


def url_of(region: Region, address: tuple[str, int]) -> str:
    """Where a worker of the region is reached."""
    scheme = "https" if region.setup_rtts in TLS else "http"
    return f"{scheme}://{address[0]}:{address[1]}"


def toml(value: object) -> str:
    """A value as TOML on one line; JSON's strings, numbers and booleans are TOML's too."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{json.dumps(key)} = {toml(item)}" for key, item in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(toml(item) for item in value) + "]"
    return json.dumps(value)


def fetch_json(url: str) -> dict[str, Any]:
    """GET a JSON object from loopback, no proxy in between. Raises OSError or ValueError."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(url, timeout=STATUS_WITHIN) as response:
        found: dict[str, Any] = json.loads(response.read())
    return found
