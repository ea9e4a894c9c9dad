"""Plan and run of the cost benchmark. Values only; `cost`, `tail` and `memory` measure."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.harness.cases import Case, Kind
from benchmarks.harness.peers import Peer


@dataclass(frozen=True, slots=True)
class CostPlan:
    """What is measured and on which cores. `connections` are busy, or idle in the memory case."""

    peers: tuple[Peer, ...]
    case: Case
    connections: int
    seconds: float
    blocks: int
    seed: int
    proxy_core: int
    rest_core: int
    wrk: str | None

    @property
    def warm_up(self) -> float:
        """Seconds of load before a run."""
        return min(self.case.warm_up, self.seconds)

    @property
    def is_load_alone(self) -> bool:
        """Whether the load generator has a core of its own, which an open loop needs."""
        return self.case.kind is Kind.TAIL and self.proxy_core != self.rest_core

    @property
    def cores(self) -> list[int]:
        """Cores of the benchmark, each once."""
        return sorted({self.proxy_core, self.rest_core})

    @property
    def worker_core(self) -> int:
        return self.proxy_core if self.is_load_alone else self.rest_core


@dataclass(frozen=True, slots=True)
class CostRun:
    """One run of one peer. `figure` is in the unit of the case's kind."""

    case: str
    peer: str
    block: int
    order: int
    figure: float = 0.0
    requests: int = 0
    rate: float = 0.0
    """Requests per second: answered in a closed loop, offered in an open one."""

    user_share: float = 0.0
    taken: float = 0.0
    """Share of the benchmark's cores used by other processes, 0 to 1."""

    lag: float = 0.0
    """p99 of the generator's own lag in milliseconds; 0 in a closed loop."""

    busy: float = 0.0
    """Utilisation of the core of generator and worker by all processes, in an open loop; 0 if unknown."""

    load_cpu: float = 0.0
    """CPU time of the open-loop generator per request in microseconds."""

    waited: int = 0
    """Open-loop requests that found no free connection when due; their latency still counts from the due time."""

    fault: str = ""
    """Reason why the peer's figures are invalid; empty if they are valid."""

    void: str = ""
    """Reason why the run is unusable through no fault of the peer; empty if it is usable."""
