"""Live figures of a campaign to an OpenTelemetry collector, by OTLP over HTTP from a thread of its own.

The thread reads the ledger of the run every two seconds. Nothing waits for it: what the collector does not take is
lost, the first reason is printed, and the run goes on. The environment may give headers and certificates
(`OTEL_EXPORTER_OTLP_…`).
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from threading import Thread

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.metrics import CallbackOptions, Observation
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource

from experiments.generator.ledger import Ledger
from experiments.platform.printable import one_line
from experiments.results.directory import Campaign, PlannedRun
from experiments.run_data import Run
from experiments.running.runner import Observer

EVERY = 2.0
TIMEOUT = 5.0
"""Seconds that one export may take, repetitions included."""

FLUSH_LIMIT = 2.0
"""Seconds that the end of a campaign waits for the last export."""

PREFIX = "steelyard.experiment"
Totals = dict[tuple[str, str], int]
"""Requests that ended, by entry and outcome."""


@contextmanager
def exported(url: str, campaign: Campaign, say: Callable[[str], None]) -> Iterator[Observer]:
    """An observer whose figures go to the collector at `url`."""
    log = FirstWarning(lambda reason: say(f"otlp: {url} takes no metrics; the run goes on: {reason}"))
    logger = logging.getLogger("opentelemetry")
    logger.handlers, logger.propagate = [log], False  # to stay: the last export may fail after the end
    exporter = OTLPMetricExporter(url, timeout=TIMEOUT)
    reader = PeriodicExportingMetricReader(exporter, EVERY * 1e3, TIMEOUT * 1e3)
    resource = Resource.create({
        "service.name": "steelyard-experiments", "service.version": version("steelyard"),
        "steelyard.scenario": campaign.scenario.name,
    })  # fmt: skip
    provider = MeterProvider([reader], resource, shutdown_on_exit=False)
    figures = Figures()
    figures.offer(provider)
    try:
        yield figures
    finally:
        flush = Thread(target=provider.shutdown, name="otlp-flush", daemon=True)
        flush.start()
        flush.join(FLUSH_LIMIT)
        if flush.is_alive():
            exporter.shutdown()  # ends the wait before a repetition


class FirstWarning(logging.Handler):
    """Says the first warning that OpenTelemetry logs: the reason of the first failure."""

    def __init__(self, say: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self._say = say
        self._has_said = False

    def emit(self, record: logging.LogRecord) -> None:
        if not self._has_said:
            self._has_said = True
            self._say(one_line(record.getMessage())[:200])


class Figures(Observer):
    """Observer whose figures are read by another thread; a change of run replaces one tuple."""

    def __init__(self) -> None:
        self._now: tuple[str, Ledger | None, Totals] = "", None, {}

    def run_started(self, planned: PlannedRun) -> None:
        self._now = planned.label, None, self._now[2]

    def load_started(self, ledger: Ledger) -> None:
        self._now = self._now[0], ledger, self._now[2]

    def run_ended(self, planned: PlannedRun, run: Run) -> None:
        self._now = planned.label, None, self._totals()

    # --- the thread of the exporter

    def offer(self, provider: MeterProvider) -> None:
        meter = provider.get_meter("steelyard")
        meter.create_observable_counter(
            f"{PREFIX}.requests", [self._requests], "{request}", "Ended requests."
        )
        for name, unit, description, read in (
            ("in_flight", "{request}", "Requests without an end.", self._in_flight),
            ("latency", "s", "Latency from the due instant, of the last second.", self._latency),
            ("lag", "s", "Longest delay of the generator among the last hundred requests.", self._lag),
        ):
            meter.create_observable_gauge(f"{PREFIX}.{name}", [read], unit, description)

    def _totals(self) -> Totals:
        label, ledger, before = self._now
        if ledger is None:
            return before
        failures = dict(ledger.failures)
        ended = {"ok": len(ledger.ended_order) - sum(failures.values()), **failures}
        found = Counter(before)
        for outcome, count in ended.items():
            found[label, outcome] += count
        return dict(found)

    def _requests(self, options: CallbackOptions) -> Iterable[Observation]:
        for (label, outcome), count in self._totals().items():
            yield Observation(count, {"entry": label, "outcome": outcome})

    def _in_flight(self, options: CallbackOptions) -> Iterable[Observation]:
        label, ledger, _ = self._now
        if ledger is not None:
            yield Observation(ledger.in_flight, {"entry": label})

    def _latency(self, options: CallbackOptions) -> Iterable[Observation]:
        label, ledger, _ = self._now
        count, *quantiles = (0.0,) if ledger is None else ledger.recent(time.monotonic())
        for quantile, value in zip(("0.5", "0.95"), quantiles, strict=False):
            if count:
                yield Observation(value, {"entry": label, "quantile": quantile})

    def _lag(self, options: CallbackOptions) -> Iterable[Observation]:
        label, ledger, _ = self._now
        if ledger is not None:
            yield Observation(ledger.recent_lag(), {"entry": label})
