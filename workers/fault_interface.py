"""HTTP interface `/-/faults` of a worker."""

from __future__ import annotations

import ipaddress
from asyncio import BaseTransport
from collections.abc import Set
from weakref import WeakSet

from aiohttp import web
from pydantic import ValidationError

from workers.faults import HEALED, Faults, Switchboard

FORWARDING_FIELDS = ("X-Forwarded-For", "Forwarded", "Via", "X-Real-IP")


class Control:
    """Handlers of `/-/faults` for one switchboard, for clients on this machine only; others get 404.

    A load balancer on this machine is a loopback peer, too, and forwards what its clients send. It forwards no path
    that begins with /-/, but an equivalent one such as /%2D/faults; so the path must be written literally, and a
    request with the header fields of a proxy is refused.

    GET shows the active faults, PUT replaces them with a JSON object (`{}` clears them), DELETE clears them. `peers`
    are the connections that have sent a control request. `supported`: the fields of `Faults` that this worker has.
    `has_link`: its round trip can be changed.
    """

    def __init__(self, switchboard: Switchboard, supported: Set[str], has_link: bool = False) -> None:
        self._switchboard = switchboard
        lacks = (name for name in Faults.model_fields if name not in supported)
        self._lacks = dict.fromkeys(lacks, "this kind of worker has no such fault")
        if not has_link:
            self._lacks["rtt"] = (
                "this worker was started without --rtt and has no link whose length could change"
            )
        self.peers: WeakSet[BaseTransport] = WeakSet()

    def add_to(self, app: web.Application) -> None:
        app.router.add_get("/-/faults", self.show)
        app.router.add_put("/-/faults", self.put)
        app.router.add_delete("/-/faults", self.heal)

    async def show(self, request: web.Request) -> web.Response:
        self._admit(request)
        return self._in_force()

    async def put(self, request: web.Request) -> web.Response:
        """Replace the active faults; 422 names every invalid field."""
        self._admit(request)
        try:
            faults = Faults.model_validate_json(await request.read())
        except ValidationError as error:
            return invalid(422, "invalid_faults", error)
        wrong = [
            {"field": field, "message": message}
            for field, message in self._lacks.items()
            if getattr(faults, field) != getattr(HEALED, field)
        ]
        if wrong:
            return refused(422, "invalid_faults", wrong)
        self._switchboard.put(faults)
        return self._in_force()

    async def heal(self, request: web.Request) -> web.Response:
        """Clear all faults and respond with the empty set."""
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
    """Return an error response that names every invalid field and the reason."""
    detail = [
        {
            "field": ".".join(map(str, item["loc"])) or "body",
            "message": item["msg"].removeprefix("Value error, "),
        }
        for item in error.errors(include_url=False, include_context=False)
    ]
    return refused(status, reason, detail)


def refused(status: int, reason: str, detail: list[dict[str, str]]) -> web.Response:
    return web.json_response({"error": reason, "detail": detail}, status=status)
