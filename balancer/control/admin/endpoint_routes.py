"""/-/endpoints: list, add, change and remove endpoints at run time.

Bodies are validated by the models of the configuration. Every error is one line with a 4xx status and changes nothing.
"""

from __future__ import annotations

import asyncio
from typing import Self

from aiohttp import web
from pydantic import model_validator

from balancer.config.schema.endpoint import EndpointConfig
from balancer.config.schema.section import EndpointWeight, Section
from balancer.control.admin.channel import SiblingChannel, ways_of
from balancer.control.admin.requests import DESCRIBE, body_of, plane_of
from balancer.control.admin.status import endpoint_status, leaving_status, panic_status
from policies.facts import AdminState


class EndpointChange(Section):
    """Body of PATCH and PUT of an endpoint: the attributes that can be changed."""

    state: AdminState | None = None
    weight: EndpointWeight | None = None

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if self.state is None and self.weight is None:
            raise ValueError("state, weight: give one of them or both")
        return self


def endpoint_routes(channel: SiblingChannel | None) -> list[web.RouteDef]:
    """Return the routes of /-/endpoints, for the endpoints of a cluster."""
    ask, tell = ways_of(channel)
    one, change = "/-/endpoints/{id}", tell(_change)
    return [
        web.get("/-/endpoints", ask(_list)),
        web.post("/-/endpoints", tell(_add)),
        web.get(one, ask(_get)),
        web.delete(one, tell(_remove)),
        web.patch(one, change),
        web.put(one, change),
    ]


async def _list(request: web.Request) -> web.Response:
    plane, describe = plane_of(request), request.app[DESCRIBE]
    return web.json_response(
        {
            "panic": panic_status(plane.cluster),
            "endpoints": [endpoint_status(plane, state, describe) for state in plane.cluster.router.states],
            "leaving": leaving_status(plane),
        }
    )


async def _get(request: web.Request) -> web.Response:
    return _answer(request, request.match_info["id"])


async def _add(request: web.Request) -> web.Response:
    """Body: the keys of an `[[endpoints]]`."""
    config = await body_of(request, EndpointConfig)
    # The first TLS context takes up to a quarter of a second to create.
    await asyncio.to_thread(plane_of(request).config.upstream_tls.of_these, [config])
    plane_of(request).registry.add(config)
    return _answer(request, config.id, 201)


async def _change(request: web.Request) -> web.Response:
    """Body: `state`, `weight` or both; an omitted key stays unchanged."""
    endpoint_id = request.match_info["id"]
    change = await body_of(request, EndpointChange)
    plane_of(request).registry.change(endpoint_id, change.state, change.weight)
    return _answer(request, endpoint_id)


async def _remove(request: web.Request) -> web.Response:
    endpoint_id = request.match_info["id"]
    in_flight = plane_of(request).registry.remove(endpoint_id)
    return web.json_response({"id": endpoint_id, "in_flight": in_flight})


def _answer(request: web.Request, endpoint_id: str, status: int = 200) -> web.Response:
    plane = plane_of(request)
    plane.registry.member(endpoint_id)
    state = plane.cluster.router.find(endpoint_id)
    return web.json_response(endpoint_status(plane, state, request.app[DESCRIBE]), status=status)
