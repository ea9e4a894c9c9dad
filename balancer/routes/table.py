"""Table of routes: finds the most specific route for a request, whatever the order and the number of routes.

A search takes a dictionary lookup for each label of the host up to the longest `*.suffix`, and one for each segment of
the path up to the longest prefix: the routes bound its time, the request does not.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from balancer.config.schema.listeners import ListenerConfig
from balancer.config.schema.routes import AnswerConfig, RouteConfig
from balancer.config.schema.sections import NormaliseConfig
from balancer.errors import AmbiguousPath, RequestRejected
from balancer.exchange.field_edits import Edits
from balancer.http.h1.client import Client
from balancer.http.h1.fields import host_of
from balancer.http.h1.request_head import Request
from balancer.rate_limits.request_source import Trusts
from balancer.routes.conditions import Asked, lines_asked_for
from balancer.routes.route import Route
from balancer.syntax.urls import ADMIN_PREFIX, MAX_AUTHORITY_BYTES, decoded, has_dots, host_in, resolved

AMBIGUOUS: Final = {
    "encoded_slash": rb"%2[Ff]",
    "backslash": rb"\\|%5[Cc]",
    "nul": rb"%00",
    "semicolon": rb";",
}
"""Parts of a path that some workers decode, take for a slash, or end the path or a segment at."""

_find_parts: Final = re.compile(
    b"|".join(b"(?P<%b>%b)" % (key.encode(), part) for key, part in AMBIGUOUS.items())
).finditer

NO_ROUTES: Final[list[Route]] = []

REMEMBERED_HOSTS: Final = 1024
"""Hosts whose routes are remembered."""


class Place:
    """Routes of one host and path, the most specific first. Those that require a value of a field or of a parameter are
    found by it, so that their number makes no difference."""

    def __init__(self) -> None:
        self._selected: dict[tuple[bool, bytes], dict[bytes, list[Route]]] = {}
        self._others: list[Route] = []

    def add(self, route: Route) -> None:
        routes, selector = self._others, route.selector
        if selector is not None:
            by_value = self._selected.setdefault((selector.in_query, selector.name), {})
            routes = by_value.setdefault(selector.wanted, [])
        routes.append(route)
        routes.sort(key=lambda each: each.rank, reverse=True)

    def find(self, request: Request, asked: Asked) -> Route | None:
        """Return the most specific route that matches the request."""
        best: Route | None = None
        if self._selected:
            for (in_query, name), by_value in self._selected.items():
                for value in asked.values_of(name, in_query=in_query):
                    best = _better(best, by_value.get(value, NO_ROUTES), request, asked)
        return _better(best, self._others, request, asked)


def _better(best: Route | None, routes: list[Route], request: Request, asked: Asked) -> Route | None:
    """Return the first of `routes` that matches and is more specific than `best`, else `best`."""
    for route in routes:
        if best is not None and route.rank <= best.rank:
            break
        if route.is_plain or route.matches(request, asked):
            return route
    return best


class PathRoutes:
    """Routes of one host by path. `by_path`: one of them is decided by the path, be it by an authorization service."""

    def __init__(self) -> None:
        self._exact: dict[bytes, Place] = {}
        self._prefixes: dict[bytes, Place] = {}
        self._longest = 0
        self.by_path = self.rewrites = False

    def add(self, config: RouteConfig, route: Route) -> None:
        self.by_path |= config.path is not None or (config.prefix or "/") != "/" or config.auth is not None
        leads = config.redirect
        self.rewrites |= config.replace_prefix is not None or (
            leads is not None and leads.replace_prefix is not None
        )
        if config.path is not None:
            place = self._exact.setdefault(config.path.encode(), Place())
        else:
            prefix = (config.prefix or "/").removesuffix("/").encode()
            self._longest = max(self._longest, len(prefix))
            place = self._prefixes.setdefault(prefix, Place())
        place.add(route)

    def find(self, path: bytes, request: Request, asked: Asked) -> Route | None:
        """Return the most specific route for the path that matches the request."""
        place, end = self._exact.get(path), len(path)
        if end > self._longest:
            end = path.rfind(b"/", 0, self._longest + 1)
        route = None if place is None else place.find(request, asked)
        while route is None and end >= 0:
            place = self._prefixes.get(path[:end])
            if place is not None:
                route = place.find(request, asked)
            end = path.rfind(b"/", 0, end) if end else -1
        return route


class RouteTable:
    """All routes, by host and path. Routes of a less specific host are tried if none of a more specific one matches.

    `is_in_use`: there are routes. `has_default`: a request that no route matches goes to the default cluster, and
    is not answered with 404. `edits` are those of the fields of all requests without a route.
    """

    def __init__(self) -> None:
        self.replace((), has_default=True)

    def replace(
        self,
        routes: Iterable[tuple[RouteConfig, Route]],
        *,
        has_default: bool,
        normalise: NormaliseConfig | None = None,
        edits: Edits | None = None,
        trusts: Trusts = lambda address: False,
    ) -> None:
        """Replace all routes; applies from the next request on."""
        self.has_default = has_default
        self.edits = edits
        self._trusts = trusts
        self.is_in_use = False
        self._hosts: dict[bytes, PathRoutes] = {}
        self._suffixes: dict[bytes, PathRoutes] = {}
        self._longest_suffix = 0
        self._others = PathRoutes()
        self._places: dict[bytes, list[PathRoutes]] = {}
        self._refused = _parts(normalise or NormaliseConfig(), "refuse")
        self._slashes = _parts(normalise or NormaliseConfig(), "decode")
        listed = list(routes)
        self._lines = lines_asked_for(one for _, route in listed for one in route.conditions)
        for config, route in listed:
            self._of(config.host).add(config, route)
            self.is_in_use = True

    def _of(self, host: str | None) -> PathRoutes:
        if host is None:
            return self._others
        if host.startswith("*."):
            suffix = host[1:].encode()
            self._longest_suffix = max(self._longest_suffix, len(suffix))
            return self._suffixes.setdefault(suffix, PathRoutes())
        return self._hosts.setdefault(host.encode(), PathRoutes())

    def find(self, request: Request, client: Client) -> Route | None:
        """Return the most specific route that matches the request. Raises `AmbiguousPath` if one of its host is
        `by_path`, and workers may take its path for another one."""
        path = request.target
        mark = path.find(b"?")
        if mark >= 0:
            path = path[:mark]
        host = host_of(request.head)
        places = self._places.get(host)
        if places is None:
            places = self._places_of(host)
        if not path.startswith(b"/"):  # OPTIONS * and CONNECT have none
            path = b""
        elif b"%" in path or b"//" in path or b"/." in path or b";" in path or b"\\" in path:
            path = self._comparable(path, places, request)
        request.path = path
        asked = self.asked(request, client)
        for routes in places:
            route = routes.find(path, request, asked)
            if route is not None:
                return route
        return None

    def asked(self, request: Request, client: Client) -> Asked:
        """Return the request as conditions see it."""
        return Asked(self._lines, request, client, self._trusts)

    def _comparable(self, path: bytes, places: list[PathRoutes], request: Request) -> bytes:
        """Return the normalized path, or the received one if that has too much to replace, where no route reads it."""
        try:
            return self._unambiguous(path, places, request)
        except ValueError as error:
            if any(routes.by_path or routes.rewrites for routes in places):
                raise AmbiguousPath(f"the path {error}") from None
            return path

    def _unambiguous(self, path: bytes, places: list[PathRoutes], request: Request) -> bytes:
        """Return the normalized path. Where a route is `by_path`, it is also sent if workers may read the received one
        in another way. Raises `AmbiguousPath` for parts that are refused.

        Dot segments go last: the segment that `/..` removes may contain such a part, or become two.
        """
        path = decoded(path)
        if not any(routes.by_path for routes in places):
            return resolved(path)
        found = None if self._refused is None else self._refused.search(path)
        if found is not None:
            part = found[0].decode()
            raise AmbiguousPath(f"the path contains {part}, which workers read in different ways")
        plain = path if self._slashes is None else self._slashes.sub(b"/", path)
        normal = resolved(plain)
        if plain != path or plain.startswith(b"//") or has_dots(plain):  # `//host/path` may be read as a URL
            _, mark, query = request.target.partition(b"?")
            request.retarget(b"%b%b%b" % (normal, mark, query))
        if normal.startswith(ADMIN_PREFIX):
            raise AmbiguousPath("the path leads to /-/, which is not forwarded")
        return normal

    def _places_of(self, authority: bytes) -> list[PathRoutes]:
        """Return the routes by path for a host, those of the most specific host first, and remember them. Raises
        `RequestRejected` for an encoded host, which workers may decode."""
        host = host_in(authority)
        if b"%" in host and (self._hosts or self._suffixes):
            raise RequestRejected(400, "bad_host", "Host must not contain % where routes match by host")
        places = [self._hosts[host]] if host in self._hosts else []
        at = host.find(b".", max(1, len(host) - self._longest_suffix))
        while at > 0:
            suffix = self._suffixes.get(host[at:])
            if suffix is not None:
                places.append(suffix)
            at = host.find(b".", at + 1)
        places.append(self._others)
        if len(self._places) >= REMEMBERED_HOSTS:
            self._places.clear()
        if len(authority) <= MAX_AUTHORITY_BYTES:
            self._places[authority] = places
        return places


REMOVED: Final = RouteConfig(answer=AnswerConfig(status=404))
"""Route of a listener that the configuration has no more, until the next start closes it."""


def own_route(listener: ListenerConfig | None) -> RouteConfig | None:
    """Return the route that a listener has for all its requests."""
    return REMOVED if listener is None else listener.route


class ListenerRoutes(RouteTable):
    """The routes of requests that come to one listener: its own one, or `shared` where that does not match.

    A redirect does not match where a trusted proxy states that the client used its scheme already.
    """

    def __init__(self, shared: RouteTable) -> None:
        super().__init__()
        self._shared = shared
        self._has_own = False

    def apply(self, own: list[tuple[RouteConfig, Route]]) -> None:
        """Apply a route of its own, or none, and what has changed in `shared`; from the next request on."""
        shared = self._shared
        self.replace(own, has_default=shared.has_default, edits=shared.edits)
        self._has_own = self.is_in_use
        self.is_in_use = self.is_in_use or shared.is_in_use

    def find(self, request: Request, client: Client) -> Route | None:
        """Return the route of the request; `shared` is not searched if it is the listener's own."""
        own = super().find(request, client) if self._has_own else None
        return own or self._shared.find(request, client)


def refused_routes(routes: Iterable[RouteConfig], normalise: NormaliseConfig) -> list[str]:
    """Return a line for each route whose own path is one that `normalise` refuses or decodes."""
    return [
        f"routes.{at}: matches no request: its path has {part}; see normalise.{key}"
        for at, route in enumerate(routes)
        for key, part in _ambiguous_parts((route.path or route.prefix or "/").encode()).items()
        if getattr(normalise, key) != "keep"
    ]


def _ambiguous_parts(path: bytes) -> dict[str, str]:
    """Return one part of the path for each key of `AMBIGUOUS`."""
    return {found.lastgroup or "": found[0].decode() for found in _find_parts(path)}


def _parts(normalise: NormaliseConfig, choice: str) -> re.Pattern[bytes] | None:
    """Return an expression for the parts of a path for which `choice` is made."""
    chosen = [part for key, part in AMBIGUOUS.items() if getattr(normalise, key) == choice]
    return re.compile(b"|".join(chosen)) if chosen else None
