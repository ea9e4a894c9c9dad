"""/-/ of the sidecar: the whole of it, and each origin.

Rule of this file: as in `control/`: it reads, and is never on a forwarded request's way. An origin that is away is no
reason to call the sidecar unwell: the others would be away, too.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from balancer.admin.application import AdminApplication
from balancer.admin.merge import merged_metrics
from balancer.admin.metrics import PREFIX, metrics_text
from balancer.admin.routes_report import events_status, names_status, watch_status
from balancer.admin.status import build, endpoint_status, log_status, reload_status

if TYPE_CHECKING:
    from balancer.admin.sockets import AdminSockets
    from balancer.config.reload import Reloads
    from balancer.proxy import Proxy
    from balancer.sidecar.origins import Origin, Origins


class SidecarControl(AdminApplication):
    """The application."""

    def __init__(
        self,
        proxy: Proxy,
        reloads: Reloads,
        origins: Origins,
        token: bytes | None,
        sockets: AdminSockets | None = None,
    ) -> None:
        self._origins = origins
        super().__init__(proxy, reloads, token, sockets=sockets)

    def _routes(self) -> list[web.RouteDef]:
        return [
            *self._probes(),
            web.get("/-/status", self._status),
            web.get("/-/metrics", self._metrics),
            web.post("/-/reload", self._reload),
        ]

    @property
    def is_ready(self) -> bool:
        """Whether it takes requests."""
        return not self._proxy.is_draining

    async def _ready(self, request: web.Request) -> web.Response:
        """With the origins that can be reached, as far as is known."""
        origins = {origin.name: is_reachable(origin) for origin in self._origins.all}
        document = {"ready": self.is_ready, "origins": origins}
        return web.json_response(document, status=200 if self.is_ready else 503)

    async def _status(self, request: web.Request) -> web.Response:
        return web.json_response(sidecar_status(self._proxy, self._origins))

    async def _metrics(self, request: web.Request) -> web.Response:
        told = [
            metrics_text(proxy) for proxy in (self._proxy, *(origin.proxy for origin in self._origins.all))
        ]
        body = await asyncio.to_thread(merged_metrics, [text.decode() for text, _ in told])
        return web.Response(body=body + origin_metrics(self._origins), headers={"Content-Type": told[0][1]})


def is_reachable(origin: Origin) -> bool:
    """Whether the last attempts to connect succeeded, or none was made yet."""
    return all(state.is_reachable and not state.record.is_unreachable for state in origin.proxy.router.states)


def sidecar_status(front: Proxy, origins: Origins) -> dict[str, Any]:
    """The whole of /-/status. Durations in seconds."""
    return {
        "version": version("steelyard"),
        "build": build(),
        "pid": os.getpid(),
        "uptime": round(front.now() - front.started_at, 3),
        "draining": front.is_draining,
        "clients": len(front.downstreams),
        "connections": front.counts.connections,
        "in_flight": front.in_flight,
        "requests": sum(origin.proxy.counts.requests for origin in origins.all),
        "errors": dict(front.counts.errors),
        "access_log": log_status(front),
        "reload": reload_status(front),
        "origins": [origin_status(origin) for origin in origins.all],
    }


def origin_status(origin: Origin) -> dict[str, Any]:
    """One of them: how requests find it, what became of them, and its endpoint as a unit tells of it."""
    proxy, counts = origin.proxy, origin.proxy.counts
    return {
        "id": origin.name,
        "url": origin.url,
        "host": origin.host,
        "prefix": origin.prefix,
        "requests": counts.requests,
        "retried": counts.retried,
        "abandoned": counts.abandoned,
        "queued": len(proxy.queue),
        "errors": dict(counts.errors),
        "endpoint": next((endpoint_status(proxy, state) for state in proxy.router.states), None),
        "names": names_status(proxy),
        "watch": watch_status(proxy),
        "events": events_status(proxy),
    }


def origin_metrics(origins: Origins) -> bytes:
    """What the families of units do not tell apart."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(OriginCollector(origins))
    return generate_latest(registry)


class OriginCollector(Collector):
    """Origins as Prometheus sees them."""

    def __init__(self, origins: Origins) -> None:
        self._origins = origins

    def describe(self) -> list[Metric]:
        """Nothing ahead of time."""
        return []

    def collect(self) -> Iterator[Metric]:
        """From the counters of their units."""
        requests = CounterMetricFamily(
            f"{PREFIX}_origin_requests", "Requests for an origin", labels=["origin"]
        )
        errors = CounterMetricFamily(
            f"{PREFIX}_origin_errors",
            "Answers of our own in place of the origin's",
            labels=["origin", "reason"],
        )
        for origin in self._origins.all:
            counts = origin.proxy.counts
            requests.add_metric([origin.name], counts.requests)
            for reason, number in counts.errors.items():
                errors.add_metric([origin.name, reason], number)
        yield from (requests, errors)
