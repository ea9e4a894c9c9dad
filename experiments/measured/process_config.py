"""Process configuration of a fleet: worker command lines, endpoints, and the balancer's configuration file.

Pure: no I/O. Every key of a scenario that concerns a process is translated here and nowhere else.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from experiments.platform.processes import program
from experiments.run_data import Place
from experiments.scenario.places import TLS, profiles_of
from experiments.scenario.scenario import Entry, Region, Scenario
from workers.inference.engine import EngineModel
from workers.service import parse_profile


def serve_argv(**options: object) -> list[str]:
    """Arguments of `workers serve`, as those of `workers_argv`."""
    return workers_argv("serve", options)


def workers_argv(command: str, options: Mapping[str, object]) -> list[str]:
    """Arguments of a command of `workers`; an option that is True becomes a flag, None is left out."""
    argv = [*program("workers"), command]
    for name, value in options.items():
        flag = f"--{name.replace('_', '-')}"
        if value is True:
            argv.append(flag)
        elif value is not None:
            argv += [flag, str(value)]
    return argv


def worker_argv(scenario: Scenario, region: Region, number: int, seed: int, port: int = 0) -> list[str]:
    """Command line of one worker; port 0 means any free port."""
    return serve_argv(
        region=region.name,
        name=f"{region.name}-{number}",
        port=port,
        rtt=f"{region.rtt * 1e3:g}ms",
        service=region.service,
        slots=region.slots,
        queue=region.queue,
        seed=seed,
        time_scale=f"{scenario.time_scale:g}",
        speed=f"{region.speed_of(number):g}",
        demand=profiles_of(scenario).index(parse_profile(region.service).scaled(scenario.time_scale)),
        keep_alive=None if region.idle_timeout is None else f"{region.idle_timeout:g}s",
        tls=TLS.get(region.setup_rtts),
    )


def engine_argv(model: EngineModel, region: Region, number: int, seed: int, port: int = 0) -> list[str]:
    options = asdict(model)
    options["step"] = f"{options.pop('base'):.12f}"
    options["step_per_sequence"] = f"{options.pop('per_sequence'):.12f}"
    options |= {"region": region.name, "name": f"{region.name}-{number}", "rtt": f"{region.rtt * 1e3:g}ms"}
    return workers_argv("inference", options | {"port": port, "seed": seed})


def balancer_config(scenario: Scenario, entry: Entry, seed: int, endpoints: Sequence[dict[str, Any]]) -> str:
    """TOML configuration of the balancer for one entry."""
    keys = {
        "listen": "127.0.0.1:0",
        "home_region": scenario.home_region,
        "seed": seed,
        "policy": entry.policy.model_dump(),
        **scenario.balancer_settings(entry),
        "endpoints": endpoints,
    }
    if scenario.inference is not None:
        keys |= {"kind": "inference", "retries": scenario.mechanisms_of(entry).retries}
        keys["load_probes"] = {"path": "/metrics", "format": "metrics"}
    if any(region.setup_rtts in TLS for region in scenario.regions):
        keys["upstream_tls"] = {"verify": False}
    return toml_document(keys)


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
        "priority": region.priority_of(number),
        "max_in_flight": region.max_in_flight_of(number),
        "round_trip": scenario.time_scale * region.rtt,
    }
    return {key: value for key, value in endpoint.items() if value}


def toml_document(keys: Mapping[str, object]) -> str:
    """A TOML document with a line for each key; tables are written within the line."""
    return "".join(f"{name} = {toml(value)}\n" for name, value in keys.items())


def toml(value: object) -> str:
    """Format a value as TOML on one line; JSON strings, numbers and booleans are valid TOML."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{json.dumps(key)} = {toml(item)}" for key, item in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(toml(item) for item in value) + "]"
    return json.dumps(value)
