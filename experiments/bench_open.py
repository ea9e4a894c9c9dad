"""An open loop for the bench: requests at random instants, all fixed beforehand, and what became of them.

Rule of this file: latency counts from the instant at which a request was due. How late the generator itself was is told
beside it, so that whoever reads the figures can see whose they are.

    python -m experiments.bench_open PORT PATH RATE SECONDS CONNECTIONS SEED
"""

from __future__ import annotations

import gc
import json
import sys
from dataclasses import asdict, dataclass

import numpy as np
import uvloop

from experiments.arrivals import poisson
from experiments.load import Generator
from experiments.samples import Kind, Place, Samples
from experiments.statistics import lag_percentiles, percentile

TIMEOUT = 10.0
"""Seconds after which a request counts as failed."""


@dataclass(frozen=True, slots=True)
class Report:
    """`p50` and `p99` of latency and `lag`, that of the sending at the 99th percentile, in milliseconds."""

    requests: int
    failed: int
    p50: float
    p99: float
    lag: float


def report_of(samples: Samples) -> Report:
    """What the rows say."""
    latency = (samples.ended_at - samples.scheduled_at) * 1e3
    return Report(
        requests=len(latency),
        failed=int(np.count_nonzero(samples.kind != Kind.OK)),
        p50=percentile(latency, 50),
        p99=percentile(latency, 99),
        lag=lag_percentiles(samples)[1] * 1e3,
    )


async def run(port: int, path: str, rate: float, seconds: float, connections: int, seed: int) -> Report:
    """Send everything, wait for every end. Raises FleetFailedError when nobody is there."""
    instants = poisson(rate, max(1, round(rate * seconds)), np.random.default_rng(seed))
    places = [Place(worker="worker", region="here")]
    generator = Generator(("127.0.0.1", port), "b", places, instants, len(instants), TIMEOUT, path)
    gc.collect()
    gc.disable()  # a collection would be the generator's own lag; its memory is that of a few seconds
    ledger = await generator.run(connections)
    return report_of(ledger.samples())


def main(port: str, path: str, rate: str, seconds: str, connections: str, seed: str) -> None:
    """The program."""
    words = (int(port), path, float(rate), float(seconds), int(connections), int(seed))
    print(json.dumps(asdict(uvloop.run(run(*words)))))


if __name__ == "__main__":
    main(*sys.argv[1:])
