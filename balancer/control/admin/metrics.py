"""/-/metrics: the counters of the data path in Prometheus' text format, read at scrape time.

The data path must not count anything for this module alone.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator
from importlib.metadata import version

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from balancer.build import build
from balancer.cluster.cluster import Cluster
from balancer.cluster.condition import Condition
from balancer.config.schema.routes import DEFAULT
from balancer.control.admin.buffering_report import buffering_families
from balancer.control.admin.connections_report import connection_families
from balancer.control.admin.health import PANIC, SERVING, endpoint_condition, readiness
from balancer.control.admin.http2_report import http2_families
from balancer.control.admin.mirroring_report import mirror_families
from balancer.control.admin.policy_report import policy_families
from balancer.control.admin.queue_report import queue_families
from balancer.control.admin.rate_limits_report import rate_limit_families
from balancer.control.admin.routes_report import route_families
from balancer.control.admin.splits_report import split_families
from balancer.control.control_plane import ControlPlane, ReloadCounts
from balancer.log.access_log import LogCounts
from balancer.sharing.exchange import ReportExchange
from balancer.tracing.spans import Spans
from balancer.upstream.load_probes import ProbeCounts
from policies.endpoint.state import EndpointState

PREFIX = "steelyard"
OF_ENDPOINT = ["endpoint", "region"]


def metrics_text(control_plane: ControlPlane) -> tuple[bytes, str]:
    """Return the text and its content type."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(MetricsCollector(control_plane))
    ProcessCollector(registry=registry)
    return generate_latest(registry), CONTENT_TYPE_LATEST


