"""A route: its conditions, and what is done with the requests that meet them. Pure: no I/O."""

from __future__ import annotations

import re
from collections.abc import Iterable
from http import HTTPStatus
from typing import Final

from balancer.authorization.authorizer import Authorizer
from balancer.cluster.cluster import Cluster
from balancer.config.schema.routes import AnswerConfig, RedirectConfig, RouteConfig
from balancer.exchange.field_edits import Edits
from balancer.http.h1.fields import Values, found, host_of, lines_of, scheme_of
from balancer.http.h1.request_head import Request
from balancer.mirroring.mirror import Mirror
from balancer.rate_limits.limiter import Limiter
from balancer.routes.split import Split
from balancer.syntax.urls import host_in

ANY: Final = b"*"

_NO_LINES: Final = re.compile(rb"\n(:):()")
"""Matches no head: no name of a field begins with a colon."""


class FieldValues:
    """Values of the fields that routes have conditions on, of one request: searched at most once, if a route asks."""

    def __init__(self, lines: re.Pattern[bytes], head: bytes) -> None:
        self._lines = lines
        self._head = head
        self._values: Values | None = None

    def has(self, name: bytes, wanted: bytes) -> bool:
        """Return whether a field of this name, in lower case, has the value `wanted`, or any if that is `ANY`."""
        values = self._values
        if values is None:
            self._values = values = {}
            for found_name, value, _ in found(self._lines, self._head):
                values.setdefault(found_name, []).append(value)
        of_name = values.get(name)
        return of_name is not None and (wanted == ANY or wanted in of_name)


NO_VALUES: Final = FieldValues(_NO_LINES, b"")
"""Values for a route without conditions on fields."""


def lines_asked_for(routes: Iterable[Route]) -> re.Pattern[bytes]:
    """Return an expression for the lines of all fields that the conditions of `routes` name."""
    names = {re.escape(name) for route in routes for name, _ in route.fields}
    return lines_of(b"|".join(sorted(names))) if names else _NO_LINES


class Route:
    """A route to `cluster`, or, if that is None, one that is answered here.

    `label` has its conditions in words. `limiter` has its rate limits; `mirror` copies its requests, and `authorizer`
    grants them; `edits` changes their fields. `fields` are its conditions on fields: a name in lower case, and the
    value that one of the fields must have, or `ANY`.
    """

    def __init__(
        self,
        config: RouteConfig,
        cluster: Cluster | None,
        limiter: Limiter | None = None,
        mirror: Mirror | None = None,
        authorizer: Authorizer | None = None,
        split: Split | None = None,
        edits: Edits | None = None,
        label: str = "",
    ) -> None:
        self.label = label or str(config)
        self.cluster = cluster
        self.split = split
        self.limiter = limiter
        self.mirror = mirror
        self.authorizer = authorizer
        self.edits = edits
        self.redirect: RedirectConfig | None = config.redirect
        self.answer: AnswerConfig | None = config.answer
        self.rank = (len(config.headers), bool(config.methods), config.scheme is not None)
        self._methods = frozenset(method.encode() for method in config.methods)
        self._scheme = (config.scheme or "").encode()
        self.fields = tuple((name.lower().encode(), value.encode()) for name, value in config.headers.items())
        self.is_plain = not (self._methods or self._scheme or self.fields or self.redirect)
        self._prefix = (config.prefix or "").removesuffix("/").encode()
        self._rewrites = config.strip_prefix or config.replace_prefix is not None
        self._replacement = (config.replace_prefix or "").removesuffix("/").encode()

    def matches(self, request: Request, values: FieldValues) -> bool:
        """Return whether a request with this route's host and path meets its other conditions."""
        if self._methods and request.method not in self._methods:
            return False
        if self._scheme and scheme_of(request.head) != self._scheme:
            return False
        for name, wanted in self.fields:  # a generator costs more than the search
            if not values.has(name, wanted):
                return False
        return self.redirect is None or not _is_there(self.redirect, request.head)

    def rewrite(self, request: Request) -> None:
        """Remove or replace the prefix of the request, if that is configured and its target is a path. The worker gets
        what was removed in X-Forwarded-Prefix, behind what a trusted proxy has removed before.
        """
        if not (self._rewrites and request.target.startswith(b"/")):  # OPTIONS * and CONNECT have no path
            return
        _, mark, query = request.target.partition(b"?")
        path = self._replacement + request.path[len(self._prefix) :]
        target = b"%b%b%b" % (path if path.startswith(b"/") else b"/" + path, mark, query)
        request.retarget(target, b"\r\nX-Forwarded-Prefix: %b" % self._prefix if self._prefix else b"")

    def response(self, request: Request) -> tuple[int, bytes, bytes]:
        """Return status, field lines and body of the response that the balancer gives itself."""
        if self.answer is not None:
            return _fixed(self.answer)
        assert self.redirect is not None  # a route without a cluster redirects or answers
        return _redirected(self.redirect, request)


def _fixed(answer: AnswerConfig) -> tuple[int, bytes, bytes]:
    body = answer.body.encode()
    fields = b"Content-Type: %b\r\n" % answer.content_type.encode() if body else b""
    return answer.status, fields, body


def _is_there(redirect: RedirectConfig, head: bytes) -> bool:
    """Return whether a request already asks for what the redirect leads to, so that it would loop.

    Ports do not count: a proxy in front may leave them out. A scheme that is not known may be the wanted one.
    """
    if redirect.host is not None and host_in(host_of(head)) != host_in(redirect.host.encode()):
        return False
    return redirect.scheme is None or scheme_of(head) in (b"", redirect.scheme.encode())


def _redirected(redirect: RedirectConfig, request: Request) -> tuple[int, bytes, bytes]:
    host = host_of(request.head)
    if redirect.host is not None:
        host = redirect.host.encode()
    elif redirect.scheme is not None:
        host = host_in(host)
    scheme = redirect.scheme.encode() if redirect.scheme is not None else scheme_of(request.head)
    scheme = scheme and scheme + b":"  # without one, the client keeps its own (RFC 3986 § 4.2)
    target = request.target if request.target.startswith(b"/") else b"/"
    return redirect.status, b"Location: %b//%b%b\r\n" % (scheme, host, target), b""


def phrase_of(status: int) -> bytes:
    """Return the reason phrase of a status; empty if it has none."""
    try:
        return HTTPStatus(status).phrase.encode()
    except ValueError:
        return b""
