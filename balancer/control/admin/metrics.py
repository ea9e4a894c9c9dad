"""/-/metrics: the numbers of the status in Prometheus' text format, read at scrape time.

The data path must not count anything for this module alone. `families.py` explains the tables.
"""

from __future__ import annotations

import platform
from dataclasses import asdict
from itertools import accumulate
from typing import Any, Final

from prometheus_client import ProcessCollector
from prometheus_client.core import Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from balancer.cluster.condition import Condition
from balancer.config.schema.routes import DEFAULT
from balancer.control.admin.families import buckets_of, exposed, families_of
from balancer.control.admin.health import PANIC, SERVING
from balancer.control.admin.routes_report import BOUNDS, EVENTS, PHASES
from balancer.control.admin.status import cluster_status
from balancer.control.admin.traffic_report import split_status
from balancer.control.control_plane import ControlPlane
from balancer.errors import NOT_OF_CLIENTS
from balancer.mirroring.mirror import Mirror
from balancer.upstream.pool import Pool

REASONS: Final = dict.fromkeys(sorted(NOT_OF_CLIENTS), 0)
CODES: Final = dict.fromkeys(("200", "500", "502", "503", "504"), 0)
"""Errors and responses that are counted from 0 on: Prometheus takes the first value of a counter for no increase."""

OF_PROCESS: Final = families_of("""
gauge     steelyard_build_info             built{version}.{build}.{python}  Version, build and Python
gauge     steelyard_ready                  ready                            1: some endpoint may answer
gauge     steelyard_clients                clients                          Client connections open
gauge     steelyard_pending_bytes          pending_bytes                    Bytes of requests that wait
counter   steelyard_connections            connections                      Client connections accepted
gauge     steelyard_http2_clients          http2.clients                    Client connections in HTTP/2 open
gauge     steelyard_http2_streams          http2.streams                    Requests open on them
counter   steelyard_http2_connections      http2.connections                Connections in HTTP/2
counter   steelyard_http2_requests         http2.requests                   Requests received in HTTP/2
counter   steelyard_http2_resets           http2.resets                     Requests that clients have reset
counter   steelyard_http2_ended            http2{reason:floods=flood,violations=violation} Connections ended by us
counter   steelyard_grpc_responses         grpc{status}                     RPCs of gRPC by status
counter   steelyard_reloads                reload{result:done,refused}      Configuration read again
gauge     steelyard_configuration_good     reload.problem!                  1: the last reload was not refused
counter   steelyard_rate_limit_requests    rate_limits[].{result:passed,denied,elsewhere} Requests under a rate limit
counter   steelyard_rate_limit_given_away  rate_limits[].given_away         Buckets not yet full that lost their place
gauge     steelyard_mirror_in_flight       mirrors[].in_flight              Copies in flight
counter   steelyard_mirror_copies          mirrors[].copies{result}.{reason} Copies by how they ended
counter   steelyard_mirror_compared        mirrors[].pairs{original}.{copy} Status classes of pairs
histogram steelyard_mirror_latency_seconds mirrors[].latency{of}            Whole request to response head
gauge     steelyard_split_share            splits[].clusters[].share        Share of a cluster in a split
counter   steelyard_split_requests         splits[].clusters[].requests     Requests of a split
counter   steelyard_log_entries            access_log{result:written,dropped,lost} Entries of the access log
gauge     steelyard_buffered_bytes         buffering.kept                   Bytes kept for slow clients
gauge     steelyard_buffered_bytes_limit   buffering.limit                  Bytes that may be kept
counter   steelyard_buffered               buffering{body:requests=request,responses=response} Bodies kept whole
counter   steelyard_buffering_refused      streamed{body}                   Bodies streamed because of the bound
counter   steelyard_spans                  tracing{result:exported,dropped,lost} Spans of sampled requests
gauge     steelyard_spans_waiting          tracing.waiting                  Spans that wait for export
gauge     steelyard_span_export_good       tracing.exporting                1: the last export succeeded
""")

