"""Admin routes about one cluster: /-/endpoints changes its endpoints at run time, /-/record, /-/explain and /-/latency
inspect its live traffic; and /-/splits, about the weights of splits.

Bodies are validated by the models of the configuration. Every error is one line with a 4xx status and changes nothing.
An inspection has a time limit or is stopped here; while it is off it costs a request nothing.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from functools import partial
from typing import Annotated, Self

from aiohttp import web
from pydantic import Field, model_validator

from balancer.config.schema.endpoint import EndpointConfig
from balancer.config.schema.route_parts import SplitChange
from balancer.config.schema.section import EndpointWeight, Seconds, Section
from balancer.control.admin.channel import SiblingChannel, ways_of
from balancer.control.admin.requests import DESCRIBE, body_of, is_from_sibling, plane_of
from balancer.control.admin.status import endpoint_status, latency_status, leaving_status, panic_status
from balancer.control.admin.traffic_report import split_status
from balancer.control.control_plane import ControlPlane
from balancer.routes.split import Split
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


class RecordRequest(Section):
    """Body of POST /-/record."""

    seconds: Seconds | None = Field(default=None, description="until it ends by itself. None: by DELETE")


class ExplainRequest(Section):
    """Body of POST /-/explain."""

    seconds: Annotated[float, Field(gt=0, le=3600)] = Field(
        default=60.0, description="until it ends by itself"
    )
    keep: int = Field(default=100, ge=1, le=1000, description="last picks that are kept")


def cluster_routes(channel: SiblingChannel | None) -> list[web.RouteDef]:
    """Return the routes."""
    ask, tell = ways_of(channel)
    one, change = "/-/endpoints/{id}", tell(partial(_change, channel))
    return [
        web.get("/-/endpoints", ask(_list)),
        web.post("/-/endpoints", tell(_add)),
        web.get(one, ask(_get)),
        web.delete(one, tell(_remove)),
        web.patch(one, change),
        web.put(one, change),
        web.get("/-/explain", ask(_explain)),
        web.post("/-/explain", tell(_start_explaining)),
        web.delete("/-/explain", tell(_stop_explaining)),
        web.get("/-/latency", ask(_latency)),
        web.get("/-/record", ask(_record)),
        web.post("/-/record", tell(_start_recording)),
        web.delete("/-/record", tell(_stop_recording)),
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
    await asyncio.to_thread(plane_of(request).config.upstream_tls.prepare, [config])
    plane_of(request).registry.add(config)
    return _answer(request, config.id, 201)


async def _change(channel: SiblingChannel | None, request: web.Request) -> web.Response:
    """Body: `state`, `weight` or both; an omitted key stays unchanged. An endpoint that another process has discovered
    first is changed here when it is found."""
    endpoint_id, registry = request.match_info["id"], plane_of(request).registry
    change = await body_of(request, EndpointChange)
    is_known = is_from_sibling(request)
    if channel is not None and not is_known and endpoint_id not in registry.members:
        is_known = bool(await channel.gather(request.raw_path))
    (registry.expect if is_known else registry.change)(endpoint_id, change.state, change.weight)
    return _answer(request, endpoint_id) if endpoint_id in registry.members else web.json_response({})


async def _remove(request: web.Request) -> web.Response:
    endpoint_id = request.match_info["id"]
    registry = plane_of(request).registry
    in_flight, left = registry.remove(endpoint_id), registry.members.get(endpoint_id)
    still = {} if left is None else {"source": left.source}
    return web.json_response({"id": endpoint_id, "in_flight": in_flight, **still})


def _answer(request: web.Request, endpoint_id: str, status: int = 200) -> web.Response:
    plane = plane_of(request)
    plane.registry.member(endpoint_id)
    state = plane.cluster.router.find(endpoint_id)
    return web.json_response(endpoint_status(plane, state, request.app[DESCRIBE]), status=status)


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


PATH = "/-/splits"


class SplitRoutes:
    """Routes of /-/splits: show and change the weights of splits at run time, in all processes, and tell the other
    processes when a canary gets no more requests."""

    def __init__(self, control_plane: ControlPlane, channel: SiblingChannel | None = None) -> None:
        self._splits = control_plane.splits
        self._channel = channel
        self._tasks: set[asyncio.Task[None]] = set()
        if channel is not None:
            self._splits.on_reset = partial(self._tell, channel)

    def routes(self) -> Iterable[web.RouteDef]:
        """Return the routes."""
        ask, tell = ways_of(self._channel)
        return [web.get(PATH, ask(self._list)), web.put(PATH, tell(self._change))]

    async def _list(self, request: web.Request) -> web.Response:
        return self._answer(self._splits.by_route.values())

    async def _change(self, request: web.Request) -> web.Response:
        """Body: `weights`, and perhaps `route` and `reason`."""
        order = await body_of(request, SplitChange)
        return self._answer(self._splits.change(order.weights, order.route, order.reason))

    def _answer(self, splits: Iterable[Split]) -> web.Response:
        return web.json_response({"splits": [split_status(split) for split in splits]})

    def _tell(self, channel: SiblingChannel, split: Split) -> None:
        task = asyncio.get_running_loop().create_task(_send(channel, change_of(split)))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def _send(channel: SiblingChannel, order: SplitChange) -> None:
    async with channel.turn():
        await channel.ask("PUT", PATH, json.dumps(order.model_dump()).encode())


def change_of(split: Split) -> SplitChange:
    """Return the change that makes a split of another process like this one."""
    return SplitChange(weights=split.weights, route=split.route, reason=split.reason)
