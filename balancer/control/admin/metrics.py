"""/-/metrics: the counters of the data path in Prometheus' text format, read at scrape time.

The data path must not count anything for this module alone.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator
from importlib.metadata import version
from math import inf

from prometheus_client import ProcessCollector
from prometheus_client.core import Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from balancer.build import build
from balancer.cluster.cluster import Cluster
from balancer.cluster.condition import Condition
from balancer.config.schema.routes import DEFAULT
from balancer.control.admin.families import (
    OF_ENDPOINT,
    Rows,
    attributes,
    buckets_of,
    counter,
    exposed,
    gauge,
    histogram,
    of_each,
    rows_of_each,
)
from balancer.control.admin.health import PANIC, SERVING, endpoint_condition, readiness
from balancer.control.admin.inference_report import inference_families
from balancer.control.admin.mirrors_splits_report import mirror_families, split_families
from balancer.control.admin.policy_report import policy_families
from balancer.control.admin.routes_report import connection_families, route_families
from balancer.control.admin.status import checks_status
from balancer.control.admin.traffic_report import (
    buffering_families,
    http2_families,
    queue_families,
    rate_limit_families,
)
from balancer.control.control_plane import ControlPlane
from balancer.sharing.exchange import ReportExchange
from policies.endpoint.state import EndpointState


def metrics_text(control_plane: ControlPlane) -> tuple[bytes, str]:
    """Return the text and its content type."""
    families = (*metric_families(control_plane), *ProcessCollector(registry=None).collect())
    return exposed(families), CONTENT_TYPE_LATEST


def metric_families(control_plane: ControlPlane) -> Iterator[Metric]:
    """Yield all families from the current counters; with names, clusters have the label `cluster`."""
    yield from process_families(control_plane)
    if not control_plane.named:
        yield from cluster_families(control_plane)
        return
    labelled: dict[str, Metric] = {}
    for name, plane in {DEFAULT: control_plane, **control_plane.named}.items():
        for family in cluster_families(plane):
            whole = labelled.setdefault(family.name, Metric(family.name, family.documentation, family.type))
            for sample in family.samples:
                whole.samples.append(sample._replace(labels={"cluster": name, **sample.labels}))
    yield from labelled.values()


def process_families(control_plane: ControlPlane) -> Iterator[Metric]:
    """Yield what concerns the process and the routes of all clusters."""
    cluster, process, reloads = (
        control_plane.cluster,
        control_plane.cluster.process,
        control_plane.reload_counts,
    )
    built = (version("steelyard"), build(), platform.python_version(), 1)
    yield gauge("steelyard_build_info", "Version, build and Python", [built], "version", "build", "python")
    is_ready = readiness(control_plane) in (SERVING, PANIC)
    yield gauge("steelyard_ready", "1: some endpoint may answer", is_ready)
    yield gauge("steelyard_clients", "Client connections open", len(process.downstreams))
    yield gauge("steelyard_pending_bytes", "Bytes of requests that wait", process.usages.budget.kept)
    yield counter("steelyard_connections", "Client connections accepted", process.counts.connections)
    yield from http2_families(cluster)
    results = attributes(reloads, "done", "refused")
    yield counter("steelyard_reloads", "Configuration read again", results, "result")
    is_good = reloads.problem is None
    yield gauge("steelyard_configuration_good", "1: the last reload was not refused", is_good)
    yield from rate_limit_families(control_plane.rate_limits)
    yield from mirror_families(control_plane.mirrors)
    yield from split_families(control_plane.splits)
    if process.access_log is not None:
        results = attributes(process.access_log.counts, "written", "dropped", "lost")
        yield counter("steelyard_log_entries", "Entries of the access log", results, "result")
    yield from buffering_families(control_plane)
    spans = process.tracing.spans if process.tracing is not None else None
    if spans is not None:
        results = attributes(spans.counts, "exported", "dropped", "lost")
        yield counter("steelyard_spans", "Spans of sampled requests", results, "result")
        yield gauge("steelyard_spans_waiting", "Spans that wait for export", spans.waiting)
        yield gauge("steelyard_span_export_good", "1: the last export succeeded", spans.is_good)


def cluster_families(control_plane: ControlPlane) -> Iterator[Metric]:
    """Yield what concerns one cluster."""
    cluster = control_plane.cluster
    yield from request_families(control_plane)
    yield from endpoint_families(cluster)
    yield from connection_families(cluster)
    yield from health_families(control_plane)
    if control_plane.shared is not None:
        yield from shared_families(control_plane.shared)
    yield from route_families(cluster)
    yield from inference_families(cluster)
    rows = rows_of_each(cluster.router.states, lambda state: [buckets_of(state.histogram)])
    text = "Sent to last byte, successes"
    yield histogram("steelyard_endpoint_latency_seconds", text, rows, *OF_ENDPOINT)


def request_families(control_plane: ControlPlane) -> Iterator[Metric]:
    """Yield the counts of a cluster's requests, and what decides about them."""
    cluster, counts, router = (
        control_plane.cluster,
        control_plane.cluster.counts,
        control_plane.cluster.router,
    )
    yield counter("steelyard_requests", "Requests received", counts.requests)
    yield counter("steelyard_retries", "Requests sent to a further endpoint", counts.retried)
    yield counter("steelyard_retries_denied", "Retries beyond the budget", cluster.retries.budget.denied)
    yield from hedge_families(cluster)
    yield counter("steelyard_abandoned", "Requests whose client left", counts.abandoned)
    picks = router.active.all_fallback_picks
    yield counter("steelyard_fallback_picks", "Picks that the fallback policy made", picks)
    yield from tunnel_families(cluster)
    yield from discovery_families(control_plane)
    placed = attributes(control_plane.sticky_counts, "kept", "moved")
    yield counter("steelyard_sticky", "Requests that belong to an endpoint", placed, "placed")
    reasons = control_plane.explanations.reasons.items()
    yield counter("steelyard_pick_reasons", "Reasons of explained picks", reasons, "reason")
    yield from policy_families(control_plane)
    recorded = control_plane.recording.status()
    kept = [(result, recorded[result]) for result in ("written", "dropped")]
    yield counter("steelyard_recorded", "Requests of the last recording", kept, "result")
    results = attributes(control_plane.load_probes.counts, "answered", "silent", "failed", "skipped")
    yield counter("steelyard_load_probes", "Load asked for out of band", results, "result")
    malformed = cluster.reports.malformed
    yield counter(
        "steelyard_malformed_load_reports", "Load reports of workers that could not be read", malformed
    )
    yield from queue_families(cluster)
    yield from panic_families(cluster)
    yield counter("steelyard_errors", "Error responses of the balancer", counts.errors.items(), "reason")
    responses = [(str(code), number) for code, number in enumerate(counts.responses) if number]
    yield counter("steelyard_responses", "Responses sent to clients, by status", responses, "code")