OF_CLUSTER: Final = families_of("""
counter   steelyard_requests                requests                       Requests received
counter   steelyard_retries                 retried                        Requests sent to a further endpoint
counter   steelyard_retries_denied          retries_denied                 Retries beyond the budget
counter   steelyard_hedges                  hedging.hedged                 Late requests sent to a second endpoint
counter   steelyard_hedges_won              hedging.won                    Hedges that answered first
gauge     steelyard_hedge_losers            hedging.losers                 Attempts that came second
counter   steelyard_hedges_withheld         hedging{reason:denied=budget,withheld=all_slow} Late requests not hedged
gauge     steelyard_late_after_seconds      hedging.late_after{region}     Wait for a first byte
counter   steelyard_abandoned               abandoned                      Requests whose client left
counter   steelyard_fallback_picks          all_fallback_picks             Picks that the fallback policy made
gauge     steelyard_tunnels                 tunnels.open                   Upgraded connections open
counter   steelyard_tunnels_opened          tunnels.opened                 Upgraded connections
counter   steelyard_tunnel_bytes            tunnels{direction:bytes_in=in,bytes_out=out} Bytes from and to clients
gauge     steelyard_discovered              discovery[].endpoints          Endpoints of a source
gauge     steelyard_discovery_good          discovery[].problem!           1: the last look was good
counter   steelyard_sticky                  placed{placed}                 Requests that belong to an endpoint
counter   steelyard_pick_reasons            explaining.reasons{reason}     Reasons of explained picks
histogram steelyard_policy_latency_seconds  policy.canary.arms{role}.latency Picked to last byte, successes
counter   steelyard_policy_outcomes         policy.canary.arms{role}.outcomes{outcome} Attempts by how they ended
counter   steelyard_shadow_picks            policy.shadow[].picks{endpoint} Picks that a shadow would have made
counter   steelyard_shadow_agreed           policy.shadow[].agreed         Of them, the live policy's
counter   steelyard_shadow_faults           policy.shadow[].faults         Times that a shadow failed
counter   steelyard_recorded                recording{result:written,dropped} Requests of the last recording
counter   steelyard_load_probes             load_probes{result:answered,silent,failed,skipped} Load asked for
counter   steelyard_malformed_load_reports  load_reports.malformed         Load reports that could not be read
gauge     steelyard_queued                  queued                         Requests waiting for an endpoint
gauge     steelyard_queue_oldest_seconds    queue.oldest                   Longest wait of the queued requests
counter   steelyard_queue_joined            queue.joined                   Requests that had to wait
counter   steelyard_queue_served            queue.served                   Requests sent to an endpoint after a wait
counter   steelyard_queue_left              queue.left                     Requests whose client left the queue
counter   steelyard_queue_dropped           queue.dropped{reason}          Requests rejected from the queue or before it
gauge     steelyard_level_waiting           levels[].waiting               Requests waiting, by level
counter   steelyard_shed                    levels[].shed                  Requests refused, by level
gauge     steelyard_panic                   panic_in{region}               1: health is ignored here
counter   steelyard_panics                  panic.times                    Times that panic began
counter   steelyard_panic_requests          panic.requests                 Requests routed in panic
counter   steelyard_errors                  errors{reason}                 Error responses of the balancer
counter   steelyard_responses               responses{code}                Responses sent to clients, by status
gauge     steelyard_shared_connected        shared.connected               1: the store answers
gauge     steelyard_shared_others           shared.others                  Processes of other units that report
gauge     steelyard_shared_delay_seconds    shared.delay                   Time that a report takes
counter   steelyard_shared_losses           shared.lost                    Times that the store was lost
counter   steelyard_shared_reports          shared{result:sent,heard,ignored} Reports by result
counter   steelyard_names_asked             names{answer:fresh,stale,waited,refused} Connections that needed a name
counter   steelyard_name_lookups            names{result:answered,failed}  Look-ups of names
gauge     steelyard_name_age_seconds        names.known[].age              Age of the answer that serves
counter   steelyard_route_events            route_events{what}             Changes of routes
counter   steelyard_route_watch_connections visits{result}                 Test connections of the route watch
counter   steelyard_prompts                 inference.prompts              Requests whose prompt was read
counter   steelyard_prompts_unread          inference.unread{reason}       Requests whose body has no prompt
counter   steelyard_answers_unread          inference.unread_answers       Answers with a Content-Encoding
counter   steelyard_tokens                  tokens{kind}                   Tokens of prompts, cached ones, of answers
histogram steelyard_ttft_seconds            inference.ttft                 Request to first token
histogram steelyard_tpot_seconds            inference.tpot                 Time per token after the first
""")

OF_ENDPOINTS: Final = families_of(
    """
gauge     steelyard_endpoint_in_flight               in_flight                     Requests in flight
gauge     steelyard_endpoint_limit                   limit                         Requests it may hold, if limited
gauge     steelyard_endpoint_load_report_age_seconds load_report_age               Since the last report to a load probe
gauge     steelyard_endpoint_condition               conditions{condition}         1 for its present condition
gauge     steelyard_endpoint_available               available                     1: takes requests
gauge     steelyard_endpoint_healthy                 healthy                       1: its checks pass
gauge     steelyard_endpoint_ejected                 ejection.ejected              1: left out for failing
counter   steelyard_endpoint_ejections               ejection.times                Ejections
gauge     steelyard_endpoint_share                   share                         Part of its weight in force
counter   steelyard_endpoint_checks                  checks{result:passed,failed}  Active checks by result
counter   steelyard_endpoint_outcomes                outcomes{outcome}             Attempts by how they ended
histogram steelyard_endpoint_latency_seconds         latency                       Sent to last byte, successes
gauge     steelyard_endpoint_connections             connections{state:idle,leased,opening} Connections held
counter   steelyard_endpoint_connection_events       connection_events{event}      What happened to connections
counter   steelyard_endpoint_connections_closed      connections.closed_by{by}     Connections by who closed them
counter   steelyard_endpoint_setup_seconds           setup_seconds{phase}          Time to each phase, summed up
gauge     steelyard_endpoint_idle_timeout_seconds    connections.idle_timeout      Idle time up to which one is reused
histogram steelyard_endpoint_idle_close_seconds      idle_close                    Idle age at the worker's close
counter   steelyard_endpoint_connect_faults          route.faults{kind}            Connections that could not be made
counter   steelyard_endpoint_tls_handshakes          route.tls{kind:full,resumed}  TLS handshakes
counter   steelyard_endpoint_tls_handshake_seconds   handshake_seconds{kind}       Time of TLS handshakes
gauge     steelyard_route_usual_seconds              route{phase:connect,tls}.usual What it usually takes
gauge     steelyard_route_last_seconds               route{phase:connect,tls}.last What it took the last time
gauge     steelyard_route_departed                   departed                      1: connecting takes longer than usual
""",
    within="endpoints[].",
)


