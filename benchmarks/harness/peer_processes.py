"""Proxy processes that run side by side for some blocks.

A process is kept for `BLOCKS_PER_PROCESS` blocks, so that runs can be short and the sides of a ratio are seconds apart;
then all are restarted, because a process keeps random properties: addresses, hash seeds, memory layout. A process that
fails to start has a reason instead, and the others go on.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from benchmarks.harness.cases import Case
from benchmarks.harness.peer_files import Site
from benchmarks.harness.peers import Peer
from benchmarks.harness.serving import serving
from experiments.errors import FleetFailedError
from experiments.platform.processes import Child

BLOCKS_PER_PROCESS = 5


@dataclass(frozen=True, slots=True)
class RunningPeer:
    """A running process of a peer and its port."""

    child: Child
    port: int

    def died(self) -> FleetFailedError:
        """Error to raise when its accounts can no longer be read."""
        return FleetFailedError(f"{self.child.name} died while it was measured{self.child.tail}")


class RunningPeers(dict[str, RunningPeer | FleetFailedError]):
    """Running processes by the peer's name, or why one has not started."""

    def of(self, peer: Peer) -> RunningPeer:
        """Process of a peer. Raises `FleetFailedError` if it has not started."""
        found = self[peer.name]
        if isinstance(found, FleetFailedError):
            raise found
        return found


@asynccontextmanager
async def running_peers(
    peers: Sequence[Peer], site: Callable[[Peer], Site], case: Case, core: int
) -> AsyncIterator[RunningPeers]:
    """Start all peers on one core; stopped on exit."""
    found = RunningPeers()
    async with AsyncExitStack() as stack:
        for peer in peers:
            place = site(peer)
            started = serving(peer.name, peer.argv(place), place.port, case, core)
            try:
                found[peer.name] = RunningPeer(await stack.enter_async_context(started), place.port)
            except FleetFailedError as failure:
                found[peer.name] = failure
        yield found
