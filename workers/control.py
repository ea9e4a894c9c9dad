"""The switches of a worker over HTTP: `/-/faults`, for programs on this machine only; others see 404.

A load balancer on this machine is a loopback peer, too, and passes on what its clients send. It forwards no path that
begins with /-/, but one that only means the same, such as /%2D/faults; so the path must be written that way, and a
request with the fields of a proxy is refused.

GET shows the faults in force, PUT replaces them with a JSON object (`{}` heals), DELETE heals.
"""

from __future__ import annotations

import asyncio
import ipaddress
from weakref import WeakSet

from aiohttp import web
from pydantic import ValidationError

from workers.faults import Faults, Switchboard

FORWARDING_FIELDS = ("X-Forwarded-For", "Forwarded", "Via", "X-Real-IP")

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
        is_local = request.remote is not None and ipaddress.ip_address(request.remote).is_loopback
        is_forwarded = any(name in request.headers for name in FORWARDING_FIELDS)
        if not is_local or is_forwarded or not request.raw_path.startswith("/-/"):
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
