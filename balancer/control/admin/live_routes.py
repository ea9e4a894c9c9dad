"""/-/record, /-/explain and /-/latency: inspect live traffic on demand.

An inspection has a time limit or is stopped here; while it is off it costs a request nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

from aiohttp import web
from pydantic import Field

from balancer.config.schema.section import Seconds, Section
from balancer.control.admin.channel import SiblingChannel
from balancer.control.admin.chosen_cluster import plane_of
from balancer.control.admin.endpoint_routes import body_of, ways_of
from balancer.control.admin.status import latency_status


class RecordRequest(Section):
    """Body of POST /-/record."""

    seconds: Seconds | None = Field(default=None, description="until it ends by itself. None: by DELETE")


class ExplainRequest(Section):
    """Body of POST /-/explain."""

    seconds: Annotated[float, Field(gt=0, le=3600)] = Field(
        default=60.0, description="until it ends by itself"
    )
    keep: int = Field(default=100, ge=1, le=1000, description="last picks that are kept")


class LiveRoutes:
    """Routes that record, explain and measure the traffic of a cluster."""

    def __init__(self, channel: SiblingChannel | None = None) -> None:
        self._channel = channel

    def routes(self) -> Iterable[web.RouteDef]:
        """Return the routes."""
        ask, tell = ways_of(self._channel)
        return [
            web.get("/-/explain", ask(self._explain)),
            web.post("/-/explain", tell(self._start_explaining)),
            web.delete("/-/explain", tell(self._stop_explaining)),
            web.get("/-/latency", ask(self._latency)),
            web.get("/-/record", ask(self._record)),
            web.post("/-/record", tell(self._start_recording)),
            web.delete("/-/record", tell(self._stop_recording)),
        ]

    async def _explain(self, request: web.Request) -> web.Response:
        """Return the last explained picks; they are kept after the end until explaining starts again."""
        return web.json_response(plane_of(request).explanations.document())

    async def _start_explaining(self, request: web.Request) -> web.Response:
        """Body: `seconds`, `keep`, or nothing. Restarts explaining if it is on."""
        order = await body_of(request, ExplainRequest) if request.can_read_body else ExplainRequest()
        plane_of(request).explanations.start(order.seconds, order.keep)
        return web.json_response(plane_of(request).explanations.status(), status=201)

    async def _stop_explaining(self, request: web.Request) -> web.Response:
        plane_of(request).explanations.stop()
        return web.json_response(plane_of(request).explanations.status())

    async def _latency(self, request: web.Request) -> web.Response:
        """Return every bucket of every histogram, for a client that computes the difference of two readings."""
        return web.json_response(latency_status(plane_of(request)))

    async def _record(self, request: web.Request) -> web.Response:
        return web.json_response(plane_of(request).recording.status())

    async def _start_recording(self, request: web.Request) -> web.Response:
        """Body: `seconds`, or nothing."""
        order = await body_of(request, RecordRequest) if request.can_read_body else RecordRequest()
        plane_of(request).recording.start(order.seconds)
        return web.json_response(plane_of(request).recording.status(), status=201)

    async def _stop_recording(self, request: web.Request) -> web.Response:
        plane_of(request).recording.stop()
        return web.json_response(plane_of(request).recording.status())
