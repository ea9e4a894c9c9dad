"""Routes of a configuration as a whole: which are ambiguous, the list of `balancer check`, and its warnings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from balancer.config.schema.routes import DEFAULT, RouteConfig, check_cluster

RESERVED: Final = "/-/"
"""Paths of the admin interface, which no route gets."""


def check_routes(routes: Sequence[RouteConfig], clusters: Mapping[str, Any], *, has_default: bool) -> None:
    """Check the routes as a whole. Raises ValueError for an unknown cluster or a route that another makes ambiguous."""
    known = [*clusters, *([DEFAULT] if has_default else [])]
    if DEFAULT in clusters:
        raise ValueError(f"clusters.{DEFAULT}: is the name of the default cluster")
    for at, route in enumerate(routes):
        named = {f"split.{name}" if route.split else "cluster": name for name in route.clusters}
        named |= {"mirror.cluster": route.mirror.cluster} if route.mirror is not None else {}
        named |= {"auth.cluster": route.auth.cluster} if route.auth is not None else {}
        for key, name in named.items():
            check_cluster(f"routes.{at}.{key}", name, known)
    conditions = [route.conditions for route in routes]
    for places in by_place(routes):
        for number, at in enumerate(places):
            for earlier in places[:number]:
                if conditions[at] == conditions[earlier]:
                    raise ValueError(f"routes.{at}: has the conditions of routes.{earlier}, {routes[at]}")
                if _is_ambiguous(routes[earlier], routes[at]):
                    raise ValueError(
                        f"routes.{at}: and routes.{earlier} are as specific as each other, and a request may match "
                        f"both: {routes[earlier]} and {routes[at]}; add a condition to one"
                    )


def by_place(routes: Sequence[RouteConfig]) -> Iterable[list[int]]:
    """Return the indexes of the routes that have the same host and path."""
    places: dict[tuple[Any, ...], list[int]] = {}
    for at, route in enumerate(routes):
        places.setdefault(route.place, []).append(at)
    return places.values()


def _is_ambiguous(one: RouteConfig, other: RouteConfig) -> bool:
    """Return whether two routes for the same host and path have the same rank and a request may match both."""
    if one.specificity != other.specificity or one.scheme != other.scheme:
        return False
    if one.methods and not {*one.methods} & {*other.methods}:
        return False
    if one.clients and not any(
        network.version == another.version and network.overlaps(another)
        for network in one.clients
        for another in other.clients
    ):
        return False
    return all(
        wanted[name] == others[name] or "*" in (wanted[name], others[name])
        for wanted, others in ((one.headers, other.headers), (one.query, other.query))
        for name in wanted.keys() & others.keys()
    )


def listed(routes: Sequence[RouteConfig], *, has_default: bool) -> Iterator[str]:
    """Yield a line for each route, the most specific first, as requests are compared with them."""
    if not routes:
        return
    lines = [(str(route), route.target) for route in sorted(routes, key=RouteConfig.rank)]
    lines.append(("anything else", f"cluster {DEFAULT}" if has_default else "404"))
    width = max(len(conditions) for conditions, _ in lines)
    yield "routes, the most specific first:"
    for conditions, target in lines:
        yield f"  {conditions:<{width}}  {target}"


def warnings_about(
    routes: Sequence[RouteConfig],
    clusters: Mapping[str, Any],
    allowed: Sequence[str],
    of_listeners: Sequence[str | None] = (),
) -> list[str]:
    """Return a line for each route or mirror that no request can match, and for each cluster that neither a route nor a
    listener names."""
    lines = []
    for at, route in enumerate(routes):
        path = route.path or route.prefix or "/"
        if path.startswith(RESERVED):
            lines.append(
                f"routes.{at}: matches no request: paths under {RESERVED} are those of the admin interface"
            )
        refused = [
            method for method in route.methods if method in ("CONNECT", "TRACE") and method not in allowed
        ]
        if route.methods and len(refused) == len(route.methods):
            lines.append(f"routes.{at}: matches no request: {', '.join(refused)} is refused; see http.allow")
    for places in by_place(routes):
        for at in places:
            both = [each for each in places if _differs_by_scheme(routes[each], routes[at])]
            if len(both) == 2:
                lines.append(
                    f"routes.{at}: matches no request: routes.{both[0]} and routes.{both[1]} take both schemes"
                )
    for at, route in enumerate(routes):
        if route.mirror is not None and route.methods and not {*route.methods} & {*route.mirror.methods}:
            lines.append(f"routes.{at}.mirror: copies nothing: none of its methods is one of the route's")
    used = (
        {*of_listeners}
        | {name for route in routes for name in route.clusters}
        | {beside.cluster for route in routes for beside in (route.mirror, route.auth) if beside is not None}
    )
    lines += [f"clusters.{name}: no route leads to it" for name in clusters if name not in used]
    return lines


def _differs_by_scheme(more: RouteConfig, less: RouteConfig) -> bool:
    """Return whether one of two routes for the same host and path has a scheme, and nothing else differs."""
    is_same = more.headers == less.headers and {*more.methods} == {*less.methods}
    is_same = is_same and more.query == less.query and {*more.clients} == {*less.clients}
    return is_same and less.scheme is None and more.scheme is not None
