"""Mirrors and weighted splits in the status and on the terminal: copies by how they ended and in comparison with
originals, and the share and the requests of each cluster.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from balancer.control.admin.policy_report import Describe, summary
from balancer.syntax.printable import with_digits

if TYPE_CHECKING:
    from balancer.mirroring.mirror import Mirror, Mirrors
    from balancer.routes.split import Split, Splits


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
        "classes": {_text(pair): number for pair, number in sorted(counts.classes.items())},
        "latency": {"original": describe(counts.original_latency), "copy": describe(counts.copy_latency)},
    }


def _text(classes: tuple[int, int]) -> str:
    return f"{classes[0]}xx {classes[1]}xx"


def mirror_lines(mirror: dict[str, Any]) -> list[str]:
    """Format a mirror of the status for a terminal."""
    lines = [
        f"mirror {mirror['name']}: share {with_digits(mirror['share'], 3)}, in flight {mirror['in_flight']}, "
        f"sent {mirror['sent']}, skipped: {_reasons(mirror['skipped'])}, failed: {_reasons(mirror['failed'])}"
    ]
    if mirror["compared"]:
        original, copy = mirror["latency"]["original"], mirror["latency"]["copy"]
        times = ", ".join(
            f"{name} {with_digits(original[name] * 1000, 3)} ms (copy {with_digits(copy[name] * 1000, 3)})"
            for name in ("p50", "p99")
        )
        same = mirror["same_class"] / mirror["compared"]
        lines.append(f"  compared {mirror['compared']}: same status class {same:.2%}, {times}")
    return lines


def _reasons(counts: dict[str, int]) -> str:
    return ", ".join(f"{reason} {number}" for reason, number in counts.items()) or "none"


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


def split_lines(split: dict[str, Any]) -> list[str]:
    """Format a split of the status for a terminal."""
    shares = ", ".join(
        f"{each['name']} {with_digits(each['share'] * 100, 3)}% ({each['requests']} requests)"
        for each in split["clusters"]
    )
    notes = [f"by {split['by']}"] if split["by"] else []
    notes += [f"canary {split['canary']}"] if split["canary"] else []
    notes += ["changed since the configuration was read"] if split["changed"] else []
    lines = [f"split {split['route']}: {'; '.join((shares, *notes))}"]
    return [*lines, f"  {split['reason']}"] if split["reason"] else lines
