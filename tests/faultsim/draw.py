"""Draw a plan from a seed.

Everything random is drawn here, once, from one generator, in an order that depends on the seed alone; what concerns
HTTP/2 is then drawn by `draw_http2.py`. A row of `SWITCHES` switches on a mechanism of the balancer.
"""

from __future__ import annotations

from random import Random
from typing import Any

from tests.faultsim.draw_http2 import CLIENT_STAGES, WORKER_STAGES, damage, with_http2
from tests.faultsim.plan import Fault, Plan, PlannedClient, PlannedRequest, Reply

MOST_BUFFERED = 100_000
"""Maximum bytes of a body that are kept for a slow client."""

BUFFERING: tuple[dict[str, int], ...] = (
    {},
    {"request": 2_000, "response": 20_000, "total": 20_000},
    {"request": 20_000, "total": 20_000},
    {"request": MOST_BUFFERED, "response": MOST_BUFFERED, "total": 10 * MOST_BUFFERED},
)
"""Rules of buffering, from the start or applied by a reload for a while."""

SWITCHES: tuple[tuple[str, tuple[Any, ...]], ...] = (
    ("retries", (0, 1, 1, 2, 3)),
    ("timeouts.total", (None, None, None, 2.0, 4.0)),
    ("limits.queue", (0, 2, 10, 10_000)),
    ("limits.in_flight", (None, None, None, 3, 10)),
    ("limits.buffer", (4096, 16_384, 65_536)),
    ("limits.body", (None, None, None, 100_000)),
    ("headers.forwarded", (False, True)),
    ("pool.max_age", (2.0, 300.0)),
    ("timeouts.attempt", (None, 0.2, 0.5)),
    ("retry.share", (0.0, 0.2, 1.0)),
    ("retry.per_second", (0.0, 10.0)),
    ("retry.body", (0, 65_536)),
    ("hedging.enabled", (False, True)),
    ("hedging.quantile", (0.5, 0.95)),
    ("hedging.share", (0.05, 0.5)),
    ("queue.order", ("fifo", "adaptive")),
    ("concurrency.adaptive", (False, True)),
    ("concurrency.minimum", (1, 4)),
    ("concurrency.initial", (4, 20)),
    ("outlier_detection.failures", (0, 2, 5)),
    ("outlier_detection.latency", (0.0, 3.0)),
    ("outlier_detection.base_time", (1.0, 30.0)),
    ("panic.threshold", (0.0, 0.5)),
    ("slow_start.window", (0.0, 3.0)),
    ("route_watch.interval", (None, None, 1.0)),
    ("key.by", (None, None, "path", "client")),
    ("buffering", (None, *BUFFERING)),
)
"""A setting's path and its possible values; None leaves the default."""

BINDING = frozenset(
    ("timeouts.total", "timeouts.attempt", "limits.queue", "limits.body", "concurrency.adaptive")
)
"""Settings by which requests fail even without faults."""

TIMES: tuple[tuple[str, float, float], ...] = (
    ("head", 0.5, 2),
    ("request_idle", 0.5, 2),
    ("keep_alive", 1, 10),
    ("connect", 0.2, 1),
    ("first_byte", 0.5, 2),
    ("body_idle", 0.5, 2),
    ("queue", 0.3, 2),
    ("linger", 0.3, 1),
)
"""Timeouts and their bounds."""

POLICIES: tuple[dict[str, Any], ...] = (
    {"name": "random"},
    {"name": "round-robin"},
    {"name": "region-round-robin"},
    {"name": "single-region", "region": "r0"},
    {"name": "least-in-flight"},
    {"name": "latency-weighted"},
    {"name": "region-aware"},
    {"name": "ring-hash"},
    {"name": "maglev", "table": 251, "load_bound": 1.25},
    {"name": "rendezvous", "load_bound": 1.25},
    {"name": "aperture", "balancers": 2, "width": 2},
)