class MetricsCollector(Collector):
    """Prometheus collector of one cluster."""

    def __init__(self, control_plane: ControlPlane) -> None:
        self._control_plane = control_plane
        self._cluster = control_plane.cluster

    def describe(self) -> list[Metric]:
        """Return nothing: families are read at collection."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield all families from the current counters; with names, clusters have the label `cluster`."""
        yield from self._process_families()
        named = self._control_plane.named
        if not named:
            yield from self._cluster_families()
            return
        labelled: dict[str, Metric] = {}
        for name, plane in {DEFAULT: self._control_plane, **named}.items():
            for family in MetricsCollector(plane)._cluster_families():
                whole = labelled.setdefault(
                    family.name, Metric(family.name, family.documentation, family.type)
                )
                for sample in family.samples:
                    whole.samples.append(sample._replace(labels={"cluster": name, **sample.labels}))
        yield from labelled.values()

    def _process_families(self) -> Iterator[Metric]:
        cluster = self._cluster
        yield build_family()
        is_ready = readiness(self._control_plane) in (SERVING, PANIC)
        yield GaugeMetricFamily(f"{PREFIX}_ready", "1: some endpoint may answer", is_ready)
        yield GaugeMetricFamily(
            f"{PREFIX}_clients", "Client connections open", len(cluster.process.downstreams)
        )
        pending = cluster.process.usages.budget.kept
        yield GaugeMetricFamily(f"{PREFIX}_pending_bytes", "Bytes of requests that wait", pending)
        connections = cluster.process.counts.connections
        yield CounterMetricFamily(f"{PREFIX}_connections", "Client connections accepted", connections)
        yield from http2_families(cluster)
        yield from reload_families(self._control_plane.reload_counts)
        yield from rate_limit_families(self._control_plane.rate_limits)
        yield from mirror_families(self._control_plane.mirrors)
        yield from split_families(self._control_plane.splits)
        if cluster.process.access_log is not None:
            yield log_family(cluster.process.access_log.counts)
        yield from buffering_families(self._control_plane)
        if cluster.process.tracing is not None and cluster.process.tracing.spans is not None:
            yield from span_families(cluster.process.tracing.spans)

    def _cluster_families(self) -> Iterator[Metric]:
        yield from self._proxy_families()
        yield from self._endpoint_gauges()
        yield from self._endpoint_counters()
        yield from health_families(self._control_plane)
        if self._control_plane.shared is not None:
            yield from shared_families(self._control_plane.shared)
        yield from route_families(self._cluster)
        yield self._latency()

    def _proxy_families(self) -> Iterator[Metric]:
        cluster, counts = self._cluster, self._cluster.counts
        yield CounterMetricFamily(f"{PREFIX}_requests", "Requests received", counts.requests)
        yield CounterMetricFamily(f"{PREFIX}_retries", "Requests sent to a further endpoint", counts.retried)
        denied = cluster.retries.budget.denied
        yield CounterMetricFamily(f"{PREFIX}_retries_denied", "Retries beyond the budget", denied)
        yield from self._hedges()
        yield CounterMetricFamily(f"{PREFIX}_abandoned", "Requests whose client left", counts.abandoned)
        yield CounterMetricFamily(
            f"{PREFIX}_fallback_picks",
            "Picks that the fallback policy made",
            cluster.router.all_fallback_picks,
        )
        yield from self._tunnels()
        yield from self._discovery()
        sticky = CounterMetricFamily(
            f"{PREFIX}_sticky", "Requests that belong to an endpoint", labels=["placed"]
        )
        sticky.add_metric(["kept"], self._control_plane.sticky_counts.kept)
        sticky.add_metric(["moved"], self._control_plane.sticky_counts.moved)
        yield sticky
        yield reason_family(self._control_plane)
        yield from policy_families(self._control_plane)
        yield record_family(self._control_plane)
        yield probe_family(self._control_plane.load_probes.counts)
        yield CounterMetricFamily(
            f"{PREFIX}_malformed_load_reports",
            "Load reports of workers that could not be read",
            cluster.reports.malformed,
        )
        yield from queue_families(cluster)
        yield from panic_families(cluster)
        errors = CounterMetricFamily(f"{PREFIX}_errors", "Error responses of the balancer", labels=["reason"])
        for reason, number in counts.errors.items():
            errors.add_metric([reason], number)
        yield errors
        responses = CounterMetricFamily(
            f"{PREFIX}_responses", "Responses sent to clients, by status", labels=["code"]
        )
        for code, number in enumerate(counts.responses):
            if number:
                responses.add_metric([str(code)], number)
        yield responses

    def _hedges(self) -> Iterator[Metric]:
        hedges, counts = self._cluster.hedges, self._cluster.counts
        if hedges is None:
            return
        hedging = hedges.hedging
        yield CounterMetricFamily(
            f"{PREFIX}_hedges", "Late requests sent to a second endpoint", counts.hedged
        )
        yield CounterMetricFamily(f"{PREFIX}_hedges_won", "Hedges that answered first", counts.hedges_won)
        yield GaugeMetricFamily(f"{PREFIX}_hedge_losers", "Attempts that came second", len(hedges.losers))
        withheld = CounterMetricFamily(
            f"{PREFIX}_hedges_withheld", "Late requests that were not hedged", labels=["reason"]
        )
        withheld.add_metric(["budget"], hedging.denied)
        withheld.add_metric(["all_slow"], hedging.withheld)
        yield withheld
        late = GaugeMetricFamily(f"{PREFIX}_late_after_seconds", "Wait for a first byte", labels=["region"])
        for region, seconds in hedging.usual.items():
            late.add_metric([region], seconds)
        yield late

    def _discovery(self) -> Iterator[Metric]:
        control_plane = self._control_plane
        named = GaugeMetricFamily(f"{PREFIX}_discovered", "Endpoints of a source", labels=["source"])
        good = GaugeMetricFamily(f"{PREFIX}_discovery_good", "1: the last look was good", labels=["source"])
        for source in control_plane.discovery.sources:
            named.add_metric([source.source], control_plane.registry.count(source.source))
            good.add_metric([source.source], source.problem is None)
        yield from (named, good)

    def _tunnels(self) -> Iterator[Metric]:
        tunnels = self._cluster.tunnels
        yield GaugeMetricFamily(f"{PREFIX}_tunnels", "Upgraded connections open", len(tunnels))
        yield CounterMetricFamily(f"{PREFIX}_tunnels_opened", "Upgraded connections", tunnels.opened)
        passed = CounterMetricFamily(
            f"{PREFIX}_tunnel_bytes", "Bytes through tunnels, from and to clients", labels=["direction"]
        )
        passed.add_metric(["in"], tunnels.bytes_in)
        passed.add_metric(["out"], tunnels.bytes_out)
        yield passed

    def _endpoint_gauges(self) -> Iterator[Metric]:
        in_flight = GaugeMetricFamily(
            f"{PREFIX}_endpoint_in_flight", "Requests in flight", labels=OF_ENDPOINT
        )
        available = GaugeMetricFamily(f"{PREFIX}_endpoint_available", "1: takes requests", labels=OF_ENDPOINT)
        connections = GaugeMetricFamily(
            f"{PREFIX}_endpoint_connections", "Connections held", labels=[*OF_ENDPOINT, "state"]
        )
        for state in self._cluster.router.states:
            pool = self._cluster.pools.by_id[state.id]
            in_flight.add_metric(_labels(state), state.in_flight_here)
            available.add_metric(_labels(state), state.available)
            for name, number in (("idle", pool.idle), ("leased", pool.leased), ("opening", pool.opening)):
                connections.add_metric([*_labels(state), name], number)
        yield from (in_flight, available, connections)

    def _endpoint_counters(self) -> Iterator[Metric]:
        outcomes = CounterMetricFamily(
            f"{PREFIX}_endpoint_outcomes", "Attempts by how they ended", labels=[*OF_ENDPOINT, "outcome"]
        )
        for state in self._cluster.router.states:
            for kind, number in state.outcomes.items():
                outcomes.add_metric([*_labels(state), kind.value], number)
        yield outcomes
        yield from connection_families(self._cluster)

    def _latency(self) -> Metric:
        latency = HistogramMetricFamily(
            f"{PREFIX}_endpoint_latency_seconds", "Sent to last byte, successes", labels=OF_ENDPOINT
        )
        for state in self._cluster.router.states:
            rows = [
                ("+Inf" if bound == float("inf") else f"{bound:.6g}", number)
                for bound, number in state.histogram.cumulative()
            ]
            latency.add_metric(_labels(state), buckets=rows, sum_value=state.histogram.total)
        return latency


