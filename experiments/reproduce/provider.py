"""Plan of `third-party`: providers, ways to call them, and results. Values and arithmetic only.

Times are not scaled, so that idle connections close after 4 s here too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from experiments.reproduce.api_calls import Made
from experiments.reproduce.launch import Keys
from experiments.reproduce.quantities import Quantities, quantities_of

TRIP = 0.042
"""Round trip in seconds to both providers: the source's TCP handshake with B, 297 − 256 ms."""

LOOKUP = 0.256
KEEP_ALIVE = 4.0
THEIR_BEAT = 1.5
"""Seconds in the source: a DNS lookup, B's idle timeout, interval between heartbeats."""

DETOUR = 8
"""Factor by which the round trip grows."""


@dataclass(frozen=True, slots=True)
class Provider:
    """A third-party service as `workers serve` emulates it."""

    name: str
    trip: float = TRIP
    service: str = "90-126ms"
    tls: str = "1.2"
    http: str = "1.1"
    keep_alive: float = KEEP_ALIVE


@dataclass(frozen=True, slots=True, eq=False)
class Mode:
    """A way to call a provider: endpoint keys and configuration tables of the balancer. `slow_names`: lookups are slow;
    `forgotten`: results are not cached.
    """

    name: str
    provider: Provider
    group: str
    endpoint: Keys = field(default_factory=dict)
    pool: Keys = field(default_factory=dict)
    slow_names: bool = False
    forgotten: bool = False

    @property
    def warm(self) -> int:
        """Connections kept ready to each endpoint."""
        return int(str(self.pool.get("warm", 0)))


A1 = Provider("A, HTTP/1.1 and TLS 1.2", service="60-140ms")
A2 = Provider("A, HTTP/2 and TLS 1.3", service="60-140ms", tls="1.3", http="2")
B = Provider("B")
FAR = Provider("far", trip=0.090)
BEATING = {"preconnect": 2, "heartbeat": "/healthz"}
"""Two: one serves while the other has a heartbeat in flight."""

OLD_A = Mode("HTTP/1.1, TLS 1.2", A1, "A")
NEW_A = Mode("HTTP/2, TLS 1.3", A2, "A", {"transport": "http2"})
WITHOUT = Mode("without", B, "B", slow_names=True, forgotten=True)
NAMES = Mode("+ background names", B, "B", slow_names=True)
BEATS = Mode("+ heartbeats", B, "B", pool=BEATING, slow_names=True)
WARM = Mode("or opened ahead", B, "B", pool={"preconnect": 1}, slow_names=True)
COLD_FAR = Mode("without", FAR, "far")
WARM_FAR = Mode("kept warm", FAR, "far", pool=BEATING)

PHASES = (("A", "far"), ("B",))
"""Groups measured together: all at once would be more handshakes than two cores make in time."""

MODES = (OLD_A, NEW_A, WITHOUT, NAMES, BEATS, WARM, COLD_FAR, WARM_FAR)


@dataclass(frozen=True, slots=True)
class Setup:
    """`seconds` of all modes of a phase at once. A: bursts of `burst` calls, `gap` seconds apart on average. B and far:
    `instances` of an application that each call once in `rests` seconds on average.
    """

    seconds: float = 90.0
    burst: tuple[int, int] = (10, 30)
    gap: float = 5.0
    modes: tuple[Mode, ...] = MODES
    instances: int = 125
    rests: Mapping[str, float] = field(default_factory=lambda: {"B": 12.5, "far": 4.0})
    lasting: float = 60.0
    patience: float = 60.0


QUICK = Setup(
    seconds=10.0,
    burst=(8, 16),
    gap=2.0,
    modes=(OLD_A, NEW_A, WITHOUT, BEATS),
    instances=10,
    rests={"B": 5.0},
    lasting=10.0,
)


@dataclass(frozen=True, slots=True)
class ConnectionCounts:
    """Counters of a balancer over an interval: connections opened, requests that waited for one, requests whose
    connection closed at the same moment, heartbeats; and seconds of all TLS and TCP handshakes.
    """

    opened: int
    cold: int
    died: int
    heartbeats: int
    handshakes: float

    def since(self, before: ConnectionCounts) -> ConnectionCounts:
        return ConnectionCounts(
            self.opened - before.opened,
            self.cold - before.cold,
            self.died - before.died,
            self.heartbeats - before.heartbeats,
            self.handshakes - before.handshakes,
        )


@dataclass(frozen=True, slots=True)
class ModeResult:
    """Calls in one mode, each instance once in `rest` seconds, with the balancer's counters."""

    mode: Mode
    made: tuple[Made, ...]
    seconds: float
    rest: float
    account: ConnectionCounts

    @property
    def failed(self) -> int:
        return sum(not one.is_ok for one in self.made)

    @property
    def quantities(self) -> Quantities:
        return quantities_of([one.took for one in self.made], self.seconds)

    @property
    def cold_share(self) -> float:
        return self.account.cold / max(1, len(self.made))

    @property
    def waited(self) -> float:
        """Seconds of connecting per call."""
        return self.account.handshakes / max(1, len(self.made))


@dataclass(frozen=True, slots=True)
class RouteChange:
    """The round trip grew by the factor `times`; it was reported after `noticed` seconds (None: never) as `text`."""

    times: float
    noticed: float | None
    text: str = ""


def stay_of(stays: Sequence[ModeResult], mode: Mode) -> ModeResult | None:
    return next((stay for stay in stays if stay.mode is mode), None)