METHODS = (b"GET", b"GET", b"GET", b"GET", b"HEAD", b"PUT", b"DELETE", b"POST", b"POST", b"POST")
STATUSES = (200, 200, 200, 200, 200, 200, 201, 204, 304, 404, 500, 503)
SIZES = (0, 1, 20, 200, 200, 200, 1000, 1000, 5000, 20_000, 66_000, 300_000)
SIZES_WEIGHTS = (4, 4, 10, 20, 20, 20, 20, 20, 6, 3, 1.5, 0.5)

CLIENT_KINDS = ("reset", "leave", "half-close", "stall")
WORKER_KINDS = ("reset", "reset", "fin", "fin", "hang", "garbage")

FAULTS = (
    *("down", "down", "reset", "reset", "close idle", "close idle", "refuse", "hang", "slam"),
    *("freeze", "cut", "cut"),
    *("slow", "replace", "disable", "policy", "cut clients", "buffering"),
)

BEGINS, LASTS = 0.5, 8.0
"""Seconds at which faults begin, and until which clients start."""


def draw(seed: int) -> Plan:
    """The plan of this seed."""
    rng = Random(seed)
    regions = [f"r{number}" for number in range(rng.randint(1, 3))]
    endpoints = rng.randint(1, 8)
    hosts = [regions[number % len(regions)] for number in range(endpoints + rng.randint(0, 2))]
    is_calm = rng.random() < 0.1
    clients = _clients(rng, 0.0 if is_calm else rng.choice((0.0, 0.02, 0.1, 0.3)), is_calm)
    faults = [] if is_calm else sorted(_faults(rng, hosts, endpoints), key=lambda fault: fault.at)
    plan = Plan(
        seed=seed,
        settings=_settings(rng, hosts[:endpoints], is_calm),
        hosts=hosts,
        grain=rng.choice((0.0, 0.0001, 0.001, 0.005)),
        delays={region: rng.choice((0.0002, 0.001, 0.01, 0.04)) for region in regions},
        idle_closes={}
        if is_calm
        else {n: rng.uniform(0.02, 4) for n in range(len(hosts)) if rng.random() < 0.4},
        clients=clients,
        faults=faults,
        stops_at=rng.uniform(BEGINS, LASTS) if not is_calm and rng.random() < 0.15 else None,
        is_logged=rng.random() < 0.25,
        upstream_limit=rng.choice((None, None, None, 4)),
        is_calm=is_calm,
    )
    return with_http2(plan)


def _settings(rng: Random, regions: list[str], is_calm: bool) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "seed": rng.getrandbits(30),
        "policy": rng.choice(POLICIES),
        "home_region": rng.choice((None, "r0")),
        "timeouts": {
            name: 30.0 if is_calm else round(rng.uniform(low, high), 3) for name, low, high in TIMES
        },
        "pool": {"idle_timeout": round(rng.uniform(0.3, 4), 3)},
        "endpoints": [_endpoint(rng, number, region, is_calm) for number, region in enumerate(regions)],
    }
    for path, choices in SWITCHES:
        choice = rng.choice(choices)
        if choice is not None and not (is_calm and path in BINDING):
            section, _, key = path.rpartition(".")
            (settings.setdefault(section, {}) if section else settings)[key] = choice
    return settings


def _endpoint(rng: Random, number: int, region: str, is_calm: bool) -> dict[str, Any]:
    limit = rng.choice((None, None, 1, 2, 8))
    return {
        "id": f"e{number}",
        "address": address_of(number),
        "region": region,
        "weight": rng.choice((1.0, 1.0, 0.2, 3.0)),
        "max_in_flight": None if is_calm else limit,
    }


def address_of(host: int) -> str:
    return f"http://10.0.0.{host}:80"


