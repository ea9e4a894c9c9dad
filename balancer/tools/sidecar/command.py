"""`balancer sidecar`.

The command line becomes a `SidecarConfig`, as a file does; an error is one line with exit code 2.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from balancer.config.problems import ConfigError
from balancer.config.schema.sidecar import LISTEN, SidecarConfig, origins_from
from balancer.configuration import load_sidecar
from balancer.process.lifecycle import attend, say
from balancer.process.server import new_event_loop
from balancer.tools.sidecar.server import SidecarServer

EPILOG = """\b
Examples:
  balancer sidecar --origin https://api.example.com
  balancer sidecar --origin pay=https://api.pay.example --origin mail=https://mail.example
  balancer sidecar --config sidecar.toml
\b
Then:
  curl -H 'Host: api.pay.example' http://127.0.0.1:8081/v1/charges
  curl http://127.0.0.1:8081/pay/v1/charges
  balancer status --url http://127.0.0.1:8081
"""


@click.command("sidecar", epilog=EPILOG, short_help="Forward an application's requests to external origins.")
@click.option("--config", type=click.Path(path_type=Path), help="TOML file; see docs/sidecar.md.")
@click.option(
    "--origin",
    multiple=True,
    metavar="[NAME=]URL",
    help="A third party; may be repeated. Replaces the file's.",
)
@click.option("--listen", metavar="HOST:PORT", help=f"Default: {LISTEN}.")
@click.option("--allow-remote", is_flag=True, help="Listen where other machines can reach it.")
def sidecar(config: Path | None, origin: tuple[str, ...], listen: str | None, allow_remote: bool) -> None:
    """Forward an application's requests to external origins from this machine, over kept connections.

    The application connects to this machine and selects an origin by its Host or by its path prefix.
    """
    if config is None and not origin:
        raise ConfigError("origins: give --config FILE, or one --origin https://host or more")
    given: dict[str, Any] = {}
    if origin:
        given["origins"] = origins_from(origin)
    if listen is not None:
        given["listen"] = listen
    if allow_remote:
        given["allow_remote"] = True

    def read() -> SidecarConfig:
        return load_sidecar(config, given)

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        sys.exit(0 if runner.run(_serve(read(), read)) else 1)


async def _serve(config: SidecarConfig, read: Callable[[], SidecarConfig]) -> bool:
    server = SidecarServer(config, read=read)

    def ready() -> str:
        number = len(config.origins)
        return (
            f"balancer sidecar ready on http://{server.address} ({number} origin{'s' if number != 1 else ''})"
        )

    return await attend(server, ready, say)