def hedge_families(cluster: Cluster) -> Iterator[Metric]:
    """Yield the counts of hedges, if there are any."""
    hedges, counts = cluster.hedges, cluster.counts
    if hedges is None:
        return
    hedging = hedges.hedging
    yield counter("steelyard_hedges", "Late requests sent to a second endpoint", counts.hedged)
    yield counter("steelyard_hedges_won", "Hedges that answered first", counts.hedges_won)
    yield gauge("steelyard_hedge_losers", "Attempts that came second", len(hedges.losers))
    withheld = [("budget", hedging.denied), ("all_slow", hedging.withheld)]
    yield counter("steelyard_hedges_withheld", "Late requests that were not hedged", withheld, "reason")
    yield gauge("steelyard_late_after_seconds", "Wait for a first byte", hedging.usual.items(), "region")


def discovery_families(control_plane: ControlPlane) -> Iterator[Metric]:
    """Yield the endpoints of each source, and whether it was read."""
    sources, registry = [*control_plane.discovery.sources], control_plane.registry
    named = [(source.source, registry.count(source.source)) for source in sources]
    yield gauge("steelyard_discovered", "Endpoints of a source", named, "source")
    good = [(source.source, source.problem is None) for source in sources]
    yield gauge("steelyard_discovery_good", "1: the last look was good", good, "source")


def tunnel_families(cluster: Cluster) -> Iterator[Metric]:
    """Yield the counts of upgraded connections."""
    tunnels = cluster.tunnels
    yield gauge("steelyard_tunnels", "Upgraded connections open", len(tunnels))
    yield counter("steelyard_tunnels_opened", "Upgraded connections", tunnels.opened)
    passed = [("in", tunnels.bytes_in), ("out", tunnels.bytes_out)]
    text = "Bytes through tunnels, from and to clients"
    yield counter("steelyard_tunnel_bytes", text, passed, "direction")


