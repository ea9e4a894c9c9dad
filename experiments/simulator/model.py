"""Simulation model: workers, network, the balancers' mechanisms, and the load.

Plain values in seconds and requests. `translation.py` derives a model from a scenario; tests and benchmarks construct
it directly. Defaults are those of the balancer, except for mechanisms that a bare queueing model lacks: these are off.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Any, Literal

from experiments.scenario.mechanisms import SharedTable
from experiments.scenario.timeline import Step
from policies.endpoint.concurrency_limit import ConcurrencyRules
from policies.endpoint.ejection import EjectionRules
from policies.health.active_checks import CheckRules, has_passed
from policies.health.priority_levels import OVERPROVISIONING
from workers.service import Exponential, Profile

Discipline = Literal["fifo", "shared"]

HEALTHY = 200
UNHEALTHY = 503
"""Statuses with which workers answer checks."""

NO_CONNECTION = "no connection"
"""Fault of a check whose connection was refused."""


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


@dataclass(frozen=True, slots=True)
class RetryModel:
    """`retries` and `retry` of the balancer's configuration."""

    limit: int = 2
    share: float = 0.2
    per_second: float = 10.0
    statuses: frozenset[int] = frozenset((502, 503))


@dataclass(frozen=True, slots=True)
class HedgeModel:
    """`hedging` of the balancer's configuration.

    With `after`, every request is hedged that many seconds after it was routed, without an estimate or a budget.
    """

    quantile: float = 0.95
    share: float = 0.05
    least: float = 0.01
    after: float | None = None


@dataclass(frozen=True, slots=True)
class CheckModel:
    """Active health checks, as `health_checks` of the balancer's configuration.

    `asks`: a check is a request, otherwise only a connection to an unreachable worker. `status`: of a passed one,
    None: any from 200 to 399.
    """

    rules: CheckRules = field(default_factory=CheckRules)
    timeout: float = 1.0
    asks: bool = True
    status: int | None = None

    def fault_of(self, is_down: bool, is_unhealthy: bool) -> str | None:
        """Fault that a check of a worker in this state finds, None if it passes."""
        if is_down:
            return NO_CONNECTION
        status = UNHEALTHY if is_unhealthy else HEALTHY
        return None if not self.asks or has_passed(status, self.status) else f"status {status}"


@dataclass(frozen=True, slots=True)
class PoolModel:
    """Upstream connection pool, as `pool` of the balancer's configuration."""

    idle: float = 30.0
    risk: float = 0.01
    connect_timeout: float = inf


@dataclass(frozen=True, slots=True)
class Mechanisms:
    """Mechanisms of a balancer other than picking; None and 0 are off. Timeouts in seconds."""

    retries: RetryModel | None = None
    hedging: HedgeModel | None = None
    ejection: EjectionRules | None = None
    checks: CheckModel = CheckModel(asks=False)
    panic: float = 0.0
    overprovisioning: float = OVERPROVISIONING
    slow_start: float = 0.0
    slow_start_minimum: float = 0.1
    queue: int = 10_000
    queue_timeout: float = 30.0
    queue_is_adaptive: bool = False
    concurrency: ConcurrencyRules | None = None
    in_flight: int | None = None
    first_byte: float = inf
    attempt: float = inf
    pool: PoolModel = PoolModel()
    shared: SharedTable | None = None

    @property
    def need_ticks(self) -> bool:
        """Whether any mechanism needs a tick per second."""
        is_budgeted = self.retries is not None and self.retries.share > 0
        return self.ejection is not None or self.checks.asks or self.slow_start > 0 or is_budgeted


@dataclass(frozen=True, slots=True)
class Model:
    """The complete model.

    `policy` is a name and options; `staleness` is the maximum age in seconds of a balancer's knowledge of the others'
    requests; None: no exchange. `overhead` is the time in seconds that balancer and load generator add to a request;
    `timeout` is the client's. `steps` are the changes of the workers' fault states, by worker number. `home` is the
    region of the requests.
    """

    workers: tuple[WorkerModel, ...]
    policy: Mapping[str, Any]
    balancers: int = 1
    staleness: float | None = None
    timeout: float = inf
    overhead: float = 0.0
    home: str | None = None
    mechanisms: Mechanisms = Mechanisms()
    steps: tuple[Step, ...] = ()
    reports: bool = False
    """Whether answers carry the worker's load report, up to `staleness` seconds old."""
