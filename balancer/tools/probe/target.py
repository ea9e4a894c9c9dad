"""Target of a probe: a parsed URL, and the head of the request for it. Pure.

Only GET and HEAD requests without a body may be sent.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from balancer.config.schema.endpoint import UNIX, worker_address
from balancer.syntax.urls import server_url
from policies.facts import Endpoint

MUST_BE = "must be http://host[:port][/path], https://… or http+unix:///socket[:/path]"
_FIT_FOR_A_TARGET = re.compile(r"[!-\"$-~]+").fullmatch
_UNFIT_FOR_A_NAME = re.compile(r"[^A-Za-z0-9._-]+")


class BadTarget(ValueError):
    """Invalid URL; the message is one line."""


@dataclass(frozen=True, slots=True)
class ProbeTarget:
    """A server and a path: `authority` is that of its URL, or the path of its Unix socket; `path` is the request target
    with its query. `requested`: the Host, None: the authority, or localhost."""

    scheme: str
    authority: str
    host: str
    path: str
    requested: str | None = None

    @property
    def is_tls(self) -> bool:
        return self.scheme == "https"

    @property
    def origin(self) -> str:
        return f"{self.scheme}://{self.authority}"

    @property
    def url(self) -> str:
        """The URL that was given, without what it may leave out."""
        return f"{self.origin}{':' if self.origin.startswith(UNIX) else ''}{self.path}"

    @property
    def name(self) -> str:
        """Endpoint id of the server: api.example.org."""
        return _UNFIT_FOR_A_NAME.sub("-", self.authority).strip("-._")[:64] or "server"

    @property
    def endpoint(self) -> Endpoint:
        """The server as an endpoint, for routes and pools."""
        return Endpoint(self.name, self.origin, "default")

    def head(self, method: str) -> bytes:
        """Return the head of a request."""
        host = self.requested or ("localhost" if self.origin.startswith(UNIX) else self.authority)
        lines = (f"{method} {self.path} HTTP/1.1", f"Host: {host}", "Accept: */*")
        return "\r\n".join((*lines, "User-Agent: steelyard-probe", "", "")).encode("ascii")


def target_of(url: str, requested: str | None = None) -> ProbeTarget:
    """Parse a URL; `requested` is the Host, None: that of the URL. Raises `BadTarget`."""
    if url.startswith(UNIX):
        socket, _, path = url.removeprefix(UNIX).partition(":")
        try:
            worker_address(UNIX + socket)
        except ValueError as error:
            raise BadTarget(str(error)) from None
        return _target("http+unix", socket, socket, path or "/", requested, url)
    parts = server_url(url)
    if parts is None or parts.username is not None:
        raise BadTarget(f"{MUST_BE}, got '{url}'")
    host, port = parts.hostname or "", parts.port
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    shown = f"[{host}]" if ":" in host else host
    return _target(parts.scheme, shown if port is None else f"{shown}:{port}", host, path, requested, url)


def _target(
    scheme: str, authority: str, host: str, path: str, requested: str | None, url: str
) -> ProbeTarget:
    if not (_FIT_FOR_A_TARGET(path) and path.startswith("/") and _FIT_FOR_A_TARGET(host)):
        raise BadTarget(f"must be written in ASCII, escaped where needed, got '{url}'")
    return ProbeTarget(scheme, authority, host, path, requested)
