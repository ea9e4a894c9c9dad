"""Metric families of Prometheus, made of the numbers of one moment: the values are read when they are asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import inf
from typing import Any, Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from policies.endpoint.state import EndpointState
from policies.stats.load import Histogram

OF_ENDPOINT: Final = ("endpoint", "region")
"""Labels of the metrics that each endpoint has."""

Rows = Iterable[tuple[Any, ...]]
"""Rows of a family: the values of its labels, and then the number."""


def gauge(name: str, text: str, numbers: float | Rows, *labels: str) -> Metric:
    """Return a gauge with a row for each combination of labels, or with one number and no label."""
    return _filled(GaugeMetricFamily(name, text, labels=labels), numbers)


def counter(name: str, text: str, numbers: float | Rows, *labels: str) -> Metric:
    """Return a counter, which is exposed with `_total` behind its name."""
    return _filled(CounterMetricFamily(name, text, labels=labels), numbers)


def histogram(name: str, text: str, rows: Rows, *labels: str) -> Metric:
    """Return a histogram; each row ends with the cumulative buckets and the sum."""
    family = HistogramMetricFamily(name, text, labels=labels)
    for *values, buckets, total in rows:
        family.add_metric(values, buckets=buckets, sum_value=total)
    return family


def _filled(family: GaugeMetricFamily | CounterMetricFamily, numbers: float | Rows) -> Metric:
    for *values, number in numbers if isinstance(numbers, Iterable) else [(numbers,)]:
        family.add_metric(values, number)
    return family


def of_each(states: Iterable[EndpointState], number: Callable[[EndpointState], Any]) -> Rows:
    """Return a row for each endpoint, with the labels `OF_ENDPOINT`."""
    return [(state.id, state.region, number(state)) for state in states]


def rows_of_each(states: Iterable[EndpointState], rows: Callable[[EndpointState], Rows]) -> Rows:
    """Return the rows of all endpoints, with the labels `OF_ENDPOINT` before those of each row."""
    return [(state.id, state.region, *row) for state in states for row in rows(state)]


def attributes(counts: object, *names: str) -> Rows:
    """Return a row for each of these attributes, with its name as the label."""
    return [(name, getattr(counts, name)) for name in names]


def buckets_of(latency: Histogram) -> tuple[list[tuple[str, int]], float]:
    """Return the cumulative buckets and the sum of a histogram, which end a row of `histogram`."""
    rows = [("+Inf" if bound == inf else f"{bound:.6g}", number) for bound, number in latency.cumulative()]
    return rows, latency.total


class _Made(Collector):
    """Collector of families that are made already."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = list(families)

    def collect(self) -> Iterable[Metric]:
        return self._families


def exposed(families: Iterable[Metric]) -> bytes:
    """Return the families in Prometheus' text format."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Made(families))
    return generate_latest(registry)
