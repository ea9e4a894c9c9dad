"""Selection of the origin of a request by Host or by path prefix, and the head of the request for it. Pure: no I/O.

A prefix applies only if the Host is this machine: an address, localhost or a configured name. Then it takes precedence
over an origin with that Host. A request with any other Host, as of a page that a browser loaded under another name (DNS
rebinding), is refused. An origin gets its own Host and no data about the client: `X-Forwarded-*` is for hops that trust
each other. `Via` stays (RFC 9110 § 7.6.3), and so does X-Request-ID, for correlation.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from balancer.control.control_plane import ControlPlane
from balancer.errors import RequestRejected
from balancer.http.h1.fields import END_OF_HEAD, found, lines_of, without
from balancer.http.h1.request_fields import RequestFields
from balancer.http.h1.request_head import Request
from balancer.syntax.networks import parsed
from balancer.syntax.urls import host_in


class Origin:
    """An origin and its cluster. `authority` is the Host that it gets."""

    def __init__(
        self, name: str, url: str, host: str | None, prefix: str | None, control_plane: ControlPlane
    ) -> None:
        self.name = name
        self.url = url
        self.host = host
        self.prefix = prefix
        self.control_plane = control_plane
        self.cluster = control_plane.cluster
        self.authority = url.partition("://")[2].encode()


class Origins:
    """All origins of the sidecar, with their selectors."""

    def __init__(self, origins: Iterable[Origin], own_names: Iterable[str] = ()) -> None:
        self.apply(origins, own_names)

    def apply(self, origins: Iterable[Origin], own_names: Iterable[str]) -> None:
        """Replace the origins; applies from the next request on."""
        self.all = list(origins)
        self._by_host = {origin.host.encode(): origin for origin in self.all if origin.host is not None}
        prefixes = [(origin.prefix.encode(), origin) for origin in self.all if origin.prefix is not None]
        self._by_prefix = sorted(prefixes, key=lambda pair: -len(pair[0]))
        self._own = frozenset(name.encode() for name in (*own_names, "localhost"))

    def choose(self, authority: bytes, target: bytes) -> tuple[Origin, bytes]:
        """Return the origin and the target for it. Raises `RequestRejected`."""
        host = host_in(authority).strip(b"[]")
        is_own = host in self._own or parsed(host.decode("latin-1")) is not None
        origin = self._by_host.get(host)
        found = self._of_path(target) if is_own else None
        if (
            found is not None
        ):  # takes precedence: an origin on this machine has the Host that prefixes are used with
            return found
        if origin is not None:
            return origin, target
        if is_own:
            raise RequestRejected(
                404, "unknown_path", "no origin here is for this path; see its prefix, or send its Host"
            )
        raise RequestRejected(421, "unknown_origin", f"no origin here is for {host.decode('latin-1')}")

    def _of_path(self, target: bytes) -> tuple[Origin, bytes] | None:
        for prefix, origin in self._by_prefix:
            if target.startswith(prefix):
                return origin, target[len(prefix) - 1 :]
            path, mark, query = target.partition(b"?")
            if path == prefix[:-1]:
                return origin, b"/" + mark + query
        return None


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
