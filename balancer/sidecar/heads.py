"""The head of a request on its way to an origin.

Rule of this file: pure. An origin is told its own Host and nothing of who asked here: `X-Forwarded-*` is between
machines that know each other. `Via` stays (RFC 9110 § 7.6.3), and so does X-Request-ID, for finding a request again.
"""

from __future__ import annotations

from typing import Final

from balancer.http1.fields import END_OF_HEAD, found, lines_of, without
from balancer.http1.request_fields import RequestFields
from balancer.http1.request_head import Request
from balancer.sidecar.origins import Origin, Origins

_HOST: Final = lines_of(b"host")
_NOT_PASSED_ON: Final = (b"host", b"x-forwarded-for", b"x-forwarded-proto", b"x-forwarded-host")


class Heads:
    """Those of one client's connection; most of them have the same fields."""

    def __init__(self, origins: Origins) -> None:
        self._origins = origins
        self._fields: RequestFields | None = None  # the last ones
        self._authority = b""
        self._blocks: dict[Origin, bytes] = {}  # and what they come to for each origin

    def outgoing(self, request: Request) -> tuple[Origin, Request]:
        """Who is asked, and what. Raises `RequestRejected`."""
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
