"""What is probed: a URL taken apart, and the request that is sent there.

Rule of this file: pure. Only GET and HEAD are ever sent, and neither has a body.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import urlsplit

from policies.routing.facts import Endpoint

MUST_BE = "must be http://host[:port][/path] or https://…"
_FIT_FOR_A_TARGET = re.compile(r"[!-\"$-~]+").fullmatch
_UNFIT_FOR_A_NAME = re.compile(r"[^A-Za-z0-9._-]+")


class BadTarget(ValueError):
    """One line: what is wrong with the URL."""


@dataclass(frozen=True, slots=True)
class Target:
    """A server and one of its paths. `authority` is what Host says, `path` the request's target, with its query."""

    scheme: str
    authority: str
    host: str
    path: str

    @property
    def is_tls(self) -> bool:
        return self.scheme == "https"

    @property
    def origin(self) -> str:
        """Scheme, host and port."""
        return f"{self.scheme}://{self.authority}"

    @property
    def name(self) -> str:
        """An id for it as an endpoint: api.example.org."""
        return _UNFIT_FOR_A_NAME.sub("-", self.authority).strip("-._")[:64] or "server"

    @property
    def endpoint(self) -> Endpoint:
        """The value that routes and pools work with."""
        return Endpoint(self.name, self.origin, "default")

    def head(self, method: str) -> bytes:
        """A request, as bytes."""
        lines = (f"{method} {self.path} HTTP/1.1", f"Host: {self.authority}", "Accept: */*")
        return "\r\n".join((*lines, "User-Agent: steelyard-probe", "", "")).encode("ascii")


def target_of(url: str) -> Target:
    """Raises `BadTarget`."""
    problem = f"{MUST_BE}, got '{url}'"
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise BadTarget(problem) from None
    host = parts.hostname or ""
    if parts.scheme not in ("http", "https") or not host or parts.username is not None or port == 0:
        raise BadTarget(problem)
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    if not (_FIT_FOR_A_TARGET(path) and _FIT_FOR_A_TARGET(host)):
        raise BadTarget(f"must be written in ASCII, escaped where needed, got '{url}'")
    shown = f"[{host}]" if ":" in host else host
    return Target(parts.scheme, shown if port is None else f"{shown}:{port}", host, path)
