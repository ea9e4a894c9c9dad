"""The switches of a worker over HTTP: `/-/faults`, for loopback peers only; others see 404.

GET shows the faults in force, PUT replaces them with a JSON object (`{}` heals), DELETE heals.
"""

from __future__ import annotations

import asyncio
import ipaddress
from weakref import WeakSet

from aiohttp import web
from pydantic import ValidationError

from workers.faults import Faults, Switchboard

NO_LINK = "this worker was started without --rtt and has no link whose length could change"


class Control:
    """Handlers over one switchboard. `peers` are the connections that have thrown a switch.

    A worker that `has_link` can be moved further away.
    """

    def __init__(self, switchboard: Switchboard, has_link: bool = False) -> None:
        self._switchboard = switchboard
        self._has_link = has_link
        self.peers: WeakSet[asyncio.BaseTransport] = WeakSet()

    def add_to(self, app: web.Application) -> None:
        """Route `/-/faults` here."""
        app.router.add_get("/-/faults", self.show)
        app.router.add_put("/-/faults", self.put)
        app.router.add_delete("/-/faults", self.heal)

    async def show(self, request: web.Request) -> web.Response:
        """The faults in force."""
        self._admit(request)
        return self._in_force()

    async def put(self, request: web.Request) -> web.Response:
        """Replace the faults in force; 422 names every field that is wrong."""
        self._admit(request)
        try:
            faults = Faults.model_validate_json(await request.read())
        except ValidationError as error:
            return invalid(422, "invalid_faults", error)
        if faults.rtt is not None and not self._has_link:
            return refused(422, "invalid_faults", [{"field": "rtt", "message": NO_LINK}])
        self._switchboard.put(faults)
        return self._in_force()

    async def heal(self, request: web.Request) -> web.Response:
        """No faults from now on."""
        self._admit(request)
        self._switchboard.heal()
        return self._in_force()

    def _admit(self, request: web.Request) -> None:
        if request.remote is None or not ipaddress.ip_address(request.remote).is_loopback:
            raise web.HTTPNotFound
        if request.transport is not None:
            self.peers.add(request.transport)

    def _in_force(self) -> web.Response:
        return web.json_response(self._switchboard.current.model_dump())


def invalid(status: int, reason: str, error: ValidationError) -> web.Response:
    """An answer that names every field that is wrong, and how."""
    detail = [
        {"field": ".".join(map(str, item["loc"])) or "body", "message": item["msg"]}
        for item in error.errors(include_url=False, include_context=False)
    ]
    return refused(status, reason, detail)


def refused(status: int, reason: str, detail: list[dict[str, str]]) -> web.Response:
    """The same, where we know ourselves what is wrong."""
    return web.json_response({"error": reason, "detail": detail}, status=status)
