"""HTTP/2 and gRPC, buffering, rate limits, wait queue, shedding, concurrency limits, mirrors, splits and prompts
in the status.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Any

from balancer.cluster.cluster import Cluster
from balancer.control.admin.policy_report import Describe, summary
from balancer.http.grpc.status import NAMES
from balancer.http.h1.client import HTTP2
from balancer.inference.prompt_reader import REASONS
from balancer.rate_limits.configured import RateLimits
from policies.endpoint.state import EndpointState

if TYPE_CHECKING:
    from balancer.control.control_plane import ControlPlane
    from balancer.mirroring.mirror import Mirror, Mirrors
    from balancer.routes.split import Split, Splits


def http2_status(cluster: Cluster) -> dict[str, int]:
    """Return the open connections and streams, and the totals since the start."""
    counts = cluster.process.counts
    clients = [each for each in cluster.process.downstreams if each.client.version == HTTP2]
    return {
        "clients": len(clients),
        "streams": sum(each.answering for each in clients),
        "connections": counts.http2_connections,
        "requests": counts.http2_streams,
        "resets": counts.http2_resets,
        "floods": counts.http2_floods,
        "violations": counts.http2_violations,
    }


def grpc_status(cluster: Cluster) -> dict[str, int]:
    """Return the RPCs of gRPC that have got a status, by its name."""
    return {NAMES[code]: number for code, number in enumerate(cluster.counts.rpcs) if number}


def buffering_status(control_plane: ControlPlane) -> dict[str, int] | None:
    """Return the bytes kept for slow clients, their bound, and counts of bodies; None while no cluster is buffered."""
    every = (control_plane, *control_plane.named.values())
    if all(one.cluster.buffering is None for one in every):
        return None
    budget = control_plane.cluster.process.buffer_budget
    names = ("kept", "requests", "responses", "requests_streamed", "responses_streamed")
    return {"limit": budget.total, **{name: getattr(budget, name) for name in names}}


def rate_limits_status(limits: RateLimits) -> list[dict[str, Any]]:
    """Return the requests under each limit: admitted, refused, buckets given away for it, and
    what other units have admitted."""
    names = ("passed", "denied", "given_away", "elsewhere")
    return [
        {"name": name, **{count: getattr(limit, count) for count in names}}
        for name, limit in limits.by_name.items()
    ]


def queue_status(cluster: Cluster) -> dict[str, Any]:
    """Return the wait queue and its outcomes. Durations are in seconds, `pace` in turns per second."""
    queue, now = cluster.queue, cluster.now()
    tickets = queue.tickets
    return {
        "length": len(tickets),
        "limit": tickets.limit,
        "oldest": round(tickets.oldest_wait(now), 3),
        "order": "adaptive" if tickets.is_adaptive else "fifo",
        "pace": round(tickets.pace.read(now), 3),
        "joined": queue.joined,
        "served": queue.served,
        "left": queue.left,
        "dropped": dict(queue.dropped),
    }


def level_status(cluster: Cluster) -> list[dict[str, Any]] | None:
    """Return the priority levels, the highest first; None with fewer than two levels."""
    admission, tickets = cluster.admission, cluster.queue.tickets
    if admission is None or len(admission.rules.levels) < 2:
        return None
    return [
        {"name": level.name, "waiting": tickets.waiting(number), "shed": cluster.queue.shed[number]}
        for number, level in enumerate(admission.rules.levels)
    ]


def concurrency_status(state: EndpointState) -> dict[str, Any] | None:
    """Return an endpoint's adaptive concurrency limit and its reference latencies; None if it has none."""
    found = state.concurrency
    if found is None:
        return None
    return {"limit": state.limit, "usual_latency": _seconds(found.long), "latency": _seconds(found.short)}


def _seconds(latency: float) -> float | None:
    return round(latency, 6) if latency < inf else None


def inference_status(cluster: Cluster, describe: Describe) -> dict[str, Any] | None:
    """Return the prompts and tokens since the start; None while none are read."""
    reader = cluster.prompts
    if reader is None:
        return None
    counts = reader.counts
    return {
        "prompts": counts.prompts,
        "prompt_tokens": counts.prompt_tokens,
        "cached_tokens": counts.cached_tokens,
        "output_tokens": counts.output_tokens,
        "unread": {reason: reader.unread[reason] for reason in REASONS},
        "unread_answers": counts.unread,
        "ttft": describe(counts.ttft),
        "tpot": describe(counts.tpot),
    }


def mirrors_status(mirrors: Mirrors, describe: Describe = summary) -> dict[str, Any]:
    """Return the mirrors, by route, as a part of the status; nothing without any."""
    found = [_mirror_status(mirror, describe) for mirror in mirrors.by_route.values()]
    return {"mirrors": found} if found else {}


def _mirror_status(mirror: Mirror, describe: Describe) -> dict[str, Any]:
    counts = mirror.counts
    return {
        "name": f"{mirror.route} to {mirror.config.cluster}",
        "cluster": mirror.config.cluster,
        "share": mirror.config.share,
        "in_flight": len(mirror.copies),
        "skipped": dict(counts.skipped),
        "sent": counts.sent,
        "answered": counts.answered,
        "cut": counts.cut,
        "failed": dict(counts.failed),
        "compared": counts.classes.total(),
        "same_class": sum(number for (one, other), number in counts.classes.items() if one == other),
        "classes": {f"{one}xx {other}xx": number for (one, other), number in sorted(counts.classes.items())},
        "latency": {"original": describe(counts.original_latency), "copy": describe(counts.copy_latency)},
    }


def splits_status(splits: Splits) -> dict[str, Any]:
    """Return the splits, by route, as a part of the status; nothing without any."""
    found = [split_status(split) for split in splits.by_route.values()]
    return {"splits": found} if found else {}


def split_status(split: Split) -> dict[str, Any]:
    """Return the split of one route."""
    key = split.config.split_key
    return {
        "name": f"{split.route} to {', '.join(split.names)}",
        "route": split.route,
        "by": key.by if key is not None else None,
        "canary": split.config.canary,
        "changed": split.is_changed,
        "reason": split.reason,
        "clusters": [
            {"name": name, "weight": split.weights[name], "share": share, "requests": requests}
            for name, share, requests in zip(split.names, split.shares, split.requests, strict=True)
        ],
    }
