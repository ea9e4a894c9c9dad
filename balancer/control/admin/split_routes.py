"""/-/splits: show and change the weights of splits at run time, in all processes, and tell the other processes when a
canary gets no more requests.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from functools import partial

from aiohttp import web

from balancer.config.schema.route_parts import SplitChange
from balancer.control.admin.channel import SiblingChannel, ways_of
from balancer.control.admin.mirrors_splits_report import split_status
from balancer.control.admin.requests import body_of
from balancer.control.control_plane import ControlPlane
from balancer.routes.split import Split

PATH = "/-/splits"


class SplitRoutes:
    """Routes of /-/splits."""

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
