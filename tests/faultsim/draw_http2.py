"""Draw HTTP/2 into a plan: clients and hosts that speak it, RPCs of gRPC, trailers, and damage of streams.

From a generator of its own: what it does not change is drawn as without it.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

from tests.faultsim.plan import Damage, Fault, Plan, PlannedClient, PlannedRequest

SHARE = 0.6
"""Share of the plans that have HTTP/2 at all."""

CLIENT_STAGES = ("head", "body", "waiting", "response")
CLIENT_KINDS = (
    *("rst", "rst", "rst", "withhold", "withhold"),
    *("goaway", "reset", "leave", "half-close", "stall"),
)
WORKER_STAGES = ("head", "body", "whole", "begun", "middle", "last", "ended")
WORKER_KINDS = ("rst", "rst", "refuse", "goaway", "withhold", "hang", "reset", "fin", "garbage")
GRPC_STATUSES = (0, 0, 0, 0, 5, 8, 13, 14)
LONG = (20_000, 66_000, 300_000)
WINDOWS = (65_535, 65_535, 1 << 20, 16_000, 2_000)


def with_http2(plan: Plan) -> Plan:
    """The plan, with HTTP/2 in it or as it is."""
    rng = Random(f"HTTP/2 {plan.seed}")
    if rng.random() >= SHARE:
        return plan
    share = rng.choice((0.0, 0.5, 1.0, 1.0))
    hosts = {
        host: (rng.choice(WINDOWS), rng.choice((100, 100, 10, 2)))
        for host in range(len(plan.hosts))
        if rng.random() < share
    }
    if plan.is_calm:  # a host that refuses requests uses up their retries
        hosts = {host: (window, 100) for host, (window, _) in hosts.items()}
    settings: dict[str, Any] = {
        **plan.settings,
        "timeouts": {**plan.settings["timeouts"], "tunnel_idle": 30.0 if plan.is_calm else rng.uniform(1, 4)},
        "http2": {"max_streams": rng.choice((100, 100, 5)), "window": rng.choice((65_535, 262_144))},
    }
    repeats = rng.random() < 0.5
    if repeats:
        settings["retry"] = {**settings.get("retry", {}), "grpc_statuses": ("UNAVAILABLE",)}
    if rng.random() < 0.3:
        settings["buffering"] = {"response": 100_000, "total": 1_000_000}
    settings["endpoints"] = [_endpoint(one, hosts) for one in settings["endpoints"]]
    rpcs = rng.choice((0.0, 0.1, 0.5)) if len(hosts) == len(plan.hosts) or not plan.is_calm else 0.0
    damaged = 0.0 if plan.is_calm else rng.choice((0.0, 0.02, 0.1, 0.3))
    kinds = _Kinds(rng, damaged, rpcs if hosts else 0.0, repeats, plan.is_calm)
    share = rng.choice((0.3, 0.6, 1.0))
    if plan.is_calm and share == 1.0:  # over HTTP/2, no request is lost to the close of an idle connection
        settings["timeouts"]["keep_alive"] = rng.choice((1.0, 1.0, 30.0))
    return replace(
        plan,
        settings=settings,
        http2_hosts=hosts,
        clients=[_client(kinds, client, rng.random() < share) for client in plan.clients],
        faults=[_fault(fault, hosts) for fault in plan.faults],
    )


class _Kinds:
    """The shares of damage and of RPCs among the requests; `repeats`: RPCs may be sent again."""

    def __init__(self, rng: Random, damaged: float, rpcs: float, repeats: bool, is_calm: bool) -> None:
        self.rng = rng
        self.damaged = damaged
        self.rpcs = rpcs
        self.repeats = repeats
        self.is_calm = is_calm


def damage(rng: Random, share: float, stages: tuple[str, ...], kinds: tuple[str, ...]) -> Damage | None:
    """Damage of this share of all requests."""
    return (rng.choice(stages), rng.choice(kinds)) if rng.random() < share else None


def _endpoint(endpoint: dict[str, Any], hosts: dict[int, tuple[int, int]]) -> dict[str, Any]:
    host = int(endpoint["address"].rpartition(".")[2].partition(":")[0])
    return {**endpoint, "transport": "http2"} if host in hosts else endpoint


def _fault(fault: Fault, hosts: dict[int, tuple[int, int]]) -> Fault:
    if fault.kind != "replace":
        return fault
    return replace(fault, detail=[_endpoint(one, hosts) for one in fault.detail])


def _client(kinds: _Kinds, client: PlannedClient, is_http2: bool) -> PlannedClient:
    rng = kinds.rng
    requests = [_request(kinds, request, is_http2) for request in client.requests]
    if not is_http2:
        return replace(client, requests=requests)
    return replace(
        client,
        requests=requests,
        is_http2=True,
        depth=rng.choice((1, 2, 5, 10, 30)),
        window=rng.choice(WINDOWS),
    )


def _request(kinds: _Kinds, request: PlannedRequest, is_http2: bool) -> PlannedRequest:
    rng = kinds.rng
    closes = request.reply.closes and not kinds.is_calm
    reply = replace(request.reply, has_trailers=rng.random() < 0.1, closes=closes)
    made = replace(
        request,
        reply=reply,
        stream_damage=tuple(damage(rng, kinds.damaged, WORKER_STAGES, WORKER_KINDS) for _ in range(3)),
    )
    if not is_http2:
        return made
    made = replace(
        made,
        is_http10=False,
        closes=False,
        has_trailers=request.is_chunked and rng.random() < 0.3,
        think=rng.uniform(0.7, 1.6) if kinds.is_calm and rng.random() < 0.1 else request.think,
        client_damage=damage(rng, kinds.damaged / 4, CLIENT_STAGES, CLIENT_KINDS),
    )
    if made.client_damage is not None and made.client_damage[0] == "response":
        # Long, so that the damage comes in the middle.
        made = replace(made, reply=replace(made.reply, size=rng.choice(LONG)))
    return _rpc(kinds, made) if rng.random() < kinds.rpcs else made


def _rpc(kinds: _Kinds, request: PlannedRequest) -> PlannedRequest:
    rng = kinds.rng
    reply = request.reply
    status = 0 if kinds.is_calm else rng.choice(GRPC_STATUSES)
    return replace(
        request,
        method=b"POST",
        is_chunked=True,
        is_rpc=True,
        is_repeatable=kinds.repeats,
        deadline=rng.choice((300, 2000)) if not kinds.is_calm and rng.random() < 0.1 else 0,
        reply=replace(
            reply,
            status=200,
            framing="chunked",
            grpc_status=status,
            is_trailers_only=bool(status) and rng.random() < 0.6,
        ),
    )
