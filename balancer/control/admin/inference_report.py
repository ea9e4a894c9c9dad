"""Prompts, tokens and their latencies in the status, of clusters whose policy reads prompts."""

from __future__ import annotations

from typing import Any

from balancer.cluster.cluster import Cluster
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
        "prompts": counts.prompts,
        "prompt_tokens": counts.prompt_tokens,
        "cached_tokens": counts.cached_tokens,
        "output_tokens": counts.output_tokens,
        "unread": {reason: reader.unread[reason] for reason in REASONS},
        "ttft": describe(counts.ttft),
        "tpot": describe(counts.tpot),
    }


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
