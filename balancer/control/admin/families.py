"""Metric families of Prometheus, read from a status document: tables with one line for each family.

    gauge    steelyard_queue_oldest_seconds  queue.oldest       Longest wait of the queued requests
    kind     name                            path to a number   text

A path has keys with points between them; a value of None has no number. Its steps are

    oldest                       a key
    problem!                     a key: 1 if its value is None, else 0
    errors{reason}               a table, whose keys are the values of a label
    http2{reason:floods=flood}   these keys of a table, under these names
    endpoints[]                  a list of tables with the labels of `LABELS`, which tables of tables may have, too
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from math import inf
from typing import Any, Final, NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from policies.stats.load import Histogram

KINDS: Final[dict[str, Any]] = {
    "counter": CounterMetricFamily,  # exposed with `_total` behind its name
    "gauge": GaugeMetricFamily,
    "histogram": HistogramMetricFamily,  # its numbers are those of `buckets_of`
}

LABELS: Final = {
    "arms": {"policy": "policy"},
    "clusters": {"name": "to"},
    "discovery": {"source": "source"},
    "endpoints": {"id": "endpoint", "region": "region"},
    "known": {"name": "name"},
    "levels": {"name": "level"},
    "mirrors": {"route": "route", "cluster": "mirror"},
    "origins": {"id": "origin"},
    "rate_limits": {"name": "limit"},
    "shadow": {"name": "policy"},
    "splits": {"route": "route"},
}
"""Keys of the tables of a list, and the labels of their values."""

_STEP: Final = re.compile(r"(\w*)(!|\[\]|\{(\w+)(?::([^}]*))?\}|)")


class Step(NamedTuple):
    """A step of a path: key, mark, label of the keys of a table, and those that are chosen with their names."""

    name: str
    mark: str
    label: str
    chosen: dict[str, str]


class Family(NamedTuple):
    """A metric family."""

    kind: str
    name: str
    path: Sequence[Step]
    text: str

    @property
    def labels(self) -> list[str]:
        """The names of its labels."""
        marked = [step for step in self.path if step.mark]
        own = [[*LABELS.get(step.name, {}).values(), step.label] for step in marked]
        return [label for labels in own for label in labels if label]

    def of(self, document: dict[str, Any]) -> Metric:
        """Return the family with the numbers in a document."""
        family: Metric = KINDS[self.kind](self.name, self.text, labels=self.labels)
        for labels, number in _numbers(document, self.path, []):
            values = number if self.kind == "histogram" else (number,)
            family.add_metric(labels, *values)  # type: ignore[attr-defined]
        return family


def families_of(table: str, within: str = "") -> list[Family]:
    """Parse a table of families, whose paths are behind `within`."""
    rows = (line.split(maxsplit=3) for line in table.strip().splitlines())
    return [Family(kind, name, steps_of(within + path), text) for kind, name, path, text in rows]


def steps_of(path: str) -> list[Step]:
    """Parse a path."""
    steps = []
    for text in path.split("."):
        match = _STEP.fullmatch(text)
        assert match is not None, path
        name, mark, label, chosen = match.groups(default="")
        pairs = [pair.partition("=") for pair in chosen.split(",") if pair]
        steps.append(Step(name, mark, label, {key: shown or key for key, _, shown in pairs}))
    return steps


def _numbers(value: Any, steps: Sequence[Step], labels: list[str]) -> Iterator[tuple[list[str], Any]]:
    """Yield the values of the labels, and the number, of all values that the steps lead to."""
    if not steps:
        if value is not None:
            yield labels, value
        return
    (name, mark, _, chosen), *rest = steps
    inner, own = value[name] if name else value, LABELS.get(name, ())
    if mark == "!":
        yield labels, inner is None
    elif inner is None:
        return
    elif mark == "[]":
        for each in inner:
            yield from _numbers(each, rest, [*labels, *(each[key] for key in own)])
    elif mark:
        for key in chosen or inner:
            each = inner[key]
            yield from _numbers(each, rest, [*labels, *(each[of] for of in own), chosen.get(key, key)])
    else:
        yield from _numbers(inner, rest, labels)


def buckets_of(latency: Histogram) -> tuple[list[tuple[str, int]], float]:
    """Return the cumulative buckets and the sum of a histogram."""
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
    return generate_latest(_Made(families))
