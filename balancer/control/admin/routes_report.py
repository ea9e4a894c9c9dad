"""DNS names, routes and route events in status and metrics; every value is read at request time, nothing is counted
here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from balancer.upstream.dial.route_baseline import Baseline
from balancer.upstream.dial.target import NetworkRoute
from policies.endpoint.state import EndpointState

if TYPE_CHECKING:
    from balancer.cluster.cluster import Cluster

PREFIX = "steelyard"
OF_ENDPOINT = ["endpoint", "region"]


def names_status(cluster: Cluster) -> dict[str, Any]:
    """Return the counts of the resolver, and the addresses and state of each known name. Ages are in seconds."""
    names, now = cluster.pools.routes.names, cluster.now()
    known = [
        {
            "name": host,
            "addresses": list(name.hosts),
            "state": name.worth(names.config, now).value,
            "age": _rounded(name.age(now)),
            "problem": name.fault,
        }
        for host, name in names.known.items()
    ]
    return {"resolver": names.config.resolver, **asdict(names.counts), "known": known}


def watch_status(cluster: Cluster) -> dict[str, Any]:
    """Return the counts of the route watch, and the lowest usual connect time to each region in seconds."""
    watch, usual = cluster.pools.routes.watch, dict[str, float | None]()
    for route in cluster.pools.routes.by_id.values():
        region, norm = route.endpoint.region, route.watched.trip.norm
        known = usual.setdefault(region, norm)
        usual[region] = norm if known is None else known if norm is None else min(known, norm)
    regions = [
        {"name": region, "connect": _rounded(norm, 6), "departed": region in watch.regions_departed}
        for region, norm in sorted(usual.items())
    ]
    return {
        "enabled": watch.config.enabled,
        "connects": watch.connects,
        "failed": watch.failed,
        "regions": regions,
    }


def events_status(cluster: Cluster) -> list[dict[str, Any]]:
    """Return the latest route events, the newest last. `age` is in seconds."""
    now = cluster.now()
    return [
        {
            "id": f"{event.what} {event.who} {event.number}",
            "what": event.what,
            "who": event.who,
            "age": round(now - event.at, 3),
            "text": event.text,
        }
        for event in cluster.pools.routes.watch.events
    ]


def route_status(route: NetworkRoute) -> dict[str, Any]:
    """Return the route to one endpoint: the address that answered last, connect and TLS times, handshakes by kind, and
    failed connections by kind. Durations are in seconds.
    """
    tls = route.resumption
    return {
        "address": route.best,
        "connect": _baseline(route.watched.trip),
        "tls": _baseline(route.watched.tls)
        | {
            "version": tls.version,
            "full": tls.full,
            "resumed": tls.resumed,
            "full_mean": _rounded(tls.full_seconds / tls.full, 6) if tls.full else None,
            "resumed_mean": _rounded(tls.resumed_seconds / tls.resumed, 6) if tls.resumed else None,
        },
        "faults": dict(route.faults),
    }


def _baseline(baseline: Baseline) -> dict[str, Any]:
    usual, last = _rounded(baseline.norm, 6), _rounded(baseline.last, 6)
    return {"usual": usual, "last": last, "departed": baseline.is_departed}


def _rounded(value: float | None, digits: int = 3) -> float | None:
    return None if value is None else round(value, digits)


def route_families(cluster: Cluster) -> Iterator[Metric]:
    """Yield the metrics of names, route events and connects."""
    yield from _name_families(cluster)
    yield from _watch_families(cluster)
    yield from _connect_families(cluster)


def _name_families(cluster: Cluster) -> Iterator[Metric]:
    names, now = cluster.pools.routes.names, cluster.now()
    asked = CounterMetricFamily(f"{PREFIX}_names_asked", "Connections that needed a name", labels=["answer"])
    for answer in ("fresh", "stale", "waited", "refused"):
        asked.add_metric([answer], getattr(names.counts, answer))
    lookups = CounterMetricFamily(f"{PREFIX}_name_lookups", "Look-ups of names", labels=["result"])
    for result in ("answered", "failed"):
        lookups.add_metric([result], getattr(names.counts, result))
    age = GaugeMetricFamily(f"{PREFIX}_name_age_seconds", "Age of the answer that serves", labels=["name"])
    for host, name in names.known.items():
        if (seconds := name.age(now)) is not None:
            age.add_metric([host], seconds)
    yield from (asked, lookups, age)


def _watch_families(cluster: Cluster) -> Iterator[Metric]:
    watch = cluster.pools.routes.watch
    events = CounterMetricFamily(f"{PREFIX}_route_events", "Changes of routes", labels=["what"])
    for what, number in watch.counts.items():
        events.add_metric([what], number)
    visits = CounterMetricFamily(
        f"{PREFIX}_route_watch_connections", "Test connections of the route watch", labels=["result"]
    )
    visits.add_metric(["made"], watch.connects - watch.failed)
    visits.add_metric(["failed"], watch.failed)
    yield from (events, visits)


def _connect_families(cluster: Cluster) -> Iterator[Metric]:
    usual = GaugeMetricFamily(
        f"{PREFIX}_route_usual_seconds", "What it usually takes", labels=[*OF_ENDPOINT, "phase"]
    )
    last = GaugeMetricFamily(
        f"{PREFIX}_route_last_seconds", "What it took the last time", labels=[*OF_ENDPOINT, "phase"]
    )
    departed = GaugeMetricFamily(
        f"{PREFIX}_route_departed", "1: connecting takes longer than usual", labels=OF_ENDPOINT
    )
    faults = CounterMetricFamily(
        f"{PREFIX}_endpoint_connect_faults",
        "Connections that could not be made",
        labels=[*OF_ENDPOINT, "kind"],
    )
    shaken = CounterMetricFamily(
        f"{PREFIX}_endpoint_tls_handshakes", "TLS handshakes", labels=[*OF_ENDPOINT, "kind"]
    )
    seconds = CounterMetricFamily(
        f"{PREFIX}_endpoint_tls_handshake_seconds", "Time of TLS handshakes", labels=[*OF_ENDPOINT, "kind"]
    )
    for state in cluster.router.states:
        route, labels = cluster.pools.by_id[state.id].route, _labels(state)
        departed.add_metric(labels, route.watched.is_departed)
        for phase, baseline in (("connect", route.watched.trip), ("tls", route.watched.tls)):
            if baseline.norm is not None:
                usual.add_metric([*labels, phase], baseline.norm)
            if baseline.last is not None:
                last.add_metric([*labels, phase], baseline.last)
        for kind, number in route.faults.items():
            faults.add_metric([*labels, kind], number)
        for kind in ("full", "resumed"):
            shaken.add_metric([*labels, kind], getattr(route.resumption, kind))
            seconds.add_metric([*labels, kind], getattr(route.resumption, f"{kind}_seconds"))
    yield from (usual, last, departed, faults, shaken, seconds)


def _labels(state: EndpointState) -> list[str]:
    return [state.id, state.region]
