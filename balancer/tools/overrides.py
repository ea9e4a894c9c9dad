"""Options of `serve` and `check` that override keys of the configuration."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from balancer.config.loading import Settings, endpoints_from_workers
from balancer.config.problems import ConfigError
from balancer.config.sources import PREFIX
from policies import registry

OVERRIDES = (
    click.option(
        "--worker",
        multiple=True,
        metavar="REGION=URL",
        help="An endpoint; may be repeated. Replaces those of the file.",
    ),
    click.option(
        "--policy",
        shell_complete=lambda context, option, text: [
            name for name in registry.known() if name.startswith(text)
        ],
        help="Name of the routing policy, FILE.py:CLASS or MODULE:CLASS (default steelyard).",
    ),
    click.option("--home-region", help="Region of this balancer's clients."),
    click.option("--host", help="Address to listen on (default 127.0.0.1)."),
    click.option(
        "--port", type=click.IntRange(0, 65535), help="Port to listen on (default $PORT, else 8080; 0: any)."
    ),
    click.option(
        "--admin",
        metavar="[HOST:]PORT",
        help="Address for admin requests and the live page, on 127.0.0.1 by default.",
    ),
    click.option(
        "--processes", type=click.IntRange(1), help="Number of processes (default $WEB_CONCURRENCY, else 1)."
    ),
    click.option("--seed", type=click.IntRange(0), help="Seed of the policies' random numbers."),
)
"""Options that override keys of the configuration; `check` has them too, so that it reads what `serve` reads."""


def with_overrides(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of `OVERRIDES` to a command."""
    for option in reversed(OVERRIDES):
        command = option(command)
    return command


def overrides(
    config: Path | None,
    worker: tuple[str, ...],
    policy: str | None,
    home_region: str | None,
    host: str | None,
    port: int | None,
    seed: int | None,
    processes: int | None = None,
    admin: str | None = None,
) -> dict[str, Any]:
    """Return the command-line options as configuration keys."""
    given: dict[str, Any] = {"policy": policy, "home_region": home_region, "seed": seed}
    given["processes"] = processes
    given = {key: value for key, value in given.items() if value is not None}
    if worker:
        given["endpoints"] = endpoints_from_workers(worker)
    elif config is None and not any(name.upper().startswith(PREFIX) for name in os.environ):
        raise ConfigError(
            "endpoints: give a configuration file, or one --worker REGION=http://host:port or more"
        )
    if host is not None or port is not None:
        given["listen"] = _listen(host, port)
    if admin is not None:
        given["admin"] = {"listen": admin if ":" in admin else f"127.0.0.1:{admin}"}
    return given


def _listen(host: str | None, port: int | None) -> str:
    default_host, _, default_port = str(Settings.model_fields["listen"].default).rpartition(":")
    host = host or default_host
    return f"{f'[{host}]' if ':' in host else host}:{default_port if port is None else port}"
