"""Simulation model: workers, network, the balancers' mechanisms, and the load.

Values in seconds and requests. `run.py` derives a model from a scenario; tests and benchmarks construct it
directly. The mechanisms are tables of the balancer's configuration.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Any, Final, Literal

from experiments.scenario.mechanisms import Mechanisms, merged
from experiments.scenario.timeline import Step
from workers.service import Exponential, Profile

Discipline = Literal["fifo", "shared"]


@dataclass(frozen=True, slots=True)
class WorkerModel:
    """One worker. `rtt` is the round trip from every balancer; `speed` divides its service times.

    `fifo`: `slots` requests are served at a time, `queue` wait, more get 503. `shared`: all requests present share
    `slots` processors (processor sharing), each using at most one. `idle_timeout` is the number of seconds after which
    it closes an idle connection; `setup_rtts` is the number of round trips that a new connection takes before a request
    can be sent. `is_emulated`: the TCP handshake completes at once and the first request takes a round trip longer
    instead, as on the loopback of `workers/link.py`.
    """

    id: str
    region: str = "here"
    service: Profile = field(default_factory=lambda: Exponential(1.0))
    speed: float = 1.0
    slots: int = 1
    queue: float = inf
    discipline: Discipline = "fifo"
    rtt: float = 0.0
    setup_rtts: float = 1.0
    idle_timeout: float = inf
    is_emulated: bool = False
    weight: float = 1.0
    priority: int = 0
    max_in_flight: int | None = None


OFF: Final[Mapping[str, Any]] = {
    "retries": 0,
    "retry": {"share": 0.0, "per_second": 0.0},
    "outlier_detection": {"failures": 0, "success_rate": 0.0},
    "panic": {"threshold": 0.0},
}
"""Settings of a balancer with which what a bare queueing model lacks is off."""

LIMITS: Final = frozenset({"connect", "first_byte"})
"""Timeouts that a bare queueing model lacks; the configuration always has them."""


def mechanisms(**tables: Any) -> Mechanisms:
    """Tables of the balancer's configuration; what they do not state is off if a bare queueing model lacks it."""
    stated = Mechanisms.model_validate(merged(OFF, tables))
    lacking = dict.fromkeys(LIMITS - tables.get("timeouts", {}).keys(), inf)
    return stated.model_copy(update={"timeouts": stated.timeouts.model_copy(update=lacking)})


BARE: Final = mechanisms()


@dataclass(frozen=True, slots=True)
class Model:
    """The complete model.

    `policy` is a name and options; `staleness` is the maximum age in seconds of workers' load reports. `overhead` is
    the time in seconds that balancer and load generator add to a request; `timeout` is the client's, overhead included.
    `steps` are the changes of the workers' fault states, by worker number. `home` is the region of the requests.
    """

    workers: tuple[WorkerModel, ...]
    policy: Mapping[str, Any]
    balancers: int = 1
    staleness: float = 0.0
    timeout: float = inf
    overhead: float = 0.0
    home: str | None = None
    mechanisms: Mechanisms = BARE
    steps: tuple[Step, ...] = ()
    reports: bool = False
    """Whether answers carry the worker's load report, up to `staleness` seconds old."""
