"""Settings of a worker, fixed at its start. All durations in seconds."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self

from workers.service import Profile, Uniform


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings of one worker. `math.inf` stands for never.

    Service times are divided by `speed`; with `demand` the service time of a request is the one at that index of its
    header's list.

    `tls` is None, "1.2" or "1.3"; `http` "1.1" or "2"; without a `certificate` (PEM, with its key) one is made.
    `close_idle` is the span from which the idle timeout of a connection is drawn, anew after each response;
    `max_requests_per_connection` the one from which each connection draws its limit of requests.
    """

    name: str = "worker-0"
    region: str = "local"
    host: str = "127.0.0.1"
    port: int = 0
    round_trip: float = 0.0
    service: Profile = field(default_factory=lambda: Uniform(0.019, 0.021))
    speed: float = 1.0
    demand: int | None = None
    slots: int = 1
    queue_limit: int = 1000
    keep_alive: float = 75.0
    close_idle: tuple[float, float] | None = None
    max_requests_per_connection: tuple[int, int] | None = None
    sleep_after: float = math.inf
    wake_time: float = 0.0
    starts_asleep: bool = False
    starts_down: bool = False
    grace: float = 10.0
    tls: str | None = None
    http: str = "1.1"
    certificate: Path | None = None
    resumption: bool = True
    max_streams: int = 100
    split_head: bool = False
    seed: int = 0

    def scaled(self, factor: float) -> Self:
        """Return the settings with every emulated time multiplied by `factor`; `grace` is real time and stays."""
        return replace(
            self,
            round_trip=self.round_trip * factor,
            service=self.service.scaled(factor),
            keep_alive=self.keep_alive * factor,
            close_idle=self.close_idle and (self.close_idle[0] * factor, self.close_idle[1] * factor),
            sleep_after=self.sleep_after * factor,
            wake_time=self.wake_time * factor,
        )