def build_family() -> Metric:
    """Return version, build and interpreter as labels of a constant 1."""
    family = GaugeMetricFamily(
        f"{PREFIX}_build_info", "Version, build and Python", labels=["version", "build", "python"]
    )
    family.add_metric([version("steelyard"), build(), platform.python_version()], 1)
    return family


def panic_families(cluster: Cluster) -> Iterator[Metric]:
    """Yield where panic mode ignores health, and the requests routed meanwhile; "" is the whole cluster."""
    panic, router = cluster.router.health.panic, cluster.router
    now = GaugeMetricFamily(f"{PREFIX}_panic", "1: health is ignored here", labels=["region"])
    now.add_metric([""], panic.is_everywhere)
    for region in sorted({state.region for state in router.states}):
        now.add_metric([region], region in panic.regions)
    yield now
    yield CounterMetricFamily(f"{PREFIX}_panics", "Times that panic began", panic.times)
    routed = panic.requests(router.routed)
    yield CounterMetricFamily(f"{PREFIX}_panic_requests", "Requests routed in panic", routed)


def health_families(control_plane: ControlPlane) -> Iterator[Metric]:
    """Yield health, ejection and slow start of the endpoints and the results of their active checks."""
    cluster = control_plane.cluster
    condition = GaugeMetricFamily(
        f"{PREFIX}_endpoint_condition", "1 for its present condition", labels=[*OF_ENDPOINT, "condition"]
    )
    healthy = GaugeMetricFamily(f"{PREFIX}_endpoint_healthy", "1: its checks pass", labels=OF_ENDPOINT)
    ejected = GaugeMetricFamily(f"{PREFIX}_endpoint_ejected", "1: left out for failing", labels=OF_ENDPOINT)
    share = GaugeMetricFamily(f"{PREFIX}_endpoint_share", "Part of its weight in force", labels=OF_ENDPOINT)
    ejections = CounterMetricFamily(f"{PREFIX}_endpoint_ejections", "Ejections", labels=OF_ENDPOINT)
    checks = CounterMetricFamily(
        f"{PREFIX}_endpoint_checks", "Active checks by result", labels=[*OF_ENDPOINT, "result"]
    )
    for state in cluster.router.states:
        labels = _labels(state)
        healthy.add_metric(labels, state.passes_checks)
        ejected.add_metric(labels, state.is_ejected)
        share.add_metric(labels, state.share)
        ejections.add_metric(labels, state.record.count)
        present = endpoint_condition(control_plane, state)["condition"]
        for one in Condition:
            condition.add_metric([*labels, one.value], one.value == present)
        check = control_plane.checks.by_id.get(state.id)
        for result in ("passed", "failed"):
            checks.add_metric([*labels, result], getattr(check.state, result) if check is not None else 0)
    yield from (condition, healthy, ejected, share, ejections, checks)


