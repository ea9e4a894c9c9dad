"""A route: its conditions, and what is done with the requests that meet them. Pure: no I/O."""

from __future__ import annotations

from typing import Final

from balancer.authorization.authorizer import Authorizer
from balancer.cluster.cluster import Cluster
from balancer.config.schema.routes import AnswerConfig, RedirectConfig, RouteConfig
from balancer.exchange.field_edits import Edits
from balancer.http.h1.fields import host_of, scheme_of
from balancer.http.h1.request_head import Request
from balancer.mirroring.mirror import Mirror
from balancer.rate_limits.limiter import Limiter
from balancer.routes.conditions import ANY, Asked, Condition
from balancer.routes.split import Split
from balancer.syntax.networks import NetworkSet
from balancer.syntax.urls import decoded, has_dots, host_in

MODEL_BODY: Final = 1 << 20
"""Bytes of a body that are received to find the model, unless `buffering.request` of its cluster is more."""


class Route:
    """A route to `cluster`, or, if that is None, one that is answered here.

    `label` has its conditions in words. `limiter` has its rate limits; `mirror` copies its requests, and `authorizer`
    grants them; `edits` changes their fields. `conditions` are those on fields and on the query; of the routes of a
    place only those are tried that the request has the value of `selector` for.
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
        self._fixed = None if config.answer is None else _fixed(config.answer)
        self.rank = config.specificity
        self._methods = frozenset(method.encode() for method in config.methods)
        self._scheme = (config.scheme or "").encode()
        self._clients = NetworkSet(config.clients) if config.clients else None
        self.conditions = [
            Condition(name, value, in_query=in_query)
            for in_query, wanted in ((False, config.headers), (True, config.query))
            for name, value in sorted(wanted.items())
        ]
        self.selector = next((one for one in self.conditions if one.wanted != ANY), None)
        self._model = config.model
        self.is_plain = not (
            self._methods or self._scheme or self._clients or self.conditions or self.redirect or self._model
        )
        self._prefix = (config.prefix or "").removesuffix("/").encode()
        self._rewrites = config.strip_prefix or config.replace_prefix is not None
        self._replacement = (config.replace_prefix or "").removesuffix("/").encode()

    def matches(self, request: Request, asked: Asked) -> bool:
        """Return whether a request with this route's host and path meets its other conditions."""
        if self._methods and request.method not in self._methods:
            return False
        if self._scheme and scheme_of(request.head) != self._scheme:
            return False
        for condition in self.conditions:  # a generator costs more than the search
            if not condition.holds(asked):
                return False
        if self._clients is not None and not self._clients.has(asked.address):
            return False
        if self.redirect is not None and self._is_there(self.redirect, request):
            return False
        if self._model is None:
            return True
        if request.model is None and request.fields.has_body:
            request.body_bound = max(request.body_bound, self.body_bound())
        return request.model == self._model

    def body_bound(self) -> int:
        """Return how many bytes of a body may be received before its model is known."""
        split = () if self.split is None else self.split.clusters
        return max(map(body_bound, split if self.cluster is None else (self.cluster,)), default=1)

    def rewrite(self, request: Request) -> None:
        """Remove or replace the prefix of the request, if that is configured and its target is a path. The worker gets
        what was removed in X-Forwarded-Prefix, behind what a trusted proxy has removed before.
        """
        if not (self._rewrites and request.target.startswith(b"/")):  # OPTIONS * and CONNECT have no path
            return
        sent, mark, query = request.target.partition(b"?")
        target = b"%b%b%b" % (self._replaced(sent, request.path, self._replacement), mark, query)
        request.retarget(target, b"\r\nX-Forwarded-Prefix: %b" % self._prefix if self._prefix else b"")

    def _replaced(self, sent: bytes, path: bytes, replacement: bytes) -> bytes:
        """Return a path that begins with the prefix, with `replacement` instead of that: the rest as it was sent, or as
        in the normalized `path` where that has dot segments, the prefix was written in another way, or the result could
        be read as a URL, as `//host` and, by browsers, `/\\host` are."""
        size = len(self._prefix)
        is_plain = sent.startswith(self._prefix) and (replacement or sent[size : size + 2] != b"//")
        is_plain = is_plain and not has_dots(decoded(sent))
        path = replacement + (sent if is_plain else path)[size:]
        if path.startswith(b"/\\"):
            return b"/%5C" + path[2:]
        return path if path.startswith(b"/") else b"/" + path

    def response(self, request: Request) -> tuple[int, bytes, bytes]:
        """Return status, field lines and body of the response that the balancer gives itself."""
        if self._fixed is not None:
            return self._fixed
        redirect = self.redirect
        assert redirect is not None  # a route without a cluster redirects or answers
        return redirect.status, b"Location: %b\r\n" % self._location(redirect, request), b""

    def _is_there(self, redirect: RedirectConfig, request: Request) -> bool:
        """Return whether a request already asks for what the redirect leads to, so that it would loop.

        Ports do not count: a proxy in front may leave them out. A scheme that is not known may be the wanted one.
        """
        head = request.head
        if redirect.host is not None and host_in(host_of(head)) != host_in(redirect.host.encode()):
            return False
        if redirect.scheme is not None and scheme_of(head) not in (b"", redirect.scheme.encode()):
            return False
        if redirect.path is not None:
            return request.path == redirect.path.encode()
        if redirect.replace_prefix is None:
            return True
        new = redirect.replace_prefix.removesuffix("/").encode()
        is_longer = new.startswith(self._prefix + b"/") or new == self._prefix
        return is_longer and (request.path + b"/").startswith(new + b"/")

    def _location(self, redirect: RedirectConfig, request: Request) -> bytes:
        target = request.target if request.target.startswith(b"/") else b"/"
        if redirect.path is not None or redirect.replace_prefix is not None:
            sent, mark, query = target.partition(b"?")
            if redirect.path is not None:
                path = redirect.path.encode()
            else:
                new = (redirect.replace_prefix or "").removesuffix("/").encode()
                path = self._replaced(sent, request.path, new)
            target = b"%b%b%b" % (path, mark, query)
            if redirect.host is None and redirect.scheme is None:
                return target
        host = host_of(request.head)
        if redirect.host is not None:
            host = redirect.host.encode()
        elif redirect.scheme is not None:
            host = host_in(host)
        scheme = redirect.scheme.encode() if redirect.scheme is not None else scheme_of(request.head)
        scheme = scheme and scheme + b":"  # without one, the client keeps its own (RFC 3986 § 4.2)
        return b"%b//%b%b" % (scheme, host, target)


def body_bound(cluster: Cluster) -> int:
    """Return how many bytes of a body may be received before its model is known, if it may go to this cluster."""
    kept, limit = cluster.buffering, cluster.body_limit
    bound = MODEL_BODY if kept is None else max(MODEL_BODY, kept.request)
    return bound if limit is None else min(bound, limit)


def _fixed(answer: AnswerConfig) -> tuple[int, bytes, bytes]:
    """Return status, field lines and body of a fixed answer."""
    fields = b"Content-Type: %b\r\n" % answer.content_type.encode() if answer.content else b""
    return answer.status, fields, answer.content
