"""The live policy, its canary and its shadows in status and metrics; every value is read at request time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric

from policies.insight.shadow import Shadow
from policies.stats.load import Histogram

if TYPE_CHECKING:
    from balancer.cluster.cluster import Cluster
    from balancer.control.control_plane import ControlPlane

PREFIX = "steelyard"
QUANTILES = (0.5, 0.9, 0.99)


def summary(histogram: Histogram) -> dict[str, float | None]:
    """Summarize a histogram as count, mean and quantiles."""
    count = histogram.count
    return {
        "count": count,
        "mean": histogram.total / count if count else None,
        **{f"p{q * 100:g}": histogram.quantile(q) for q in QUANTILES},
    }


def raw(histogram: Histogram) -> dict[str, Any]:
    """Return a histogram's counts and total, which another process can merge; quantiles cannot be merged."""
    return {"counts": histogram.counts, "total": histogram.total}


def policy_status(
    control_plane: ControlPlane, describe: Callable[[Histogram], dict[str, Any]] = summary
) -> dict[str, Any]:
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


def process_policy_status(control_plane: ControlPlane) -> dict[str, Any]:
    """Return the policy status with raw histograms, for a sibling process."""
    return policy_status(control_plane, raw)


def canary_status(cluster: Cluster, describe: Callable[[Histogram], dict[str, Any]]) -> dict[str, Any] | None:
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
    cluster = control_plane.cluster
    if cluster.canary is not None:
        latency = HistogramMetricFamily(
            f"{PREFIX}_policy_latency_seconds", "Picked to last byte, successes", labels=["policy", "role"]
        )
        outcomes = CounterMetricFamily(
            f"{PREFIX}_policy_outcomes", "Attempts by how they ended", labels=["policy", "role", "outcome"]
        )
        for arm in cluster.canary.arms:
            rows = [
                ("+Inf" if bound == float("inf") else f"{bound:.6g}", number)
                for bound, number in arm.latency.cumulative()
            ]
            latency.add_metric([arm.name, arm.role], buckets=rows, sum_value=arm.latency.total)
            for kind, number in arm.outcomes.items():
                outcomes.add_metric([arm.name, arm.role, kind.value], number)
        yield from (latency, outcomes)
    if control_plane.shadows:
        yield from _shadow_families(control_plane)


def _shadow_families(control_plane: ControlPlane) -> Iterator[Metric]:
    picks = CounterMetricFamily(
        f"{PREFIX}_shadow_picks", "Picks that a shadow would have made", labels=["policy", "endpoint"]
    )
    agreed = CounterMetricFamily(f"{PREFIX}_shadow_agreed", "Of them, the live policy's", labels=["policy"])
    faults = CounterMetricFamily(f"{PREFIX}_shadow_faults", "Times that a shadow failed", labels=["policy"])
    for shadow in control_plane.shadows:
        for endpoint, number in shadow.picks.items():
            picks.add_metric([shadow.name, endpoint], number)
        agreed.add_metric([shadow.name], shadow.agreed)
        faults.add_metric([shadow.name], shadow.faults)
    yield from (picks, agreed, faults)
