"""Open-loop load generator: Poisson arrivals fixed in advance, latency counted from the scheduled instant.

Also reports its own lag and the utilisation of its core, to distinguish a late generator from a slow proxy.

    python -m benchmarks.harness.open_load PORT PATH RATE SECONDS CONNECTIONS SEED [spin]
"""

from __future__ import annotations

import gc
import json
import sys
import time
from dataclasses import asdict, dataclass, field

import numpy as np

from benchmarks.harness.closed_load import Place, report_of, started
from benchmarks.harness.open_loop import OpenLoop, Record
from experiments import cpu_time
from experiments.errors import FleetFailedError
from experiments.load.arrivals import poisson
from experiments.processes import program
from experiments.stats.measures import percentile
from experiments.stats.samples import Floats, Kind

TIMEOUT = 10.0
"""Seconds after which a request has failed."""

LAG_PART = 0.5
"""Limit on the p99 of the generator's lag, as a fraction of the run's p99."""

WARM_UP = 0.5
"""Seconds of warm-up at the same rate, not counted."""


@dataclass(frozen=True, slots=True)
class OpenLoad:
    """Load on 127.0.0.1:`port`: `rate` in requests per second, for `seconds`."""

    port: int
    path: str
    rate: float
    seconds: float
    connections: int
    seed: int
    spins: bool = False
    """Whether the generator busy-waits instead of sleeping, on a core of its own."""

    @property
    def words(self) -> list[str]:
        """Command-line arguments of the program."""
        plain = (self.port, self.path, self.rate, self.seconds, self.connections, self.seed)
        return [*map(str, plain), *(["spin"] if self.spins else [])]

    @property
    def request(self) -> bytes:
        return f"GET {self.path} HTTP/1.1\r\nHost: 127.0.0.1:{self.port}\r\n\r\n".encode()

    def instants(self) -> Floats:
        """Arrivals of the warm-up, then those that count, in seconds."""
        rng = np.random.default_rng(self.seed)
        warm = poisson(self.rate, round(self.rate * WARM_UP), rng)
        counted = poisson(self.rate, max(1, round(self.rate * self.seconds)), rng)
        return np.concatenate([warm, WARM_UP + counted])


@dataclass(frozen=True, slots=True)
class Report:
    """Result in milliseconds: `p50` and `p99` of latency, p99 of `service` (from sending) and of `lag`.

    `lag` is how late requests were sent, over those that found a free connection when due; `waited` counts those that
    did not. `cpu` is the generator's own, in microseconds per request; `busy` is the utilisation of its core by all
    processes, 0 without a single core, and excluding idle spinning.
    """

    requests: int
    failed: int
    p50: float
    p99: float
    lag: float
    service: float = 0.0
    waited: int = 0
    cpu: float = 0.0
    busy: float = 0.0
    failures: dict[str, int] = field(default_factory=dict)


def summarised(record: Record, cpu: float = 0.0, busy: float = 0.0) -> Report:
    """Report from the rows of a record."""
    latency = (record.ended - record.due) * 1e3
    was_sent = np.isfinite(record.sent)
    lag = (record.sent - record.due)[was_sent & ~record.has_waited] * 1e3
    kinds = {kind.name.lower(): int(np.count_nonzero(record.kind == kind)) for kind in Kind if kind}
    return Report(
        requests=len(latency),
        failed=sum(kinds.values()),
        p50=percentile(latency, 50),
        p99=percentile(latency, 99),
        lag=percentile(lag, 99),
        service=percentile((record.ended - record.sent)[was_sent] * 1e3, 99),
        waited=int(np.count_nonzero(record.has_waited)),
        cpu=cpu,
        busy=busy,
        failures={name: count for name, count in kinds.items() if count},
    )


def run(load: OpenLoad) -> Report:
    """Send all requests and wait for their ends. Raises `FleetFailedError` if the port does not accept connections."""
    instants = load.instants().tolist()
    loop = OpenLoop(load.port, load.request, load.connections, TIMEOUT, load.spins)
    gc.collect()
    gc.freeze()
    gc.disable()  # a collection would add to the generator's lag; the memory of a few seconds is small
    try:
        before = Reading.now()
        record = loop.run(instants)
        spent = Reading.now().since(before)
    finally:
        gc.enable()
        gc.unfreeze()
        loop.close()
    counted = record.since(record.due[0] - instants[0] + WARM_UP)
    cpu = (spent.own - loop.idle) / len(instants) * 1e6
    return summarised(counted, cpu, 1 - loop.idle / spent.at if load.spins else spent.core / spent.at)


async def run_open_load(load: OpenLoad, place: Place) -> Report:
    """Run the load in a process of its own, to its end. Raises `FleetFailedError`."""
    async with started([*program("benchmarks.harness.open_load"), *load.words], place) as process:
        return parsed(await report_of(process, WARM_UP + load.seconds))


def parsed(text: str) -> Report:
    """Parse the generator's report. Raises `FleetFailedError` if it is none."""
    try:
        return Report(**json.loads(text))
    except (ValueError, TypeError):
        raise FleetFailedError(f"the open loop gave no report: {text.strip()[-200:]}") from None


@dataclass(frozen=True, slots=True)
class Reading:
    """Seconds of the clock, of this process's CPU time, and for which its core was in use."""

    at: float
    own: float
    core: float

    @classmethod
    def now(cls) -> Reading:
        core = cpu_time.cores()
        busy = cpu_time.busy_seconds(core[0]) if len(core) == 1 else 0.0
        return cls(time.monotonic(), time.process_time(), busy)

    def since(self, before: Reading) -> Reading:
        """Difference to an earlier reading."""
        return Reading(self.at - before.at, self.own - before.own, self.core - before.core)


def main(port: str, path: str, rate: str, seconds: str, connections: str, seed: str, spin: str = "") -> None:
    """Run the load and print the report as JSON."""
    load = OpenLoad(int(port), path, float(rate), float(seconds), int(connections), int(seed), bool(spin))
    print(json.dumps(asdict(run(load))))


if __name__ == "__main__":
    main(*sys.argv[1:])
