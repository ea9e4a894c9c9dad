"""Routes of the live page: the document, the stream of snapshots, and the policies to choose from."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from types import NoneType, UnionType
from typing import Any, get_args, get_origin
from weakref import WeakKeyDictionary

from aiohttp import web

from balancer.control.admin.channel import SiblingChannel
from balancer.control.admin.client import target_of
from balancer.control.admin.page.document import page
from balancer.control.admin.page.sample import process_sample
from balancer.control.admin.page.sampler import Sampler
from balancer.control.admin.page.streaming import EventStreams
from balancer.control.admin.requests import is_from_sibling, plane_of
from balancer.control.control_plane import ControlPlane
from policies import registry
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
