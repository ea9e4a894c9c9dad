"""Prompts, tokens and their latencies in status and metrics, of clusters whose policy reads prompts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from prometheus_client.core import Metric

from balancer.cluster.cluster import Cluster
from balancer.control.admin.families import attributes, buckets_of, counter, histogram
from balancer.control.admin.policy_report import Describe
from balancer.inference.prompt_reader import REASONS
from balancer.syntax.printable import with_digits


def inference_status(cluster: Cluster, describe: Describe) -> dict[str, Any] | None:
    """Return the prompts and tokens since the start; None while the policy reads no prompts."""
    reader = cluster.prompts
    if reader is None:
        return None
    counts = reader.counts
    return {
        **dict(attributes(counts, "prompts", "prompt_tokens", "cached_tokens", "output_tokens")),
        "unread": {reason: reader.unread[reason] for reason in REASONS},
        "ttft": describe(counts.ttft),
        "tpot": describe(counts.tpot),
    }


def inference_families(cluster: Cluster) -> Iterator[Metric]:
    """Yield the same as metrics."""
    reader = cluster.prompts
    if reader is None:
        return
    counts = reader.counts
    yield counter("steelyard_prompts", "Requests whose prompt was read", counts.prompts)
    unread = [(reason, reader.unread[reason]) for reason in REASONS]
    yield counter(
        "steelyard_prompts_unread", "Requests whose body has no prompt, by reason", unread, "reason"
    )
    kinds = ("prompt", "cached", "output")
    tokens = [(kind, getattr(counts, f"{kind}_tokens")) for kind in kinds]
    yield counter(
        "steelyard_tokens", "Tokens of prompts, cached ones of these, and of answers", tokens, "kind"
    )
    yield histogram("steelyard_ttft_seconds", "Request to first token", [buckets_of(counts.ttft)])
    yield histogram("steelyard_tpot_seconds", "Time per token after the first", [buckets_of(counts.tpot)])


def inference_line(status: dict[str, Any]) -> str:
    """Format the status for a terminal."""
    prompts, tokens, output = (status[name] for name in ("prompts", "prompt_tokens", "output_tokens"))
    cached = f"{status['cached_tokens'] / tokens:.0%} cached" if tokens else "none cached"
    times = ", ".join(
        f"{name.upper()} p50 {_seconds(status[name]['p50'])} p99 {_seconds(status[name]['p99'])}"
        for name in ("ttft", "tpot")
    )
    unread = sum(status["unread"].values())
    return f"prompts {prompts}, unread {unread}, tokens {tokens} ({cached}), output {output}, {times}"


def _seconds(value: float | None) -> str:
    return "–" if value is None else f"{with_digits(value, 3)} s"
