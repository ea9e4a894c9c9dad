"""The live policy, its canary and its shadows in the status; every value is read at request time."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from policies.insight.shadow import Shadow
from policies.stats.load import Histogram

if TYPE_CHECKING:
    from balancer.cluster.cluster import Cluster
    from balancer.control.control_plane import ControlPlane

QUANTILES = (0.5, 0.9, 0.99)

Describe = Callable[[Histogram], Any]
"""How a histogram is shown: its `summary`, `raw` for a sibling process, because quantiles cannot be merged, or its
`buckets_of` for metrics."""


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
        **{name: round(value, 4) for name, value in shadow.ratios.items()},
        "picks": dict(shadow.picks),
        "live": dict(shadow.beside),
        "faults": shadow.faults,
        "last_fault": shadow.last_fault,
    }
