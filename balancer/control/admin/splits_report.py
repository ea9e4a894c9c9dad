"""Weighted splits in status, metrics and `balancer status`: shares and requests of each cluster."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from prometheus_client.core import Metric

from balancer.control.admin.families import counter, gauge
from balancer.syntax.printable import with_digits

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