def endpoint_families(cluster: Cluster) -> Iterator[Metric]:
    """Yield load and outcomes of the endpoints."""
    states, pools = cluster.router.states, cluster.pools.by_id
    in_flight = of_each(states, lambda state: state.in_flight_here)
    yield gauge("steelyard_endpoint_in_flight", "Requests in flight", in_flight, *OF_ENDPOINT)
    reported = [state for state in states if state.reported_at > -inf]
    ages = of_each(reported, lambda state: cluster.now() - state.reported_at)
    text = "Since the last load report to a load probe"
    yield gauge("steelyard_endpoint_load_report_age_seconds", text, ages, *OF_ENDPOINT)
    available = of_each(states, lambda state: state.available)
    yield gauge("steelyard_endpoint_available", "1: takes requests", available, *OF_ENDPOINT)
    held = rows_of_each(states, lambda state: attributes(pools[state.id], "idle", "leased", "opening"))
    yield gauge("steelyard_endpoint_connections", "Connections held", held, *OF_ENDPOINT, "state")
    ended = rows_of_each(
        states, lambda state: [(kind.value, count) for kind, count in state.outcomes.items()]
    )
    yield counter("steelyard_endpoint_outcomes", "Attempts by how they ended", ended, *OF_ENDPOINT, "outcome")


def panic_families(cluster: Cluster) -> Iterator[Metric]:
    """Yield where panic mode ignores health, and the requests routed meanwhile; "" is the whole cluster."""
    panic, router = cluster.router.health.panic, cluster.router
    regions = sorted({state.region for state in router.states})
    now = [("", panic.is_everywhere), *((region, region in panic.regions) for region in regions)]
    yield gauge("steelyard_panic", "1: health is ignored here", now, "region")
    yield counter("steelyard_panics", "Times that panic began", panic.times)
    yield counter("steelyard_panic_requests", "Requests routed in panic", panic.requests(router.routed))


def health_families(control_plane: ControlPlane) -> Iterator[Metric]:
    """Yield health, ejection and slow start of the endpoints and the results of their active checks."""
    states = control_plane.cluster.router.states

    def conditions(state: EndpointState) -> Rows:
        present = endpoint_condition(control_plane, state)["condition"]
        return [(one.value, one.value == present) for one in Condition]

    def checks(state: EndpointState) -> Rows:
        found = checks_status(control_plane, state)
        return [(result, found[result]) for result in ("passed", "failed")]

    rows = rows_of_each(states, conditions)
    yield gauge(
        "steelyard_endpoint_condition", "1 for its present condition", rows, *OF_ENDPOINT, "condition"
    )
    healthy = of_each(states, lambda state: state.passes_checks)
    yield gauge("steelyard_endpoint_healthy", "1: its checks pass", healthy, *OF_ENDPOINT)
    ejected = of_each(states, lambda state: state.is_ejected)
    yield gauge("steelyard_endpoint_ejected", "1: left out for failing", ejected, *OF_ENDPOINT)
    share = of_each(states, lambda state: state.share)
    yield gauge("steelyard_endpoint_share", "Part of its weight in force", share, *OF_ENDPOINT)
    ejections = of_each(states, lambda state: state.record.count)
    yield counter("steelyard_endpoint_ejections", "Ejections", ejections, *OF_ENDPOINT)
    rows = rows_of_each(states, checks)
    yield counter("steelyard_endpoint_checks", "Active checks by result", rows, *OF_ENDPOINT, "result")


def shared_families(shared: ReportExchange) -> Iterator[Metric]:
    """Yield the state of the store shared with other units, and the reports by result."""
    yield gauge("steelyard_shared_connected", "1: the store answers", shared.is_connected)
    yield gauge("steelyard_shared_others", "Processes of other units that report", shared.others)
    yield gauge("steelyard_shared_delay_seconds", "Time that a report takes", shared.delay)
    yield counter("steelyard_shared_losses", "Times that the store was lost", shared.counts.lost)
    results = attributes(shared.counts, "sent", "heard", "ignored")
    yield counter("steelyard_shared_reports", "Reports by result", results, "result")
