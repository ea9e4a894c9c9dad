"""One process of a unit of several: which one it is, and what is its part of what the configuration allows.

Rule of this file: values, and shares of them. Limits are those of the whole unit and are divided, because a bound that
every process keeps by itself holds at every instant, and nobody waits for another process to make room.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from balancer.process.listening import Listening
from balancer.process.shared_counters import SharedCounters
from balancer.tls.contexts import Front
from policies.overload.process_share import share

if TYPE_CHECKING:
    from balancer.config.load import Settings


@dataclass(frozen=True, slots=True)
class Member:
    """Process `index` (from 0) `of` so many.

    `listening` are the sockets that they share, `directory` holds the sockets on which they talk to each other.
    `lifeline` is a descriptor that becomes readable when the supervisor is gone, `readiness` one to write to when this
    process serves. `front` is with whom the handshakes of all begin, where clients speak TLS.
    """

    index: int
    of: int
    listening: Listening
    board: SharedCounters
    directory: Path
    lifeline: int
    readiness: int
    front: Front | None = None

    def tell_ready(self) -> None:
        """To the supervisor: this process serves."""
        os.write(self.readiness, b"r")
        os.close(self.readiness)

    def part_of(self, settings: Settings) -> Settings:
        """The configuration of this process: its share of the limits, and randomness and a recording of its own."""
        limits = settings.limits
        shares = {
            name: None if whole is None else share(whole, self.index, self.of)
            for name, whole in (("in_flight", limits.in_flight), ("clients", limits.clients))
        }
        shares["queue"] = share(limits.queue, self.index, self.of) if limits.queue else 0
        seed = None if settings.seed is None else settings.seed + self.index
        record = settings.record
        if record.path is not None:
            record = record.model_copy(update={"path": f"{record.path}.{self.index + 1}"})
        return settings.model_copy(
            update={"limits": limits.model_copy(update=shares), "seed": seed, "record": record}
        )