def shared_families(shared: ReportExchange) -> Iterator[Metric]:
    """Yield the state of the store shared with other units, and the reports by result."""
    yield GaugeMetricFamily(f"{PREFIX}_shared_connected", "1: the store answers", shared.is_connected)
    yield GaugeMetricFamily(f"{PREFIX}_shared_others", "Processes of other units that report", shared.others)
    yield GaugeMetricFamily(f"{PREFIX}_shared_delay_seconds", "Time that a report takes", shared.delay)
    yield CounterMetricFamily(f"{PREFIX}_shared_losses", "Times that the store was lost", shared.counts.lost)
    reports = CounterMetricFamily(f"{PREFIX}_shared_reports", "Reports by result", labels=["result"])
    for result in ("sent", "heard", "ignored"):
        reports.add_metric([result], getattr(shared.counts, result))
    yield reports


def record_family(control_plane: ControlPlane) -> Metric:
    """Return the requests of the last recording, by result."""
    family = CounterMetricFamily(f"{PREFIX}_recorded", "Requests of the last recording", labels=["result"])
    status = control_plane.recording.status()
    for result in ("written", "dropped"):
        family.add_metric([result], status[result])
    return family


def probe_family(counts: ProbeCounts) -> Metric:
    """Return the out-of-band load probes, by result."""
    family = CounterMetricFamily(f"{PREFIX}_load_probes", "Load asked for out of band", labels=["result"])
    for result in ("answered", "silent", "failed", "skipped"):
        family.add_metric([result], getattr(counts, result))
    return family


def reason_family(control_plane: ControlPlane) -> Metric:
    """Return the reasons of picks, counted while picks are explained."""
    family = CounterMetricFamily(f"{PREFIX}_pick_reasons", "Reasons of explained picks", labels=["reason"])
    for reason, number in control_plane.explanations.reasons.items():
        family.add_metric([reason], number)
    return family


def log_family(counts: LogCounts) -> Metric:
    """Return the entries of the access log, by result."""
    family = CounterMetricFamily(f"{PREFIX}_log_entries", "Entries of the access log", labels=["result"])
    for result in ("written", "dropped", "lost"):
        family.add_metric([result], getattr(counts, result))
    return family


def span_families(spans: Spans) -> Iterator[Metric]:
    """Yield the spans by result, and whether the last export succeeded."""
    family = CounterMetricFamily(f"{PREFIX}_spans", "Spans of sampled requests", labels=["result"])
    for result in ("exported", "dropped", "lost"):
        family.add_metric([result], getattr(spans.counts, result))
    yield family
    yield GaugeMetricFamily(f"{PREFIX}_spans_waiting", "Spans that wait for export", spans.waiting)
    yield GaugeMetricFamily(f"{PREFIX}_span_export_good", "1: the last export succeeded", spans.is_good)


def reload_families(counts: ReloadCounts) -> Iterator[Metric]:
    """Yield the number of reloads, and whether the last one succeeded."""
    reloads = CounterMetricFamily(f"{PREFIX}_reloads", "Configuration read again", labels=["result"])
    reloads.add_metric(["done"], counts.done)
    reloads.add_metric(["refused"], counts.refused)
    yield reloads
    is_good = counts.problem is None
    yield GaugeMetricFamily(f"{PREFIX}_configuration_good", "1: the last reload was not refused", is_good)


def _labels(state: EndpointState) -> list[str]:
    return [state.id, state.region]
