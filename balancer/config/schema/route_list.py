"""Routes of a configuration as a whole: which are ambiguous, the list of `balancer check`, and its warnings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from balancer.config.schema.routes import DEFAULT, RouteConfig, check_cluster


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
