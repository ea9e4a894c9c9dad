"""Sibling process of a balancer: its index, its shared resources and its share of the configured limits.

Limits apply to the balancer and are divided among the processes: a bound that every process keeps by itself holds at
every instant, and no process waits for another.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from balancer.config.loading import Settings
from balancer.config.schema.limits import Limits
from balancer.process.listening import Listening
from balancer.rate_limits.shared_buckets import SharedBuckets
from balancer.sharing.shared_counters import SharedCounters
from balancer.tls.contexts import SharedContext
from policies.endpoint.state import share_of_process
from policies.inference.index import SHARED_BYTES


def prompt_memory(settings: Settings) -> dict[str, memoryview]:
    """Return memory for a prefix index of each cluster for inference, to be shared with processes that are forked
    later; it is taken as it is used."""
    clusters = {"": settings, **settings.clusters}
    return {
        name: memoryview(mmap.mmap(-1, SHARED_BYTES))
        for name, cluster in clusters.items()
        if cluster.kind == "inference"
    }


@dataclass(frozen=True, slots=True)
class ServingProcess:
    """Process `index` (from 0) `of` processes.

    `listening` are the shared listening sockets, `board` the shared counters, `buckets` the memory of rate limits,
    `directory` holds the sockets of the channel between processes. `lifeline` is a descriptor that becomes readable
    when the supervisor is gone, `readiness` one to write to when this process serves. `fronts` are the common TLS
    contexts that start the handshakes of all processes, so that each accepts the session tickets of the others, by
    listener; `prompts` the memory of the prefix index of each cluster for inference, by its name. `is_later`: the
    balancer serves already, so this process replaces one that has ended.
    """

    index: int
    of: int
    listening: Listening
    board: SharedCounters
    buckets: SharedBuckets
    directory: Path
    lifeline: int
    readiness: int
    fronts: Mapping[str, SharedContext] = field(default_factory=dict)
    prompts: Mapping[str, memoryview] = field(default_factory=dict)
    is_later: bool = False

    def tell_ready(self) -> None:
        """Report to the supervisor that this process serves."""
        os.write(self.readiness, b"r")
        os.close(self.readiness)

    def part_of(self, settings: Settings) -> Settings:
        """Return the configuration of this process: its share of the limits, its own random seed and recording file."""
        clusters = {
            name: cluster.model_copy(update={"limits": self._limits(cluster.limits)})
            for name, cluster in settings.clusters.items()
        }
        seed = None if settings.seed is None else settings.seed + self.index
        record = settings.record
        if record.path is not None:
            record = record.model_copy(update={"path": f"{record.path}.{self.index + 1}"})
        limits = self._limits(settings.limits)
        return settings.model_copy(
            update={"limits": limits, "clusters": clusters, "seed": seed, "record": record}
        )

    def _limits(self, limits: Limits) -> Limits:
        shares = {
            name: None if whole is None else share_of_process(whole, self.index, self.of)
            for name, whole in (("in_flight", limits.in_flight), ("clients", limits.clients))
        }
        shares["queue"] = share_of_process(limits.queue, self.index, self.of) if limits.queue else 0
        return limits.model_copy(update=shares)
