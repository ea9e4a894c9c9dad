"""Handlers of admin requests to the sidecar: status and metrics of the sidecar and of each origin."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from importlib.metadata import version
from typing import Any

from aiohttp import web
from prometheus_client.core import Metric

from balancer.build import build, http2_library
from balancer.control.admin.application import AdminApplication
from balancer.control.admin.families import counter, exposed
from balancer.control.admin.handlers import AdminHandlers
from balancer.control.admin.merge import merged_metrics
from balancer.control.admin.metrics import metrics_text
from balancer.control.admin.routes_report import events_status, names_status, watch_status
from balancer.control.admin.status import endpoint_status, log_status, reload_status
from balancer.control.control_plane import ControlPlane
from balancer.control.reload import Reloads
from balancer.tools.sidecar.origins import Origin, Origins


class SidecarHandlers(AdminHandlers):
    """The routes of the sidecar's admin interface."""

    def __init__(
        self, application: AdminApplication, control_plane: ControlPlane, reloads: Reloads, origins: Origins
    ) -> None:
        super().__init__(application, control_plane, reloads)
        self._origins = origins

    def _routes(self) -> list[web.RouteDef]:
        return [
            *self._probes(),
            web.get("/-/status", self._status),
            web.get("/-/metrics", self._metrics),
            web.post("/-/reload", self._reload),
        ]

    async def _ready(self, request: web.Request) -> web.Response:
        """Answer readiness, with the reachability of each origin."""
        origins = {origin.name: is_reachable(origin) for origin in self._origins.all}
        document = {"ready": self._application.is_ready, "origins": origins}
        return web.json_response(document, status=200 if self._application.is_ready else 503)

    async def _status(self, request: web.Request) -> web.Response:
        return web.json_response(sidecar_status(self._control_plane, self._origins))

    async def _metrics(self, request: web.Request) -> web.Response:
        texts = [
            metrics_text(one)
            for one in (self._control_plane, *(origin.control_plane for origin in self._origins.all))
        ]
        body = await asyncio.to_thread(merged_metrics, [text.decode() for text, _ in texts])
        body += exposed(origin_families(self._origins))
        return web.Response(body=body, headers={"Content-Type": texts[0][1]})


def is_reachable(origin: Origin) -> bool:
    """Return whether the latest connection attempts succeeded, or none was made yet."""
    return all(
        state.is_reachable and not state.record.is_unreachable for state in origin.cluster.router.states
    )


def sidecar_status(control_plane: ControlPlane, origins: Origins) -> dict[str, Any]:
    """Return the document of /-/status. Durations are in seconds."""
    front, process = control_plane.cluster, control_plane.cluster.process
    return {
        "version": version("steelyard"),
        "build": build(),
        "http2_library": http2_library(),
        "pid": os.getpid(),
        "uptime": round(process.now() - process.started_at, 3),
        "draining": process.is_draining,
        "clients": len(process.downstreams),
        "connections": process.counts.connections,
        "in_flight": process.in_flight,
        "requests": sum(origin.cluster.counts.requests for origin in origins.all),
        "errors": dict(front.counts.errors),
        "access_log": log_status(front),
        "reload": reload_status(control_plane),
        "origins": [origin_status(origin) for origin in origins.all],
    }


def origin_status(origin: Origin) -> dict[str, Any]:
    """Return one origin: its selectors, counts, and the status of its endpoint."""
    cluster, counts = origin.cluster, origin.cluster.counts
    return {
        "id": origin.name,
        "url": origin.url,
        "host": origin.host,
        "prefix": origin.prefix,
        "requests": counts.requests,
        "retried": counts.retried,
        "abandoned": counts.abandoned,
        "queued": len(cluster.queue),
        "errors": dict(counts.errors),
        "endpoint": next(
            (endpoint_status(origin.control_plane, state) for state in cluster.router.states), None
        ),
        "names": names_status(cluster),
        "route_watch": watch_status(cluster),
        "events": events_status(cluster),
    }


def origin_families(origins: Origins) -> Iterator[Metric]:
    """Yield the counters of the origins' clusters."""
    counts = [(origin.name, origin.cluster.counts) for origin in origins.all]
    requests = [(name, each.requests) for name, each in counts]
    yield counter("steelyard_origin_requests", "Requests for an origin", requests, "origin")
    errors = [(name, *error) for name, each in counts for error in each.errors.items()]
    text = "Answers of our own in place of the origin's"
    yield counter("steelyard_origin_errors", text, errors, "origin", "reason")
