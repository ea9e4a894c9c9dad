"""/-/record, /-/explain and /-/latency: inspect live traffic on demand.

An inspection has a time limit or is stopped here; while it is off it costs a request nothing.
"""

from __future__ import annotations

from typing import Annotated

from aiohttp import web
from pydantic import Field

from balancer.config.schema.section import Seconds, Section
from balancer.control.admin.channel import SiblingChannel, ways_of
from balancer.control.admin.requests import body_of, plane_of
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


def live_routes(channel: SiblingChannel | None) -> list[web.RouteDef]:
    """Return the routes that record, explain and measure the traffic of a cluster."""
    ask, tell = ways_of(channel)
    return [
        web.get("/-/explain", ask(_explain)),
        web.post("/-/explain", tell(_start_explaining)),
        web.delete("/-/explain", tell(_stop_explaining)),
        web.get("/-/latency", ask(_latency)),
        web.get("/-/record", ask(_record)),
        web.post("/-/record", tell(_start_recording)),
        web.delete("/-/record", tell(_stop_recording)),
    ]


async def _explain(request: web.Request) -> web.Response:
    """Return the last explained picks; they are kept after the end until explaining starts again."""
    return web.json_response(plane_of(request).explanations.document())


async def _start_explaining(request: web.Request) -> web.Response:
    """Body: `seconds`, `keep`, or nothing. Restarts explaining if it is on."""
    order = await body_of(request, ExplainRequest) if request.can_read_body else ExplainRequest()
    plane_of(request).explanations.start(order.seconds, order.keep)
    return web.json_response(plane_of(request).explanations.status(), status=201)


async def _stop_explaining(request: web.Request) -> web.Response:
    plane_of(request).explanations.stop()
    return web.json_response(plane_of(request).explanations.status())


async def _latency(request: web.Request) -> web.Response:
    """Return every bucket of every histogram, for a client that computes the difference of two readings."""
    return web.json_response(latency_status(plane_of(request)))


async def _record(request: web.Request) -> web.Response:
    return web.json_response(plane_of(request).recording.status())


async def _start_recording(request: web.Request) -> web.Response:
    """Body: `seconds`, or nothing."""
    order = await body_of(request, RecordRequest) if request.can_read_body else RecordRequest()
    plane_of(request).recording.start(order.seconds)
    return web.json_response(plane_of(request).recording.status(), status=201)


async def _stop_recording(request: web.Request) -> web.Response:
    plane_of(request).recording.stop()
    return web.json_response(plane_of(request).recording.status())
