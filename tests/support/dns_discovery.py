"""A stage whose endpoints come from the name server."""

from __future__ import annotations

from typing import Any

from balancer.cluster.discovery.dns_source import DnsSource
from tests.support.name_server import NameServer
from tests.support.stage import Stage

NAME = "workers.test"


def dns(names: NameServer, **keys: Any) -> dict[str, Any]:
    """Configuration of one name."""
    return {"name": NAME, "servers": [f"127.0.0.1:{names.port}"], "timeout": 2.0, **keys}


def only_source(stage: Stage) -> DnsSource:
    (source,) = stage.control_plane.discovery.sources
    assert isinstance(source, DnsSource)
    return source


def known(stage: Stage) -> list[str]:
    return list(stage.control_plane.registry.members)


async def pass_time(stage: Stage, seconds: float) -> None:
    """Let time pass and wait for the look-ups that are due."""
    stage.clock.at += seconds
    before = stage.control_plane.discovery
    before.tick(stage.clock.at)
    await before.close([source for source in before.sources if isinstance(source, DnsSource)])


async def serve_names(stage: Stage, names: NameServer, *workers: Any, **keys: Any) -> None:
    await stage.serve(*workers, discovery={"dns": [dns(names, **keys)]})
