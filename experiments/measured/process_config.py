"""Process configuration of a fleet: worker command lines, endpoints, and the balancer's configuration file.

Pure: no I/O. Every key of a scenario that concerns a process is translated here and nowhere else.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from experiments.platform.processes import program
from experiments.run_data import Place
from experiments.scenario.places import TLS, profiles_of
from experiments.scenario.scenario import Entry, Region, Scenario
from workers.service import parse_profile


def worker_argv(scenario: Scenario, region: Region, number: int, seed: int, port: int = 0) -> list[str]:
    """Command line of one worker; port 0 means any free port."""
    options = {
        "region": region.name,
        "name": f"{region.name}-{number}",
        "port": str(port),
        "rtt": f"{region.rtt * 1e3:g}ms",
        "service": region.service,
        "slots": str(region.slots),
        "queue": str(region.queue),
        "seed": str(seed),
        "time-scale": f"{scenario.time_scale:g}",
        "speed": f"{region.speed_of(number):g}",
        "demand": str(profiles_of(scenario).index(parse_profile(region.service).scaled(scenario.time_scale))),
    }
    if region.idle_timeout is not None:
        options["keep-alive"] = f"{region.idle_timeout:g}s"
    if region.setup_rtts in TLS:
        options["tls"] = TLS[region.setup_rtts]
    flags = [part for name, value in options.items() for part in (f"--{name}", value)]
    return [*program("workers"), "serve", *flags]


def balancer_config(scenario: Scenario, entry: Entry, seed: int, endpoints: Sequence[dict[str, Any]]) -> str:
    """TOML configuration of the balancer for one entry."""
    lines = ['listen = "127.0.0.1:0"', f"home_region = {toml(scenario.home_region)}", f"seed = {seed}"]
    lines += [f"policy = {toml(entry.policy.model_dump())}"]
    lines += [f"{key} = {toml(value)}" for key, value in scenario.balancer_settings(entry).items()]
    if any(region.setup_rtts in TLS for region in scenario.regions):
        lines += ["upstream_tls = { verify = false }"]
    for endpoint in endpoints:
        lines += ["[[endpoints]]", *(f"{key} = {toml(value)}" for key, value in endpoint.items())]
    return "\n".join(lines) + "\n"


def endpoint_of(
    scenario: Scenario, place: Place, region: Region, number: int, address: tuple[str, int]
) -> dict[str, Any]:
    """Worker `number` of its region as an endpoint of the balancer's configuration.

    It states the round trip, which handshakes would show if the kernel did not complete those of loopback connections
    at once (see `workers/link.py`)."""
    scheme = "https" if region.setup_rtts in TLS else "http"
    endpoint = {
        "id": place.worker,
        "region": place.region,
        "address": f"{scheme}://{address[0]}:{address[1]}",
        "weight": region.weight_of(number),
    }
    if region.priority:
        endpoint["priority"] = region.priority
    if region.rtt:
        endpoint["round_trip"] = scenario.time_scale * region.rtt
    return endpoint


def toml(value: object) -> str:
    """Format a value as TOML on one line; JSON strings, numbers and booleans are valid TOML."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{json.dumps(key)} = {toml(item)}" for key, item in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(toml(item) for item in value) + "]"
    return json.dumps(value)