def _clients(rng: Random, damaged: float, is_calm: bool) -> list[PlannedClient]:
    clients: list[PlannedClient] = []
    number = 0
    for client in range(rng.randint(8, 30)):
        requests = [_request(rng, number + turn, damaged, is_calm) for turn in range(rng.randint(2, 20))]
        number += len(requests)
        is_slow = rng.random() < 0.1
        clients.append(
            PlannedClient(
                number=client,
                starts=rng.uniform(0, LASTS * 0.6),
                depth=rng.choice((1, 1, 1, 1, 2, 5)),
                room=rng.choice((2000, 16_000)) if is_slow else 1 << 20,
                pace=rng.uniform(0.005, 0.05) if is_slow else 0.0,
                requests=requests,
            )
        )
    return clients


def _request(rng: Random, number: int, damaged: float, is_calm: bool) -> PlannedRequest:
    method = rng.choice(METHODS)
    has_body = method in (b"PUT", b"POST") or rng.random() < 0.03
    closes = rng.random() < 0.03
    return PlannedRequest(
        number=number,
        method=method,
        reply=_reply(rng, has_body and not is_calm),
        size=rng.choices(SIZES, SIZES_WEIGHTS)[0] if has_body else 0,
        is_chunked=has_body and rng.random() < 0.3,
        pieces=1 if rng.random() < 0.7 else rng.randint(2, 4),
        gap=0.0 if rng.random() < 0.8 else rng.uniform(0, 0.2),
        think=0.0 if rng.random() < 0.3 else rng.expovariate(8),
        is_http10=not has_body and rng.random() < 0.04,
        closes=closes,
        client_damage=damage(rng, damaged / 4, CLIENT_STAGES, CLIENT_KINDS),
        worker_damage=tuple(damage(rng, damaged, WORKER_STAGES, WORKER_KINDS) for _ in range(3))
        if damaged
        else (),
    )


def _reply(rng: Random, may_be_early: bool) -> Reply:
    number = rng.random()
    return Reply(
        status=rng.choice(STATUSES),
        framing="length" if number < 0.7 else "chunked" if number < 0.93 else "close",
        size=rng.choices(SIZES, SIZES_WEIGHTS)[0],
        pieces=1 if rng.random() < 0.6 else rng.randint(2, 5),
        gap=0.0 if rng.random() < 0.9 else rng.uniform(0, 0.15),
        service=0.0 if rng.random() < 0.3 else rng.expovariate(30),
        has_interim=rng.random() < 0.03,
        closes=rng.random() < 0.04,
        is_early=may_be_early and rng.random() < 0.1,
    )


def _faults(rng: Random, hosts: list[str], endpoints: int) -> list[Fault]:
    return [_fault(rng, hosts, endpoints) for _ in range(rng.choice((0, 1, 2, 4, 8)))]


def _fault(rng: Random, hosts: list[str], endpoints: int) -> Fault:
    kind = rng.choice(FAULTS)
    struck = [rng.randrange(len(hosts))]
    if rng.random() < 0.25:  # the whole region
        struck = [number for number, region in enumerate(hosts) if region == hosts[struck[0]]]
    detail: Any = None
    if kind in ("cut", "cut clients"):
        detail = rng.choice(("in", "out", "both"))
    elif kind == "buffering":
        detail = rng.choice(BUFFERING)
    elif kind == "policy":
        detail = rng.choice(POLICIES)
    elif kind == "replace":
        detail = _other_endpoints(rng, hosts, endpoints)
    if kind in ("policy", "replace", "cut clients", "buffering"):
        struck = []
    return Fault(rng.uniform(BEGINS, LASTS), rng.choice((0.05, 0.5, 2.0)), kind, tuple(struck), detail)


def _other_endpoints(rng: Random, hosts: list[str], endpoints: int) -> list[dict[str, Any]]:
    """Some of the ids, some of them at another host."""
    ids = [number for number in range(endpoints + 1) if rng.random() < 0.7]
    rng.shuffle(ids)
    others = []
    for number in ids:
        host = number if number < len(hosts) and rng.random() < 0.7 else rng.randrange(len(hosts))
        others.append(_endpoint(rng, number, hosts[host], False) | {"address": address_of(host)})
    return others
