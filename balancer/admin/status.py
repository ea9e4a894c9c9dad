"""What the unit knows of itself, as plain JSON values.

Rule of this file: read at the moment of asking, from the counters that the data path keeps anyway.
"""

from __future__ import annotations

import os
from dataclasses import asdict
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from balancer.admin.connections_report import connections_status
from balancer.admin.policy_report import policy_status, process_policy_status, raw, summary
from balancer.admin.queue_report import concurrency_status, level_status, queue_status
from balancer.admin.routes_report import events_status, names_status, route_status, watch_status
from balancer.exchange import exchange
from policies.stats.load import RATIO, SHORTEST

if TYPE_CHECKING:
    from balancer.unit import Unit
    from policies.routing.endpoint_state import EndpointState


def unit_status(unit: Unit) -> dict[str, Any]:
    """The whole of /-/status. Durations in seconds."""
    counts = unit.counts
    return {
        "version": version("steelyard"),
        "build": build(),
        "pid": os.getpid(),
        "uptime": round(unit.now() - unit.started_at, 3),
        "draining": unit.is_draining,
        "clients": len(unit.downstreams),
        "in_flight": unit.in_flight,
        "queued": len(unit.queue),
        "queue": queue_status(unit),
        "levels": level_status(unit),
        "connections": counts.connections,
        "requests": counts.requests,
        "retried": counts.retried,
        "retries_denied": unit.retries.budget.denied,
        "hedging": hedging_status(unit),
        "abandoned": counts.abandoned,
        "failed_arrivals": counts.failed_arrivals,
        "errors": dict(counts.errors),
        "tunnels": {
            "open": len(unit.tunnels),
            "opened": unit.tunnels.opened,
            "bytes_in": unit.tunnels.bytes_in,
            "bytes_out": unit.tunnels.bytes_out,
        },
        "access_log": log_status(unit),
        "recording": unit.recording.status(),
        "explaining": unit.explanations.status(),
        "reload": reload_status(unit),
        "policy": policy_status(unit),
        "load_probes": asdict(unit.load_probes.counts) | {"under_way": len(unit.load_probes.under_way)},
        "panic": panic_status(unit),
        "sticky": asdict(unit.sticky_counts) if unit.stickiness is not None else None,
        "endpoints": [endpoint_status(unit, state) for state in unit.router.states],
        "leaving": leaving_status(unit),
        "names": names_status(unit),
        "watch": watch_status(unit),
        "events": events_status(unit),
        "discovery": [
            {
                "source": source.source,
                "endpoints": unit.roster.count(source.source),
                "problem": source.problem,
            }
            for source in unit.discovery.sources
        ],
    }


def leaving_status(unit: Unit) -> list[dict[str, Any]]:
    """Endpoints that were removed and still have requests in flight."""
    return [
        {"id": state.id, "address": state.endpoint.address, "in_flight": state.in_flight_here}
        for state in unit.roster.leaving
    ]


def log_status(unit: Unit) -> dict[str, int] | None:
    """Entries of the access log; None where it is off."""
    log = unit.access_log
    return {"waiting": log.waiting, **asdict(log.counts)} if log is not None else None


def hedging_status(unit: Unit) -> dict[str, Any] | None:
    """Requests that were sent to a second endpoint, and why others were not; None where it is off."""
    if unit.hedges is None:
        return None
    hedging = unit.hedges.hedging
    return {
        "hedged": unit.counts.hedged,
        "won": unit.counts.hedges_won,
        "denied": hedging.denied,
        "withheld": hedging.withheld,
        "late_after": hedging.usual,
        "losers": len(unit.hedges.losers),
    }


def reload_status(unit: Unit) -> dict[str, Any]:
    """How often the configuration was read again, what was wrong with it the last time, and which keys wait for the
    next start."""
    return asdict(unit.reload_counts)


def build() -> str:
    """Whether requests pass through the source as it is or through the extension made of it (`setup.py`)."""
    return "pure" if (exchange.__file__ or "").endswith(".py") else "compiled"


def panic_status(unit: Unit) -> dict[str, Any]:
    """Where health is ignored now, how often that began, and how many requests were routed meanwhile."""
    panic = unit.router.fitness.panic
    return {
        "everywhere": panic.is_everywhere,
        "regions": sorted(panic.regions),
        "times": panic.times,
        "requests": panic.requests(unit.router.routed),
    }


def ejection_status(unit: Unit, state: EndpointState) -> dict[str, Any]:
    """Whether failures have put it out, for how many seconds more, why the last time, and how often they did."""
    record = state.record
    left = None if record.until is None else round(max(0.0, record.until - unit.now()), 3)
    cause = None if record.cause is None else record.cause.value
    return {"ejected": state.is_ejected, "seconds_left": left, "cause": cause, "times": record.count}


def checks_status(unit: Unit, state: EndpointState) -> dict[str, Any]:
    """Active checks since the start, and what was wrong with the last bad one."""
    watch = unit.checks.by_id.get(state.id)
    if watch is None:
        return {"passed": 0, "failed": 0, "last_fault": None}
    verdict = watch.verdict
    return {"passed": verdict.passed, "failed": verdict.failed, "last_fault": verdict.last_fault}


def endpoint_status(unit: Unit, state: EndpointState) -> dict[str, Any]:
    """One endpoint: identity, what the operator wants of it, health, load, connections, outcomes, latency of its
    successes. `share` is less than 1 during a slow start."""
    endpoint, pool = state.endpoint, unit.pools.by_id[state.id]
    return {
        "id": endpoint.id,
        "address": endpoint.address,
        "transport": pool.transport,
        "region": endpoint.region,
        "weight": endpoint.weight,
        "max_in_flight": endpoint.max_in_flight,
        "source": unit.roster.member(endpoint.id).source,
        "concurrency": concurrency_status(state),
        "state": state.standing.value,
        "available": state.available,
        "healthy": state.healthy,
        "reachable": state.is_reachable and not state.record.is_unreachable,
        "share": round(state.share, 3),
        "ejection": ejection_status(unit, state),
        "checks": checks_status(unit, state),
        "in_flight": state.in_flight_here,
        "connections": connections_status(pool, unit.now()),
        "route": route_status(pool.route),
        "outcomes": {kind.value: number for kind, number in state.outcomes.items()},
        "latency": summary(state.histogram),
    }


def latency_status(unit: Unit) -> dict[str, Any]:
    """/-/latency: counts since the start, all of them whole numbers that only grow.

    Bucket 0 holds latencies up to `shortest` seconds, each further one ends `ratio` times as far as the one before, and
    the last has all that are longer.
    """
    return {
        "shortest": SHORTEST,
        "ratio": RATIO,
        "requests": unit.counts.requests,
        "errors": dict(unit.counts.errors),
        "policy": process_policy_status(unit),
        "endpoints": [
            {
                "id": state.id,
                "buckets": state.histogram.counts,
                "outcomes": {kind.value: number for kind, number in state.outcomes.items()},
            }
            for state in unit.router.states
        ],
    }


def process_status(unit: Unit) -> dict[str, Any]:
    """The same for another process of the unit, which cannot merge quantiles: with the histograms themselves."""
    endpoints = [process_endpoint_status(unit, state) for state in unit.router.states]
    return unit_status(unit) | {"endpoints": endpoints, "policy": process_policy_status(unit)}


def process_endpoint_status(unit: Unit, state: EndpointState) -> dict[str, Any]:
    """One endpoint, in the same way."""
    return endpoint_status(unit, state) | {"latency": raw(state.histogram)}
