"""Request heads for origins. Pure: no I/O.

An origin gets its own Host and no data about the client: `X-Forwarded-*` is for hops that trust each other. `Via` stays
(RFC 9110 § 7.6.3), and so does X-Request-ID, for correlation.
"""

from __future__ import annotations

from typing import Final

from balancer.http.h1.fields import END_OF_HEAD, found, lines_of, without
from balancer.http.h1.request_fields import RequestFields
from balancer.http.h1.request_head import Request
from balancer.tools.sidecar.origins import Origin, Origins

_HOST: Final = lines_of(b"host")
_NOT_PASSED_ON: Final = (b"host", b"x-forwarded-for", b"x-forwarded-proto", b"x-forwarded-host")


class Heads:
    """Request heads of one client connection; cached, as most requests have the same fields."""

    def __init__(self, origins: Origins) -> None:
        self._origins = origins
        self._fields: RequestFields | None = None  # fields of the last request
        self._authority = b""
        self._blocks: dict[Origin, bytes] = {}  # header block for each origin

    def outgoing(self, request: Request) -> tuple[Origin, Request]:
        """Return the origin and the request for it. Raises `RequestRejected`."""
        fields = request.fields
        if fields is not self._fields:
            self._fields, self._blocks = fields, {}
            self._authority = next(value for _, value, _ in found(_HOST, fields.outgoing))
        origin, target = self._origins.choose(self._authority, request.target)
        block = self._blocks.get(origin)
        if block is None:
            self._blocks[origin] = block = (
                b"\r\nHost: " + origin.authority + without(_NOT_PASSED_ON, fields.outgoing)
            )
        line = b"%b %b HTTP/1.1" % (request.method, target)
        head = b"".join((line, block, request.id, END_OF_HEAD))
        return origin, Request(request.method, target, head, request.id, fields, request.raw)
