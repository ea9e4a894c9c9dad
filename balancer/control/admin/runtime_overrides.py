"""Runtime overrides: admin changes since the start, for a process that starts later than its siblings.

They are derived from the state in force, not from a log of changes: a log would grow without bound and contradict a
reload that reverts some of them.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from aiohttp import web

from balancer.config.problems import ConfigError
from balancer.config.schema.endpoint import EndpointConfig
from balancer.control.admin.channel import SiblingChannel
from balancer.control.admin.cluster_routes import change_of
from balancer.control.admin.policy_routes import files_in, order_of, spec_in
from balancer.control.admin.requests import is_from_sibling
from balancer.control.control_plane import ControlPlane
from balancer.control.reload import Reloads
from balancer.errors import CommandRefused
from balancer.log.output import complain
from policies.errors import PoliciesError
from policies.facts import AdminState

ORDERS = "/-/orders"


class RuntimeOverrides:
    """Runtime overrides of one process: sent to siblings on `channel`, and copied from one of them at the start."""

    def __init__(
        self,
        control_plane: ControlPlane,
        reloads: Reloads,
        channel: SiblingChannel,
        say: Callable[[str], None] = complain,
    ) -> None:
        self._control_plane = control_plane
        self._reloads = reloads
        self._channel = channel
        self._say = say
        self._is_synced = asyncio.Event()

    async def admit(self, request: web.Request) -> None:
        """Reject a sibling's GET with 503 until the overrides of this process are known, and delay its changes until
        then.
        """
        if self._is_synced.is_set() or not is_from_sibling(request):
            return
        if request.method == "GET":
            raise web.HTTPServiceUnavailable
        await self._is_synced.wait()

    async def tell(self, request: web.Request) -> web.Response:
        """Answer a sibling's request for the overrides."""
        if not is_from_sibling(request):
            raise web.HTTPNotFound
        return web.json_response(self._told())

    def _told(self) -> dict[str, Any]:
        front = self._control_plane
        return {
            "reloads": front.reload_counts.done,
            "discovered": front.known(),
            **self._told_of(front),
            "clusters": {name: self._told_of(plane) for name, plane in front.named.items()},
            "splits": [
                change_of(split).model_dump() for split in front.splits.by_route.values() if split.is_changed
            ],
        }

    def _told_of(self, control_plane: ControlPlane) -> dict[str, Any]:
        added, removed, weights, states = control_plane.registry.orders()
        return {
            "policy": order_of(control_plane.policy),
            "added": [config.model_dump(mode="json") for config in added],
            "removed": removed,
            "weights": weights,
            "states": states,
        }

    async def catch_up(self) -> None:
        """Apply the overrides of a sibling, its policy in the version that is in force there, and for sources that have
        no answer the endpoints that it knows.

        If the configuration has become invalid since the start, that is reported and the one of the start stays.
        """
        overrides = await self._fetch()
        if overrides is not None and overrides["reloads"]:
            try:
                policies = [each["policy"] for each in (overrides, *overrides["clusters"].values())]
                await self._reloads.run([file for policy in policies for file in files_in(policy)])
            except ConfigError as error:
                self._say(f"a process that was started later keeps the configuration of the start: {error}")
            for plane in (self._control_plane, *self._control_plane.named.values()):
                await plane.start()
            overrides = await self._fetch()
        if overrides is not None:
            self._control_plane.hold(overrides["discovered"])
            self._apply(self._control_plane, overrides)
            for name, plane in self._control_plane.named.items():
                if name in overrides["clusters"]:
                    self._apply(plane, overrides["clusters"][name])
            for order in overrides["splits"]:
                with suppress(CommandRefused):  # the siblings have another configuration, which is reported
                    self._control_plane.splits.change(**order)
        self._control_plane.cluster.process.joins = False
        self._is_synced.set()

    async def _fetch(self) -> dict[str, Any] | None:
        """Return the overrides of the first sibling that answers; None if none does."""
        for body in await self._channel.gather(ORDERS):
            overrides: dict[str, Any] = json.loads(body)
            return overrides
        return None

    def _apply(self, control_plane: ControlPlane, overrides: dict[str, Any]) -> None:
        try:
            spec = spec_in(overrides["policy"])
            if spec != control_plane.policy or spec.library.differs_from(control_plane.policy.library):
                control_plane.apply_policy(spec)
            added = [EndpointConfig.model_validate(config) for config in overrides["added"]]
            control_plane.registry.replace_overrides(added, overrides["removed"], overrides["weights"])
        except (PoliciesError, ConfigError) as error:  # what the siblings loaded no longer exists
            self._say(
                f"a process that was started later cannot apply the runtime overrides of the others: {error}"
            )
        for endpoint_id, state in overrides["states"].items():
            control_plane.registry.expect(endpoint_id, AdminState(state))
