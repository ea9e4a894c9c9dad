"""What is going to be measured, and what a run has given.

Rule of this file: values only. Who measures stands in a file for each kind of figure: `cost`, `tail`, `memory`.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Protocol

from benchmarks.cost.cases import Case, Kind
from benchmarks.cost.peers import Peer


@dataclass(frozen=True, slots=True)
class Plan:
    """What is measured and how, and on which cores. `connections`: kept busy, or, for memory, idle."""

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
        """Whether the load has a core for itself: in an open loop it may not wait for anybody."""
        return self.case.kind is Kind.TAIL and self.proxy_core != self.rest_core

    @property
    def worker_core(self) -> int:
        return self.proxy_core if self.is_load_alone else self.rest_core


@dataclass(frozen=True, slots=True)
class Run:
    """One peer, once. `figure` is what its case measures, in the unit of the case's kind."""

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
    """Part of the bench's cores that was taken by processes that are not the bench's, 0 to 1."""

    lag: float = 0.0
    """Milliseconds by which the generator itself was late, at the 99th percentile; 0 in a closed loop."""

    busy: float = 0.0
    """Part of the core of generator and worker that was in use by anybody, in an open loop; 0 where nobody looked."""

    load_cpu: float = 0.0
    """Microseconds of processor time that the generator of an open loop took for a request."""

    waited: int = 0
    """Requests of an open loop that found no connection free when they were due; they count from then all the same."""

    fault: str = ""
    """Why the peer's figures must not be believed; empty when they may."""

    void: str = ""
    """Why this run says nothing, through no fault of the peer; empty when it does."""


class Observer(Protocol):
    """Who looks on."""

    def run_started(self, block: int, peer: Peer) -> None: ...
    def run_ended(self, run: Run) -> None: ...
    def said(self, text: str) -> None: ...


def order_of(plan: Plan) -> list[list[Peer]]:
    """The peers of every block, in the order in which they run."""
    rng = Random(plan.seed)
    return [rng.sample(plan.peers, len(plan.peers)) for _ in range(plan.blocks)]
