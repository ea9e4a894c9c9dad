"""Cases of the cost benchmark: kinds of requests and what is measured of them.

The number of blocks is fixed here before measuring: adding blocks until the figure pleases would bias it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from experiments.platform.instant_worker import LARGE_NAME, STREAM_NAME

ALL = "all"


class Kind(Enum):
    """Kind of figure, with its unit."""

    COST = "µs/request"
    TAIL = "p99 ms"
    MEMORY = "bytes/connection"
    START = "ms until it serves"
    REST = "MiB at rest"


FRESH = (Kind.MEMORY, Kind.START, Kind.REST)
"""Kinds of which each run starts its own process."""


@dataclass(frozen=True, slots=True)
class Case:
    """One kind of request. `others` are the peers that it applies to; None means all.

    `pin`, `connections`, `blocks` and `seconds` of each run are defaults of the command line. `sizes` are pairs of
    numbers of endpoints and of busy connections, each measured as a peer of its own; empty means the default. With
    `is_traced`, Steelyard is measured with and without propagation of the trace context.
    `script` is a Lua script for wrk, then the only generator that can send the requests.
    """

    name: str
    words: str
    kind: Kind = Kind.COST
    method: str = "GET"
    path: str = "/"
    body: int = 0
    is_tls: bool = False
    streams: int = 0
    """Requests at a time on each connection in HTTP/2, sent by h2load; 0: HTTP/1.1."""

    others: tuple[str, ...] | None = None
    policies: tuple[str, ...] = ("least-in-flight",)
    sizes: tuple[tuple[int, int], ...] = ()
    is_traced: bool = False
    script: str = ""
    keys: tuple[tuple[str, str], ...] = ()
    """Further keys of Steelyard's configuration."""

    pin: str = "one"
    connections: int = 64
    blocks: int = 15
    seconds: float = 1.0
    warm_up: float = 0.5
    """Seconds of load before each run: connections are opened and interpreters specialise their code."""

    @property
    def is_streamed(self) -> bool:
        return self.path == f"/{STREAM_NAME}"


TRACEPARENT = """\
local number = 0
request = function()
  number = number + 1
  local context = string.format("00-4bf92f3577b34da6a3ce929d%08x-00f067aa%08x-00", number, number)
  return wrk.format(nil, nil, { traceparent = context })
end
"""
"""Requests with a traceparent, each of a trace of its own (W3C Trace Context)."""

CHAT = """\
wrk.headers["Content-Type"] = "application/json"
local shared, number = string.rep("You are a careful assistant. ", 35), 0
local own = string.rep("What does the next line say? ", 33)
request = function()
  number = number + 1
  local messages = string.format(
    '[{"role":"system","content":"%s"},{"role":"user","content":"%d %s"}]', shared, number % 256, own)
  local body = '{"model":"m","max_tokens":64,"messages":' .. messages .. "}"
  return wrk.format("POST", "/v1/chat/completions", nil, body)
end
"""
"""Requests of 2 KiB for inference: 256 conversations with the same first half."""

PROXIES = ("nginx", "haproxy")

CASES = {
    case.name: case
    for case in (
        Case("get", "small GET"),
        Case("tls", "small GET over TLS 1.3", is_tls=True, others=PROXIES),
        Case("http2", "small GET in HTTP/2", others=PROXIES, streams=1),
        Case("http2x10", "small GET in HTTP/2, ten at a time", others=PROXIES, streams=10, connections=16),
        Case("get1m", "GET of 1 MiB", path=f"/{LARGE_NAME}"),
        Case("post16k", "POST of 16 KiB", method="POST", body=16 * 1024),
        # Few clients: each read then brings one chunk. The worker sends one a millisecond to each.
        Case(
            "stream",
            "answer of fifty chunks",
            path=f"/{STREAM_NAME}",
            others=PROXIES,
            connections=8,
            seconds=2.0,
        ),
        Case(
            "half",
            "small GET at half of the capacity",
            kind=Kind.TAIL,
            others=PROXIES,
            pin="split",
            blocks=25,
        ),
        Case("idle", "idle client connection", kind=Kind.MEMORY, others=PROXIES, connections=3000, blocks=5),
        Case("start", "start of a process", kind=Kind.START, others=PROXIES, blocks=10),
        Case("rest", "process that has answered one request", kind=Kind.REST, others=PROXIES, blocks=5),
        Case(
            "endpoints",
            "small GET, by number of endpoints",
            others=(),
            policies=("least-in-flight", "round-robin"),
            # Each endpoint keeps a connection or two once it has been picked. Fewer clients with many endpoints make
            # about as many connections in total, and it is their number that fills the caches.
            sizes=((2, 900), (10, 900), (100, 900), (1000, 250)),
            seconds=2.0,
            warm_up=1.0,
        ),
        Case(
            "inference",
            "POST of 2 KiB for inference, routed by its prompt",
            others=("nginx", "vllm-router"),
            policies=("pending-tokens", "cache-aware"),
            script=CHAT,
            keys=(("kind", "inference"),),
        ),
        Case("traced", "small GET, with and without trace context", others=(), is_traced=True, blocks=60),
        Case(
            "continued",
            "small GET with a traceparent, with and without trace context",
            others=(),
            is_traced=True,
            script=TRACEPARENT,
            blocks=60,
        ),
    )
}
