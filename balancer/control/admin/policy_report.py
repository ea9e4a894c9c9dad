"""The live policy, its canary and its shadows in status and metrics; every value is read at request time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from prometheus_client.core import Metric

from balancer.control.admin.families import buckets_of, counter, histogram
from policies.insight.shadow import Shadow
from policies.stats.load import Histogram

if TYPE_CHECKING:
    from balancer.cluster.cluster import Cluster
    from balancer.control.control_plane import ControlPlane

QUANTILES = (0.5, 0.9, 0.99)

Describe = Callable[[Histogram], dict[str, Any]]
"""How a histogram is shown: its `summary`, or `raw` for a sibling process, because quantiles cannot be merged."""


def summary(histogram: Histogram) -> dict[str, float | None]:
    """Summarize a histogram as count, mean and quantiles."""
    count = histogram.count
    return {
        "count": count,
        "mean": histogram.total / count if count else None,
        **{f"p{q * 100:g}": histogram.quantile(q) for q in QUANTILES},
    }


def raw(histogram: Histogram) -> dict[str, Any]:
    """Return a histogram's counts and total, which another process can merge."""
    return {"counts": histogram.counts, "total": histogram.total}


def policy_status(control_plane: ControlPlane, describe: Describe = summary) -> dict[str, Any]:
    """Return the live policy and its fallback picks; `spec` is a request body that restores all of it.

    `differs` becomes true in the merged status if processes have different policies or versions of files.
    """
    cluster = control_plane.cluster
    return {
        "name": control_plane.policy.name,
        "options": control_plane.policy.options,
        "spec": control_plane.policy.spec,
        "files": files_status(control_plane),
        "differs": False,
        "routed": cluster.router.routed,
        "fallback_picks": cluster.router.fallback_picks,
        "last_fault": cluster.router.last_fault,
        "canary": canary_status(cluster, describe),
        "shadow": [shadow_status(shadow) for shadow in control_plane.shadows],
    }


def files_status(control_plane: ControlPlane) -> list[dict[str, str]]:
    """Return the files and modules of the policy, its canary and its shadows: the version in force of each."""
    loaded = control_plane.policy_loaded_at.isoformat(timespec="seconds")
    versions = control_plane.policy.library.versions
    return [{"path": path, "version": version, "loaded": loaded} for path, version in versions.items()]


def canary_status(cluster: Cluster, describe: Describe) -> dict[str, Any] | None:
    """Return both arms of the canary, `latency` from the pick to the last byte; None without a canary."""
    canary = cluster.canary
    if canary is None:
        return None
    return {
        "share": canary.share,
        "by": "key" if canary.by_key else "request",
        "arms": {
            arm.role: {
                "policy": arm.name,
                "picks": arm.picks,
                "outcomes": {kind.value: number for kind, number in arm.outcomes.items()},
                "latency": describe(arm.latency),
            }
            for arm in canary.arms
        },
    }


def shadow_status(shadow: Shadow) -> dict[str, Any]:
    """Return a shadow's agreement with the live policy, and the picks of both by endpoint."""
    return {
        "name": shadow.name,
        "seen": shadow.seen,
        "agreed": shadow.agreed,
        "agreement": round(shadow.agreement, 4),
        "by_chance": round(shadow.by_chance, 4),
        "skew": round(shadow.skew, 4),
        "picks": dict(shadow.picks),
        "live": dict(shadow.beside),
        "faults": shadow.faults,
        "last_fault": shadow.last_fault,
    }


def policy_families(control_plane: ControlPlane) -> Iterator[Metric]:
    """Yield the metrics of the canary and the shadows, if any."""
    canary, shadows = control_plane.cluster.canary, control_plane.shadows
    if canary is not None:
        latency = [(arm.name, arm.role, *buckets_of(arm.latency)) for arm in canary.arms]
        text = "Picked to last byte, successes"
        yield histogram("steelyard_policy_latency_seconds", text, latency, "policy", "role")
        outcomes = [
            (arm.name, arm.role, kind.value, number)
            for arm in canary.arms
            for kind, number in arm.outcomes.items()
        ]
        text = "Attempts by how they ended"
        yield counter("steelyard_policy_outcomes", text, outcomes, "policy", "role", "outcome")
    if shadows:
        picks = [(shadow.name, *pick) for shadow in shadows for pick in shadow.picks.items()]
        text = "Picks that a shadow would have made"
        yield counter("steelyard_shadow_picks", text, picks, "policy", "endpoint")
        agreed = [(shadow.name, shadow.agreed) for shadow in shadows]
        yield counter("steelyard_shadow_agreed", "Of them, the live policy's", agreed, "policy")
        faults = [(shadow.name, shadow.faults) for shadow in shadows]
        yield counter("steelyard_shadow_faults", "Times that a shadow failed", faults, "policy")
