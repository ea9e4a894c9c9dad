"""Part of one process in a snapshot of the live page: the keys of /-/status that the page shows.

Values come from the functions of /-/status, so the page and the status cannot differ. `/-/status` itself is three times
as expensive: it lists names, routes and single connections, which the page does not show.
"""

from __future__ import annotations

import asyncio
from itertools import islice
from typing import TYPE_CHECKING, Any

from balancer.cluster.explaining import Explanations
from balancer.config.schema.routes import DEFAULT
from balancer.control.admin.mirrors_splits_report import splits_status
from balancer.control.admin.policy_report import policy_status, raw
from balancer.control.admin.routes_report import events_status
from balancer.control.admin.status import (
    clients_status,
    endpoint_facts,
    panic_status,
    process_counts,
    reload_status,
    shared_status,
)
from policies.endpoint.state import EndpointState

if TYPE_CHECKING:
    from balancer.control.control_plane import ControlPlane

PICKS = 8
"""Explained picks that the page shows, the newest."""

SLICE = 32
"""Endpoints that are read without a break; requests are served between two slices."""


async def process_sample(control_plane: ControlPlane, front: ControlPlane) -> dict[str, Any]:
    """Return this process's sample of a cluster; `front` is the control plane of the default one.

    Latency is in raw buckets, which grow only, as in /-/latency.
    """
    cluster, explanations = control_plane.cluster, control_plane.explanations
    endpoints = []
    for number, state in enumerate(list(cluster.router.states), 1):
        if state.id in cluster.pools.by_id:  # else it was removed during a break
            endpoints.append(endpoint_sample(control_plane, state))
        if number % SLICE == 0:
            await asyncio.sleep(0)
    return {
        "at": cluster.now(),
        **process_counts(control_plane),
        **clients_status(front.cluster),
        "named": [DEFAULT, *front.named] if front.named else [],
        "tunnels": {"open": len(cluster.tunnels), "opened": cluster.tunnels.opened},
        "reload": reload_status(front),
        "policy": policy_status(control_plane, raw),
        "panic": panic_status(cluster),
        "shared": shared_status(control_plane),
        "explaining": explanations.status(),
        "picks": recent_picks(explanations, cluster.now()),
        "events": events_status(cluster),
        **splits_status(front.splits),
        "endpoints": endpoints,
    }


def endpoint_sample(control_plane: ControlPlane, state: EndpointState) -> dict[str, Any]:
    """Return one endpoint with its raw buckets."""
    pool = control_plane.cluster.pools.by_id[state.id]
    return endpoint_facts(control_plane, state) | {
        "connections": {
            "idle": pool.idle,
            "leased": pool.leased,
            "opening": pool.opening,
            "opened": pool.counts.opened,
        },
        "buckets": list(state.histogram.counts),
    }


def recent_picks(explanations: Explanations, now: float) -> list[dict[str, Any]]:
    """Return the last explained picks, newest first; `age` in seconds. /-/explain has their numbers."""
    return [
        {"age": round(now - pick.now, 3), "picked": pick.picked and pick.picked.id, "text": pick.text}
        for pick in islice(reversed(explanations.trace.recent), PICKS)
    ]
