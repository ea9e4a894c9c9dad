"""The processes that are measured, alive side by side for some blocks.

Rule of this file: a unit lives through several blocks, so that runs can be short and the sides of a ratio are seconds
apart; then all are started afresh, for a process keeps what it has drawn by lot: addresses, hash seeds, the order of
its memory. Who does not start, or dies, has a reason instead of a process, and the others go on.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

from benchmarks.cost.peers import Peer, Site
from benchmarks.cost.plan import Plan
from benchmarks.cost.serving import serving
from experiments.errors import FleetFailedError
from experiments.processes import Child

BLOCKS_PER_LIFE = 5


@dataclass(frozen=True, slots=True)
class Unit:
    """A living process of a peer, and where it listens."""

    child: Child
    port: int

    def died(self) -> FleetFailedError:
        """To be raised when its accounts cannot be read any more."""
        return FleetFailedError(f"{self.child.name} died while it was measured{self.child.tail}")


@dataclass(slots=True)
class Living:
    """Who is alive, by the peer's name, and why somebody is not."""

    units: dict[str, Unit] = field(default_factory=dict)
    reasons: dict[str, FleetFailedError] = field(default_factory=dict)

    def of(self, peer: Peer) -> Unit:
        """Raises FleetFailedError where it has not started."""
        if peer.name in self.reasons:
            raise self.reasons[peer.name]
        return self.units[peer.name]


@asynccontextmanager
async def living(plan: Plan, peers: Sequence[Peer], site: Callable[[Peer], Site]) -> AsyncIterator[Living]:
    """All of them, each on the proxy's core, until the block is left."""
    found = Living()
    async with AsyncExitStack() as stack:
        for peer in peers:
            place = site(peer)
            try:
                child = await stack.enter_async_context(
                    serving(peer.name, peer.argv(place), place.port, plan.case, plan.proxy_core)
                )
            except FleetFailedError as failure:
                found.reasons[peer.name] = failure
            else:
                found.units[peer.name] = Unit(child, place.port)
        yield found
