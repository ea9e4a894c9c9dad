"""Mirrors and weighted splits in status, metrics and on the terminal: copies by how they ended and in comparison with
originals, and the share and the requests of each cluster.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from prometheus_client.core import Metric

from balancer.control.admin.families import buckets_of, counter, gauge, histogram
from balancer.control.admin.policy_report import Describe, summary
from balancer.syntax.printable import with_digits

if TYPE_CHECKING:
    from balancer.mirroring.mirror import Mirror, Mirrors

OF_MIRROR = ("route", "mirror")


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


def mirror_families(mirrors: Mirrors) -> Iterator[Metric]:
    """Yield the metrics of the mirrors, if there are any."""
    every = [((mirror.route, mirror.config.cluster), mirror) for mirror in mirrors.by_route.values()]
    if not every:
        return
    in_flight = [(*labels, len(mirror.copies)) for labels, mirror in every]
    yield gauge("steelyard_mirror_in_flight", "Copies in flight", in_flight, *OF_MIRROR)
    copies = [
        (*labels, result, reason, number)
        for labels, mirror in every
        for result, reasons in (
            ("answered", {"": mirror.counts.answered}),
            ("skipped", mirror.counts.skipped),
            ("failed", mirror.counts.failed),
        )
        for reason, number in reasons.items()
    ]
    text = "Copies by how they ended"
    yield counter("steelyard_mirror_copies", text, copies, *OF_MIRROR, "result", "reason")
    compared = [
        (*labels, *_text(pair).split(), number)
        for labels, mirror in every
        for pair, number in mirror.counts.classes.items()
    ]
    text = "Status classes of pairs"
    yield counter("steelyard_mirror_compared", text, compared, *OF_MIRROR, "original", "copy")
    latency = [
        (*labels, of, *buckets_of(times))
        for labels, mirror in every
        for of, times in (("original", mirror.counts.original_latency), ("copy", mirror.counts.copy_latency))
    ]
    text = "Whole request to response head"
    yield histogram("steelyard_mirror_latency_seconds", text, latency, *OF_MIRROR, "of")


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


if TYPE_CHECKING:
    from balancer.routes.split import Split, Splits

OF_SPLIT = ("route", "to")


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


def split_families(splits: Splits) -> Iterator[Metric]:
    """Yield the metrics of the splits, if there are any."""
    if not splits.by_route:
        return
    every = splits.by_route.values()
    shares = [
        (split.route, *share) for split in every for share in zip(split.names, split.shares, strict=True)
    ]
    yield gauge("steelyard_split_share", "Share of a cluster in a split", shares, *OF_SPLIT)
    requests = [
        (split.route, *row) for split in every for row in zip(split.names, split.requests, strict=True)
    ]
    yield counter("steelyard_split_requests", "Requests of a split", requests, *OF_SPLIT)


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
