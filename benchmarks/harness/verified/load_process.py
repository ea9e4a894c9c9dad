"""A verified load as a process of its own, and Steelyard's configuration for it, with all mechanisms against faults."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks.harness import peer_files
from benchmarks.harness.cases import Case
from benchmarks.harness.load_process import generator_argv, report_of, started
from benchmarks.harness.peer_files import TEMPLATES, Site
from benchmarks.harness.verified.account import TIMEOUT
from benchmarks.harness.verified.messages import WORKERS
from experiments.errors import FleetFailedError
from experiments.platform import cpu_time

CHECK_PATH = "/healthz"
CHECK = Case("check", "whether it forwards", path=CHECK_PATH)

OURS = TEMPLATES.get_template("storm-steelyard.toml").render()
"""Part of Steelyard's configuration with all enabled mechanisms."""


def steelyard(site: Site, policy: str, mechanisms: str = OURS, without: str = "") -> str:
    """Configuration of `balancer serve` with endpoints by region; endpoint `without` is omitted."""
    ports = {name: port for name, port in zip(WORKERS, site.workers, strict=True) if name != without}
    return peer_files.steelyard(site, policy, mechanisms, ports)


WARM_UP = 2.0
"""Seconds of warm-up at the same rate before the zero."""

CONNECTIONS = 512
"""More than ever wait at once: at 500 requests per second, with two of six workers stopped for 2.5 s."""


@dataclass(frozen=True, slots=True)
class VerifiedLoad:
    """Load on 127.0.0.1:`port`: `rate` in requests per second, for `seconds`.

    `posts` is the share of POSTs, `fresh` the share of requests after which the client reconnects.
    """

    port: int
    rate: float
    seconds: float
    posts: float
    seed: int
    fresh: float = 0.0


@asynccontextmanager
async def loading(load: VerifiedLoad, file: Path, core: int) -> AsyncIterator[float]:
    """Run the load as a process; yields the instant of its zero, waits on exit. Raises `FleetFailedError`."""
    argv = [*generator_argv("benchmarks.harness.verified.load", load), str(file)]
    async with started(argv, partial(cpu_time.pinned_to, core)) as process:
        assert process.stdout is not None
        line = (await process.stdout.readline()).decode(errors="replace")
        try:
            zero = float(line)
        except ValueError:
            raise FleetFailedError(f"the load did not start: {line.strip()}") from None
        yield zero
        left = zero + load.seconds - time.monotonic()
        output = await report_of(process, max(0.0, left) + TIMEOUT + WARM_UP)
    if process.returncode:
        raise FleetFailedError(f"the load failed: {output.strip()[-300:]}")
