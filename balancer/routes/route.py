"""A route: its conditions, and what is done with the requests that meet them. Pure: no I/O."""

from __future__ import annotations

import re
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from balancer.http1.fields import PROTO, found, host_of, lines_of, scheme_of
from balancer.http1.request_head import Request
from balancer.urls import host_in, normalized

if TYPE_CHECKING:
    from balancer.config.routes import AnswerConfig, RedirectConfig, RouteConfig
    from balancer.exchange.proxy import Proxy
    from balancer.mirroring.mirror import Mirror
    from balancer.rate_limits.limiter import Limiter

ANY: Final = b"*"

Condition = tuple[re.Pattern[bytes], bytes]
"""Lines of a field, and the value that one of them must have, or `ANY`."""


class Route:
    """A route to the pool of `proxy`, or, if that is None, one that is answered here.

    `limiter` has its rate limits; `mirror` copies its requests.
    """

    def __init__(
        self,
        config: RouteConfig,
        proxy: Proxy | None,
        limiter: Limiter | None = None,
        mirror: Mirror | None = None,
    ) -> None:
        self.proxy = proxy
        self.limiter = limiter
        self.mirror = mirror
        self.redirect: RedirectConfig | None = config.redirect
        self.answer: AnswerConfig | None = config.answer
        self.rank = (len(config.headers), bool(config.methods), config.scheme is not None)
        self._methods = frozenset(method.encode() for method in config.methods)
        self._scheme = (config.scheme or "").encode()
        self._fields: tuple[Condition, ...] = tuple(
            (lines_of(re.escape(name.encode())), value.encode()) for name, value in config.headers.items()
        )
        self.is_plain = not (self._methods or self._scheme or self._fields)
        self._prefix = (config.prefix or "").removesuffix("/").encode()
        self._rewrites = config.strip_prefix or config.replace_prefix is not None
        self._replacement = (config.replace_prefix or "").removesuffix("/").encode()

    def matches(self, request: Request) -> bool:
        """Return whether a request with this route's host and path meets its other conditions."""
        if self._methods and request.method not in self._methods:
            return False
        head = request.head
        if self._scheme and scheme_of(head) != self._scheme:
            return False
        return all(_has(head, lines, wanted) for lines, wanted in self._fields)

    def rewrite(self, request: Request) -> None:
        """Remove or replace the prefix of the request, if that is configured and its target is a path. The worker gets
        what was removed in X-Forwarded-Prefix, behind what a trusted proxy has removed before.
        """
        if not (self._rewrites and request.target.startswith(b"/")):  # OPTIONS * and CONNECT have no path
            return
        path, mark, query = request.target.partition(b"?")
        path = self._replacement + normalized(path)[len(self._prefix) :]
        target = b"%b%b%b" % (path if path.startswith(b"/") else b"/" + path, mark, query)
        head = request.head
        begin, end = head.find(b"\r\n"), head.find(PROTO)
        prefix = b"\r\nX-Forwarded-Prefix: %b" % self._prefix if self._prefix else b""
        request.target = target
        request.head = b"%b %b HTTP/1.1%b%b%b" % (request.method, target, head[begin:end], prefix, head[end:])

    def response(self, request: Request) -> tuple[int, bytes, bytes]:
        """Return status, field lines and body of the response that the balancer gives itself."""
        if self.answer is not None:
            return _fixed(self.answer)
        assert self.redirect is not None  # a route without a pool redirects or answers
        return _redirected(self.redirect, request)


def _has(head: bytes, lines: re.Pattern[bytes], wanted: bytes) -> bool:
    return any(wanted in (ANY, value) for _, value, _ in found(lines, head))


def _fixed(answer: AnswerConfig) -> tuple[int, bytes, bytes]:
    body = answer.body.encode()
    fields = b"Content-Type: %b\r\n" % answer.content_type.encode() if body else b""
    return answer.status, fields, body


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
