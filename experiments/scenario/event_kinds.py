"""Kinds of events and the fault states that they make: the one declaration of each kind.

Validation, the combination of events, the page on scenarios, the requests to live workers, and what an oracle has to
expect follow from it. What a fault does to a request is written twice: `workers/app.py` and `simulator/worker.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from operator import mul
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class Pause:
    """A GC-like pause of `length` seconds at `since`, repeated every `every` seconds; 0: only once."""

    length: float
    every: float
    since: float


@dataclass(frozen=True, slots=True)
class FaultState:
    """Fault state of one worker; the default is healthy.

    A field with the name of a kind, but for `is_`, is sent to live workers as a fault of this name.
    """

    slow: float = 1.0
    fail: float = 0.0
    hang: float = 0.0
    reset: float = 0.0
    pause: Pause | None = None
    is_unhealthy: bool = False
    is_gone: bool = False
    """Whether the worker has no process."""

    is_graceful: bool = False
    """Whether its process ends by SIGTERM after draining, and not by SIGKILL."""

    is_draining: bool = False
    is_absent: bool = False
    """Whether the balancer does not have it as an endpoint."""

    rtt: float | None = None
    """Round trip in seconds; None: the region's."""

    @property
    def lost_share(self) -> float:
        """Greatest of the shares of requests that the faults take, one of which may hide another."""
        share: float = max(getattr(self, kind) for kind in LOSING)
        return share


HEALTHY = FaultState()


@dataclass(frozen=True, slots=True)
class Value:
    """The value of an event: bounds, and the default (None: it is required). `is_time`: seconds of the scenario."""

    meaning: str
    least: float
    most: float
    default: float | None = None
    is_time: bool = False


SHARE = Value("share of them", 1e-6, 1.0, 1.0)


@dataclass(frozen=True, slots=True)
class EventKind:
    """What an event of a kind does while it lasts: `effect` is a row of the page on scenarios."""

    effect: str
    costs: Literal["share", "time", "nothing"]
    """What the kind costs the requests that an oracle sends to such a worker. `share`: the field with the name of the
    kind is the share of requests that are lost or held. `time`: requests take longer or break off, and the oracles of
    `simulator/oracles.py` derive by how much. `nothing`: an oracle reads it from the endpoint, as balancers do."""

    value: Value | None = None
    changes: Mapping[str, Callable[[Any, float], Any]] = field(default_factory=dict)
    """Fields of the fault state, and their value from the one before and the event's. What depends on the instant, as
    in pauses, restarts and additions, is in `timeline.py`."""


def latest(before: Any, value: float) -> float:
    return value


def always(before: Any, value: float) -> bool:
    return True


KINDS: dict[str, EventKind] = {
    "slow": EventKind("service times are multiplied", "time", Value("by this", 1e-3, 1e3), {"slow": mul}),
    "pause": EventKind(
        "the worker stops, as in a garbage collection; with `every` again after so many seconds, in a phase of its own",
        "time",
        Value("seconds", 1e-3, 60.0, is_time=True),
        {"pause": latest},
    ),
    "fail": EventKind(
        "requests are answered at once with 500; health checks succeed", "share", SHARE, {"fail": max}
    ),
    "hang": EventKind("requests get no answer until the event ends", "share", SHARE, {"hang": max}),
    "reset": EventKind("the connections of requests are reset", "share", SHARE, {"reset": max}),
    "unhealthy": EventKind("the health check answers 503", "nothing", changes={"is_unhealthy": always}),
    "down": EventKind(
        "the process is killed; a new one listens on its port afterwards", "time", changes={"is_gone": always}
    ),
    "restart": EventKind(
        "the worker drains, stops and starts again; it is back when the event ends",
        "time",
        Value("seconds of draining", 0.0, 60.0, 1.0, is_time=True),
        {"is_draining": always, "is_graceful": always},
    ),
    "rtt": EventKind(
        "the round trip to it changes", "nothing", Value("seconds", 0.0, 10.0, is_time=True), {"rtt": latest}
    ),
    "add": EventKind("it becomes an endpoint now; its process ran without requests before", "nothing"),
    "drain": EventKind("it gets no new requests", "nothing", changes={"is_draining": always}),
}

LOSING = tuple(name for name, kind in KINDS.items() if kind.costs == "share")
