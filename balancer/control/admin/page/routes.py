"""Routes of the live page: the document, the stream of snapshots, and the policies to choose from."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import islice
from types import NoneType, UnionType
from typing import Any, get_args, get_origin
from weakref import WeakKeyDictionary

from aiohttp import web

from balancer.cluster.explaining import Explanations
from balancer.config.schema.routes import DEFAULT
from balancer.control.admin.channel import SiblingChannel
from balancer.control.admin.client import target_of
from balancer.control.admin.page.document import page
from balancer.control.admin.page.sampler import EventStreams, Sampler
from balancer.control.admin.page.window import PICKS
from balancer.control.admin.policy_report import policy_status, raw
from balancer.control.admin.requests import is_from_sibling, plane_of
from balancer.control.admin.routes_report import events_status
from balancer.control.admin.status import (
    clients_status,
    endpoint_facts,
    panic_status,
    process_counts,
    reload_status,
    shared_status,
)
from balancer.control.admin.traffic_report import inference_status, splits_status
from balancer.control.control_plane import ControlPlane
from policies import registry
from policies.endpoint.state import EndpointState
from policies.errors import BrokenPolicy
from policies.policy import PolicyMaker

SAMPLE = "/-/sample"
"""Path at which a sibling process answers with its sample."""


class PageRoutes:
    """Routes of the live page; one sampler for all viewers of a cluster in this process."""

    def __init__(self, control_plane: ControlPlane, channel: SiblingChannel | None = None) -> None:
        self._control_plane = control_plane
        self._channel = channel
        self._samplers: WeakKeyDictionary[ControlPlane, Sampler] = WeakKeyDictionary()  # by cluster
        self.streams = EventStreams()

    def routes(self) -> Iterable[web.RouteDef]:
        """Return the routes."""
        return [
            web.get("/", self._front),
            web.get("/-/", self._page),
            web.get("/-/stream", self._stream, allow_head=False),
            web.get("/-/policies", self._policies),
            web.get(SAMPLE, self._sample),
        ]

    def close(self) -> None:
        """End all streams at once, also those whose viewer does not read."""
        for sampler in self._samplers.values():
            sampler.close()
        self.streams.close()

    async def _front(self, request: web.Request) -> web.Response:
        """Redirect to the page, on `admin.listen`."""
        raise web.HTTPFound("/-/")

    async def _page(self, request: web.Request) -> web.Response:
        body, fields = page()
        return web.Response(body=body, content_type="text/html", charset="utf-8", headers=fields)

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        """Send events until the viewer leaves or the process ends."""
        return await self.streams.respond(request, self.sampler(plane_of(request)).events())

    def sampler(self, plane: ControlPlane) -> Sampler:
        """Return the sampler of a cluster."""
        if plane not in self._samplers:
            self._samplers[plane] = Sampler(partial(self._samples, plane.cluster.name))
        return self._samplers[plane]

    async def _policies(self, request: web.Request) -> web.Response:
        return web.json_response(await asyncio.to_thread(policies_report))

    async def _sample(self, request: web.Request) -> web.Response:
        """Answer a sibling process."""
        if not is_from_sibling(request):
            raise web.HTTPNotFound
        return web.json_response(await process_sample(plane_of(request), self._control_plane))

    async def _samples(self, name: str) -> Sequence[dict[str, Any]]:
        """Return the samples of the cluster of all processes; none if a reload has removed it."""
        plane = self._control_plane.named.get(name) if name else self._control_plane
        if plane is None:
            return []
        own = process_sample(plane, self._control_plane)
        if self._channel is None:
            return [await own]
        answers = await self._channel.gather(target_of(SAMPLE, name or None))
        return [await own, *map(json.loads, answers)]


def policies_report() -> list[dict[str, Any]]:
    """Return name, description and options of each policy; one that cannot be loaded has no options."""
    return [
        {"name": name, "description": description, "options": options_report(name)}
        for name, description in registry.describe().items()
    ]


def options_report(name: str) -> list[dict[str, Any]]:
    """Return name, type and default of each option of a policy; the default is None where there is none."""
    try:
        options = registry.options_of(registry.find(name))
    except BrokenPolicy:
        return []
    return [
        {
            "name": option,
            "type": type_name(parameter.annotation),
            "default": default_of(parameter),
        }
        for option, parameter in options.items()
    ]


def type_name(annotation: Any) -> str:
    """Return the type of an option as the live page shows it, such as "float" or "str or table"."""
    if annotation == PolicyMaker:
        return "policy"
    names = []
    for part in get_args(annotation) if isinstance(annotation, UnionType) else (annotation,):
        if part is not NoneType:
            names.append("table" if get_origin(part) is Mapping else getattr(part, "__name__", "value"))
    return " or ".join(names)


def default_of(parameter: inspect.Parameter) -> Any:
    """Return the default as JSON has it; None for one that is an object, or for none."""
    default = parameter.default
    return default if isinstance(default, str | int | float | bool) else None


SLICE = 32
"""Endpoints that are read without a break; requests are served between two slices."""


async def process_sample(control_plane: ControlPlane, front: ControlPlane) -> dict[str, Any]:
    """Return this process's sample of a cluster, its part of a snapshot; `front` is the control plane of the default
    one.

    Values come from the functions of /-/status, so the page and the status cannot differ. `/-/status` itself is three
    times as expensive: it lists names, routes and single connections, which the page does not show.

    Latency is in raw buckets, which grow only, as in /-/latency.
    """
    cluster, explanations = control_plane.cluster, control_plane.explanations
    endpoints = []
    for number, state in enumerate(list(cluster.router.states), 1):
        if state.id in cluster.pools.by_id:  # else it was removed during a break
            endpoints.append(endpoint_sample(control_plane, state))
        if number % SLICE == 0:
            await asyncio.sleep(0)
    return {
        "at": cluster.now(),
        **process_counts(control_plane),
        **clients_status(front.cluster),
        "named": [DEFAULT, *front.named] if front.named else [],
        "tunnels": {"open": len(cluster.tunnels), "opened": cluster.tunnels.opened},
        "reload": reload_status(front),
        "policy": policy_status(control_plane, raw),
        "inference": inference_status(cluster, raw),
        "panic": panic_status(cluster),
        "shared": shared_status(control_plane),
        "explaining": explanations.status(),
        "picks": recent_picks(explanations, cluster.now()),
        "events": events_status(cluster),
        **splits_status(front.splits),
        "endpoints": endpoints,
    }


def endpoint_sample(control_plane: ControlPlane, state: EndpointState) -> dict[str, Any]:
    """Return one endpoint with its raw buckets."""
    pool = control_plane.cluster.pools.by_id[state.id]
    return endpoint_facts(control_plane, state) | {
        "connections": {
            "idle": pool.idle,
            "leased": pool.leased,
            "opening": pool.opening,
            "opened": pool.counts.opened,
        },
        "buckets": list(state.histogram.counts),
    }


def recent_picks(explanations: Explanations, now: float) -> list[dict[str, Any]]:
    """Return the last explained picks, newest first; `age` in seconds. /-/explain has their numbers."""
    return [
        {"age": round(now - pick.now, 3), "picked": pick.picked and pick.picked.id, "text": pick.text}
        for pick in islice(reversed(explanations.trace.recent), PICKS)
    ]
