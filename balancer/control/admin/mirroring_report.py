"""Mirrors in status, metrics and `balancer status`: copies by how they ended, and how they compare with originals."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from balancer.control.admin.policy_report import summary
from balancer.syntax.printable import with_digits
from policies.stats.load import Histogram

if TYPE_CHECKING:
    from balancer.mirroring.mirror import Mirror, Mirrors

PREFIX = "steelyard"
OF_MIRROR = ["route", "mirror"]


def mirrors_status(
    mirrors: Mirrors, describe: Callable[[Histogram], dict[str, Any]] = summary
) -> dict[str, Any]:
    """Return the mirrors, by route, as a part of the status; nothing without any."""
    found = [_mirror_status(mirror, describe) for mirror in mirrors.by_route.values()]
    return {"mirrors": found} if found else {}


def _mirror_status(mirror: Mirror, describe: Callable[[Histogram], dict[str, Any]]) -> dict[str, Any]:
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
    if not mirrors.by_route:
        return
    in_flight = GaugeMetricFamily(f"{PREFIX}_mirror_in_flight", "Copies in flight", labels=OF_MIRROR)
    copies = CounterMetricFamily(
        f"{PREFIX}_mirror_copies", "Copies by how they ended", labels=[*OF_MIRROR, "result", "reason"]
    )
    compared = CounterMetricFamily(
        f"{PREFIX}_mirror_compared", "Status classes of pairs", labels=[*OF_MIRROR, "original", "copy"]
    )
    latency = HistogramMetricFamily(
        f"{PREFIX}_mirror_latency_seconds", "Whole request to response head", labels=[*OF_MIRROR, "of"]
    )
    for mirror in mirrors.by_route.values():
        labels, counts = [mirror.route, mirror.config.cluster], mirror.counts
        in_flight.add_metric(labels, len(mirror.copies))
        copies.add_metric([*labels, "answered", ""], counts.answered)
        for result, reasons in (("skipped", counts.skipped), ("failed", counts.failed)):
            for reason, number in reasons.items():
                copies.add_metric([*labels, result, reason], number)
        for pair, number in counts.classes.items():
            compared.add_metric([*labels, *_text(pair).split()], number)
        for of, histogram in (("original", counts.original_latency), ("copy", counts.copy_latency)):
            rows = [
                ("+Inf" if bound == float("inf") else f"{bound:.6g}", number)
                for bound, number in histogram.cumulative()
            ]
            latency.add_metric([*labels, of], buckets=rows, sum_value=histogram.total)
    yield from (in_flight, copies, compared, latency)


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