def metrics_text(control_plane: ControlPlane) -> tuple[bytes, str]:
    """Return the text and its content type."""
    families = (*metric_families(control_plane), *ProcessCollector(registry=None).collect())
    return exposed(families), CONTENT_TYPE_LATEST


def metric_families(control_plane: ControlPlane) -> list[Metric]:
    """Return all families that have numbers; with named clusters, those of clusters have the label `cluster`."""
    planes = {DEFAULT: control_plane, **control_plane.named}
    documents = {name: cluster_numbers(plane) for name, plane in planes.items()}
    process = process_numbers(control_plane, documents[DEFAULT])
    families = [family.of(process) for family in OF_PROCESS]
    for family in (*OF_CLUSTER, *OF_ENDPOINTS):
        each = {name: family.of(document) for name, document in documents.items()}
        whole = each[DEFAULT]
        if control_plane.named:
            whole.samples = [
                sample._replace(labels={"cluster": name, **sample.labels})
                for name, one in each.items()
                for sample in one.samples
            ]
        families.append(whole)
    return [family for family in families if family.samples]


def process_numbers(control_plane: ControlPlane, document: dict[str, Any]) -> dict[str, Any]:
    """Return the numbers of the process and the routes, with the `document` of the default cluster."""
    budget = control_plane.cluster.process.buffer_budget
    streamed = {"request": budget.requests_streamed, "response": budget.responses_streamed}
    return document | {
        "built": {document["version"]: {document["build"]: {platform.python_version(): 1}}},
        "ready": document["readiness"] in (SERVING, PANIC),
        "mirrors": [mirror_numbers(mirror) for mirror in control_plane.mirrors.by_route.values()],
        "splits": [split_status(split) for split in control_plane.splits.by_route.values()],
        "streamed": None if document["buffering"] is None else streamed,
    }


def mirror_numbers(mirror: Mirror) -> dict[str, Any]:
    """Return the numbers of a mirror by the labels of their metrics."""
    counts = mirror.counts
    pairs: dict[str, dict[str, int]] = {}
    for (original, copy), number in counts.classes.items():
        pairs.setdefault(f"{original}xx", {})[f"{copy}xx"] = number
    return {
        "route": mirror.route,
        "cluster": mirror.config.cluster,
        "in_flight": len(mirror.copies),
        "copies": {"answered": {"": counts.answered}, "skipped": counts.skipped, "failed": counts.failed},
        "pairs": pairs,
        "latency": {"original": buckets_of(counts.original_latency), "copy": buckets_of(counts.copy_latency)},
    }


def cluster_numbers(control_plane: ControlPlane) -> dict[str, Any]:
    """Return the status of a cluster, and what only its metrics show."""
    cluster, document = control_plane.cluster, cluster_status(control_plane, buckets_of)
    watch, panic, inference = cluster.pools.routes.watch, document["panic"], document["inference"]
    regions = sorted({state.region for state in cluster.router.states})
    kinds = ("prompt", "cached", "output")
    pools = cluster.pools.by_id
    return document | {
        "errors": REASONS | document["errors"],
        "responses": CODES | document["responses"],
        "all_fallback_picks": cluster.router.active.all_fallback_picks,
        "placed": asdict(control_plane.sticky_counts),
        "panic_in": {"": panic["everywhere"], **{one: one in panic["regions"] for one in regions}},
        "route_events": watch.counts,
        "visits": {"made": watch.connects - watch.failed, "failed": watch.failed},
        "tokens": None if inference is None else {kind: inference[f"{kind}_tokens"] for kind in kinds},
        "endpoints": [each | endpoint_numbers(each, pools[each["id"]]) for each in document["endpoints"]],
    }


def endpoint_numbers(status: dict[str, Any], pool: Pool) -> dict[str, Any]:
    """Return what only the metrics of an endpoint show."""
    counts, tls = pool.counts, pool.route.resumption
    return {
        "conditions": {one.value: one.value == status["condition"] for one in Condition},
        "connection_events": {event: getattr(counts, event) for event in EVENTS},
        "setup_seconds": {phase: getattr(counts, phase) for phase in PHASES},
        "idle_close": ([*zip(BOUNDS, accumulate(counts.lost_ages), strict=True)], counts.lost_seconds),
        "handshake_seconds": {"full": tls.full_seconds, "resumed": tls.resumed_seconds},
        "departed": pool.route.trip.is_departed,
    }
