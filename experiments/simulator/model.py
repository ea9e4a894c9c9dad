"""What is simulated: workers, what lies between, the balancers' mechanisms, and the load.

Rule of this file: plain values, everything stated, no units but seconds and requests. A scenario is translated into
this by `translation.py` alone; tests and benchmarks write it by hand. Defaults are those of the balancer, but for
mechanisms that a bare queueing model does not have: they are off.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Any, Literal

from experiments.campaign.timeline import Step
from policies.health.active_checks import CheckRules
from policies.health.outlier_detection import EjectionRules
from workers.service import Exponential, Profile

Discipline = Literal["fifo", "shared"]


@dataclass(frozen=True, slots=True)
class WorkerModel:
    """One worker. `rtt` is the round trip from every balancer; `speed` divides its service times.

    `fifo`: `slots` requests are served at a time, `queue` wait, more get 503. `shared`: all that are present share
    `slots` processors (processor sharing), each at most one of them. `idle_timeout` is after how many seconds it closes
    an idle connection; `setup_rtts` is what a new connection costs before a request can be sent on it. `is_emulated`:
    TCP's handshake is over at once, and the first request is a round trip later instead, as on the loopback of
    `workers/link.py`.
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
    max_in_flight: int | None = None


@dataclass(frozen=True, slots=True)
class RetryModel:
    """As `retries` and `retry` of the balancer's configuration."""

    limit: int = 2
    share: float = 0.2
    per_second: float = 10.0
    statuses: frozenset[int] = frozenset((502, 503))


@dataclass(frozen=True, slots=True)
class HedgeModel:
    """As `hedging` of the balancer's configuration. With `after`, every request is hedged that many seconds after it
    was routed, whatever is usual and without a budget: the textbook's hedge."""

    quantile: float = 0.95
    share: float = 0.05
    least: float = 0.01
    after: float | None = None


@dataclass(frozen=True, slots=True)
class CheckModel:
    """As `checks` of the balancer's configuration."""

    rules: CheckRules = field(default_factory=CheckRules)
    timeout: float = 1.0


@dataclass(frozen=True, slots=True)
class PoolModel:
    """As `pool` of the balancer's configuration."""

    idle: float = 30.0
    risk: float = 0.01


@dataclass(frozen=True, slots=True)
class Mechanisms:
    """What a balancer does beside picking; None and 0 are off. Timeouts in seconds."""

    retries: RetryModel | None = None
    hedging: HedgeModel | None = None
    ejection: EjectionRules | None = None
    checks: CheckModel | None = None
    panic: float = 0.0
    slow_start: float = 0.0
    slow_start_least: float = 0.1
    queue: int = 10_000
    queue_timeout: float = 30.0
    in_flight: int | None = None
    first_byte: float = inf
    attempt: float = inf
    pool: PoolModel = PoolModel()

    @property
    def need_ticks(self) -> bool:
        """Whether anything of it is judged once a second."""
        return self.ejection is not None or self.checks is not None or self.slow_start > 0


@dataclass(frozen=True, slots=True)
class Model:
    """The whole. `policy` is a name and options; `staleness` is how old a balancer's knowledge of the others' requests
    is at most: None, they know nothing of each other. `overhead` seconds go by in balancer and generator beside all
    that is modelled; `timeout` is the client's. `steps` are what befalls workers when, by their number. `home` is the
    region that requests come from, `keys` how many different keys they have (0: none), each as likely as its rank to
    the power of −`key_skew`."""

    workers: tuple[WorkerModel, ...]
    policy: Mapping[str, Any]
    balancers: int = 1
    staleness: float | None = None
    timeout: float = inf
    overhead: float = 0.0
    home: str | None = None
    mechanisms: Mechanisms = Mechanisms()
    steps: tuple[Step, ...] = ()
    keys: int = 0
    key_skew: float = 0.0
    reports: bool = False
    """Whether answers carry what the worker says of its load; it is up to `staleness` old."""
