"""What a unit has been told since its start, for a process of it that starts later.

Rule of this file: it is read off what is in force. A list of orders would grow for ever, and be out of step with a
reload that takes some of them back.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from aiohttp import web

from balancer.config.load import ConfigError
from balancer.config.sections import EndpointConfig, PolicySpec
from balancer.log.output import complain
from balancer.process.channel import Channel, is_inner
from balancer.tls.contexts import TlsProblem
from policies.errors import PoliciesError, UnknownEndpoint
from policies.routing.facts import AdminState

if TYPE_CHECKING:
    from balancer.config.reload import Reloads
    from balancer.proxy import Proxy

ORDERS = "/-/orders"


class RuntimeOverrides:
    """Those of one process: told to the others on `channel`, and taken from one of them at the start."""

    def __init__(
        self, proxy: Proxy, reloads: Reloads, channel: Channel, say: Callable[[str], None] = complain
    ) -> None:
        self._proxy = proxy
        self._reloads = reloads
        self._channel = channel
        self._say = say
        self._are_known = asyncio.Event()

    async def admit(self, request: web.Request) -> None:
        """While this process does not know them yet it has nothing to tell the others (503), and what it is told now
        comes after what it was told before."""
        if self._are_known.is_set() or not is_inner(request):
            return
        if request.method == "GET":
            raise web.HTTPServiceUnavailable
        await self._are_known.wait()

    async def tell(self, request: web.Request) -> web.Response:
        """For a process that has just started."""
        if not is_inner(request):
            raise web.HTTPNotFound
        return web.json_response(self._told())

    def _told(self) -> dict[str, Any]:
        proxy, roster = self._proxy, self._proxy.roster
        added, removed, weights = roster.orders()
        return {
            "reloads": proxy.reload_counts.done,
            "policy": proxy.policy.spec,
            "added": [config.model_dump(mode="json") for config in added],
            "removed": removed,
            "weights": weights,
            "states": {state.id: state.standing.value for state in proxy.router.states if not state.enabled},
        }

    async def catch_up(self) -> None:
        """Go by what another goes by. A configuration that is bad by now is told of; then that of the start stays."""
        told = await self._asked()
        if told is not None and told["reloads"]:
            try:
                await self._reloads.run()
            except ConfigError as error:
                self._say(f"a process that was started later keeps the configuration of the start: {error}")
            await self._proxy.discovery.start(self._proxy.now())
            told = await self._asked()
        if told is not None:
            self._obey(told)
        self._are_known.set()

    async def _asked(self) -> dict[str, Any] | None:
        """What the first says that knows them; None where nobody does."""
        for body in await self._channel.gather(ORDERS):
            told: dict[str, Any] = json.loads(body)
            return told
        return None

    def _obey(self, told: dict[str, Any]) -> None:
        proxy = self._proxy
        try:
            if (spec := PolicySpec.model_validate(told["policy"])) != proxy.policy:
                proxy.apply_policy(spec)
            added = [EndpointConfig.model_validate(config) for config in told["added"]]
            proxy.roster.obey(added, told["removed"], told["weights"])
        except (PoliciesError, TlsProblem) as error:  # what the others have loaded is there no more
            self._say(f"a process that was started later cannot do as it is told: {error}")
        for endpoint_id, state in told["states"].items():
            with suppress(UnknownEndpoint):  # discovered by the others, and not yet here
                proxy.roster.change(endpoint_id, state=AdminState(state))
