"""Kinds of events and the fault states that they make: the one declaration of each kind.

Validation, the combination of events, the page on scenarios, the requests to live workers, and what an oracle has to
expect follow from it. Service times are in `FaultEffects` of `workers/faults.py`; what happens to a request instead of
service is written twice: `workers/app.py` and `simulator/worker.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from operator import mul
from typing import Any, Self

from workers.faults import TIMES


@dataclass(frozen=True, slots=True)
class Pause:
    """A GC-like pause of `length` seconds at `since`, repeated every `every` seconds; 0: only once."""

    length: float
    every: float
    since: float

    def __mul__(self, scale: float) -> Pause:
        return Pause(self.length * scale, self.every * scale, self.since * scale)


@dataclass(frozen=True, slots=True)
class FaultState:
    """Fault state of one worker; the default is healthy.

    A field with the name of one of `Faults`, but for `is_`, is sent to live workers unless it is as in a healthy one.
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

    def scaled(self, scale: float) -> Self:
        """The state with its times multiplied, those that are times in `Faults`."""
        times = {one.name: getattr(self, one.name) for one in fields(self) if one.name in TIMES}
        return replace(self, **{name: time * scale for name, time in times.items() if time is not None})


HEALTHY = FaultState()


@dataclass(frozen=True, slots=True)
class Value:
    """The value of an event: bounds, and the default (None: it is required)."""

    meaning: str
    least: float
    most: float
    default: float | None = None


SHARE = Value("share of them", 1e-6, 1.0, 1.0)


@dataclass(frozen=True, slots=True)
class EventKind:
    """What an event of a kind does while it lasts: `effect` is a row of the page on scenarios."""

    effect: str
    value: Value | None = None
    changes: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the fault state, and what they become: a constant, or a function of what was before and the event's
    value. What depends on the instant, as in pauses, restarts and additions, is in `timeline.py`."""

    is_seen: bool = False
    """Whether all that the kind costs is read from the endpoint, as balancers do. What others cost `FaultEffects` says:
    shares of requests not served, and longer service of all or some; or, as of a pause, in `simulator/oracles.py`."""


def latest(before: Any, value: float) -> float:
    return value


KINDS: dict[str, EventKind] = {
    "slow": EventKind("service times are multiplied", Value("by this", 1e-3, 1e3), {"slow": mul}),
    "pause": EventKind(
        "the worker stops, as in a garbage collection; with `every` again after so many seconds, in a phase of its own",
        Value("seconds", 1e-3, 60.0),
        {"pause": latest},
    ),
    "fail": EventKind("requests are answered at once with 500; health checks succeed", SHARE, {"fail": max}),
    "hang": EventKind("requests get no answer until the event ends", SHARE, {"hang": max}),
    "reset": EventKind("the connections of requests are reset", SHARE, {"reset": max}),
    "unhealthy": EventKind("the health check answers 503", changes={"is_unhealthy": True}, is_seen=True),
    "down": EventKind(
        "the process is killed; a new one listens on its port afterwards", changes={"is_gone": True}
    ),
    "restart": EventKind(
        "the worker drains, stops and starts again; it is back when the event ends",
        Value("seconds of draining", 0.0, 60.0, 1.0),
        {"is_draining": True, "is_graceful": True},
    ),
    "rtt": EventKind(
        "the round trip to it changes", Value("seconds", 0.0, 10.0), {"rtt": latest}, is_seen=True
    ),
    "add": EventKind("it becomes an endpoint now; its process ran without requests before", is_seen=True),
    "drain": EventKind("it gets no new requests", changes={"is_draining": True}, is_seen=True),
}
