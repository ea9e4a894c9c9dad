"""Open-loop load generator: Poisson arrivals fixed in advance, latency counted from the scheduled instant.

Also reports its own lag and the utilisation of its core, to distinguish a late generator from a slow proxy.

    python -m benchmarks.harness.open_load JSON

JSON has the fields of `OpenLoad`.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass, field

import numpy as np

from benchmarks.harness.http2_loop import Http2Loop
from benchmarks.harness.load_process import Place, generator_argv, report_in, report_of, started
from benchmarks.harness.open_loop import OpenLoop, Record
from experiments.generator.arrivals import poisson
from experiments.generator.http2_fields import header_block
from experiments.platform import cpu_time
from experiments.run_data import Floats, Kind
from experiments.stats.measures import percentile

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

    is_http2: bool = False
    preempts: bool = False
    """Whether other processes on its core never delay the generator, if the user may ask for that (root)."""

    @property
    def request(self) -> bytes:
        if self.is_http2:
            return header_block("GET", "http", f"127.0.0.1:{self.port}", self.path)
        return f"GET {self.path} HTTP/1.1\r\nHost: 127.0.0.1:{self.port}\r\n\r\n".encode()

    def instants(self) -> Floats:
        """Arrivals of the warm-up, then those that count, in seconds."""
        return instants_with_warm_up(self.rate, WARM_UP, self.seconds, np.random.default_rng(self.seed))


def instants_with_warm_up(rate: float, warm_up: float, seconds: float, rng: np.random.Generator) -> Floats:
    """Poisson arrivals in `warm_up` and in the `seconds` after it, at `rate`; the number in each is fixed."""
    warm, counted = (poisson(rate, max(1, round(rate * span)), rng) for span in (warm_up, seconds))
    return np.concatenate([warm, warm_up + counted])


@contextmanager
def without_collections() -> Iterator[None]:
    """Disable the garbage collector, and leave out what exists from what it lists.

    A collection would add to the generator's lag; a load lasts minutes at most.
    """
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@dataclass(frozen=True, slots=True)
class Report:
    """Result in milliseconds: `p50` and `p99` of latency, p99 of `lag`.

    `lag` is how late requests were sent, over those that found a free connection when due; `waited` counts those that
    did not. `cpu` is the generator's CPU time per request in microseconds, `busy` the utilisation of its core by all
    processes, 0 if it has several; both without idle spinning.
    """

    requests: int
    failed: int
    p50: float
    p99: float
    lag: float
    waited: int = 0
    cpu: float = 0.0
    busy: float = 0.0
    failures: dict[str, int] = field(default_factory=dict)


def summarised(record: Record, cpu: float = 0.0, busy: float = 0.0) -> Report:
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
        waited=int(np.count_nonzero(record.has_waited)),
        cpu=cpu,
        busy=busy,
        failures={name: count for name, count in kinds.items() if count},
    )


def run(load: OpenLoad) -> Report:
    """Send all requests and wait for their ends. Raises `FleetFailedError` if the port does not accept connections."""
    instants = load.instants().tolist()
    kind = Http2Loop if load.is_http2 else OpenLoop
    if load.preempts:
        with suppress(PermissionError):
            os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    loop = kind(load.port, load.request, load.connections, TIMEOUT, load.spins)
    with without_collections(), closing(loop):
        began_at, own, before = time.monotonic(), time.process_time(), seconds_in_use()
        record = loop.run(instants)
        lasted, used = time.monotonic() - began_at, seconds_in_use() - before
        cpu = (time.process_time() - own - loop.idle) / len(instants) * 1e6
    counted = record.since(record.due[0] - instants[0] + WARM_UP)
    return summarised(counted, cpu, 1 - loop.idle / lasted if load.spins else used / lasted)


def seconds_in_use() -> float:
    """Seconds for which the only core of this process was in use; 0 if it has several."""
    core = cpu_time.cores()
    return cpu_time.busy_seconds(core[0]) if len(core) == 1 else 0.0


async def run_open_load(load: OpenLoad, place: Place) -> Report:
    """Run the load in a process of its own, to its end. Raises `FleetFailedError`."""
    async with started(generator_argv("benchmarks.harness.open_load", load), place) as process:
        return report_in(Report, await report_of(process, WARM_UP + load.seconds))


if __name__ == "__main__":
    print(json.dumps(asdict(run(OpenLoad(**json.loads(sys.argv[1]))))))
