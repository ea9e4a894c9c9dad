"""Cases of `third-party`: providers, the modes of calling them, and results. Values and arithmetic only.

Times are not scaled, so that idle connections close after 4 s here too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from experiments.reproduce.client import Answer
from experiments.reproduce.latency_summary import LatencySummary, summary_of
from experiments.reproduce.launch import ConnectionCounts, Keys

ROUND_TRIP = 0.042
"""Round trip in seconds to both providers: the source's TCP handshake with B, 297 − 256 ms."""

LOOKUP = 0.256
KEEP_ALIVE = 4.0
SOURCE_HEARTBEAT = 1.5
"""Seconds in the source: a DNS lookup, B's idle timeout, interval between heartbeats."""

ROUTE_FACTOR = 8
"""Factor by which the round trip grows."""


@dataclass(frozen=True, slots=True)
class Provider:
    """A third-party service as `workers serve` emulates it."""

    name: str
    round_trip: float = ROUND_TRIP
    service: str = "90-126ms"
    tls: str = "1.2"
    http: str = "1.1"
    keep_alive: float = KEEP_ALIVE


@dataclass(frozen=True, slots=True, eq=False)
class Mode:
    """A way to call a provider: endpoint keys and configuration tables of the balancer. `slow_names`: lookups are slow;
    `uncached_names`: their results are not cached.
    """

    name: str
    provider: Provider
    group: str
    endpoint: Keys = field(default_factory=dict)
    pool: Keys = field(default_factory=dict)
    slow_names: bool = False
    uncached_names: bool = False

    @property
    def preconnect(self) -> int:
        """Connections kept ready to each endpoint."""
        return int(str(self.pool.get("preconnect", 0)))


A1 = Provider("A, HTTP/1.1 and TLS 1.2", service="60-140ms")
A2 = Provider("A, HTTP/2 and TLS 1.3", service="60-140ms", tls="1.3", http="2")
B = Provider("B")
FAR = Provider("far", round_trip=0.090)
HEARTBEATS = {"preconnect": 2, "heartbeat": "/healthz"}
"""Two: one serves while the other has a heartbeat in flight."""

OLD_A = Mode("HTTP/1.1, TLS 1.2", A1, "A")
NEW_A = Mode("HTTP/2, TLS 1.3", A2, "A", {"transport": "http2"})
PLAIN_B = Mode("without", B, "B", slow_names=True, uncached_names=True)
NAMES_B = Mode("+ background names", B, "B", slow_names=True)
HEARTBEATS_B = Mode("+ heartbeats", B, "B", pool=HEARTBEATS, slow_names=True)
PRECONNECT_B = Mode("or opened ahead", B, "B", pool={"preconnect": 1}, slow_names=True)
PLAIN_FAR = Mode("without", FAR, "far")
HEARTBEATS_FAR = Mode("kept warm", FAR, "far", pool=HEARTBEATS)

PHASES = (("A", "far"), ("B",))
"""Groups measured together: all at once would be more handshakes than two cores make in time."""

MODES = (OLD_A, NEW_A, PLAIN_B, NAMES_B, HEARTBEATS_B, PRECONNECT_B, PLAIN_FAR, HEARTBEATS_FAR)


@dataclass(frozen=True, slots=True)
class Plan:
    """`seconds` of all modes of a phase at once. A: bursts of `burst` calls, `gap` seconds apart on average. B and far:
    `instances` of an application that each call once in `rests` seconds on average. The longer route must be reported
    within `patience` seconds; `watch_duration` is the balancer's `route_watch.duration`.
    """

    seconds: float = 90.0
    burst: tuple[int, int] = (10, 30)
    gap: float = 5.0
    modes: tuple[Mode, ...] = MODES
    instances: int = 125
    rests: Mapping[str, float] = field(default_factory=lambda: {"B": 12.5, "far": 4.0})
    watch_duration: float = 60.0
    patience: float = 60.0


QUICK = Plan(
    seconds=10.0,
    burst=(8, 16),
    gap=2.0,
    modes=(OLD_A, NEW_A, PLAIN_B, HEARTBEATS_B),
    instances=10,
    rests={"B": 5.0},
    watch_duration=10.0,
)


@dataclass(frozen=True, slots=True)
class ModeResult:
    """Calls in one mode, each instance once in `rest` seconds, with the balancer's counters."""

    mode: Mode
    answers: tuple[Answer, ...]
    seconds: float
    rest: float
    connections: ConnectionCounts

    @property
    def latency(self) -> LatencySummary:
        return summary_of([one.took for one in self.answers], self.seconds)

    @property
    def cold_share(self) -> float:
        return self.connections.cold / max(1, len(self.answers))

    @property
    def connecting(self) -> float:
        """Seconds of connecting per call."""
        return self.connections.handshakes / max(1, len(self.answers))


@dataclass(frozen=True, slots=True)
class RouteChange:
    """The round trip grew by `factor`; it was reported after `reported_after` seconds (None: never) as `text`."""

    factor: float
    reported_after: float | None
    text: str = ""


def result_of(results: Sequence[ModeResult], mode: Mode) -> ModeResult | None:
    return next((result for result in results if result.mode is mode), None)
