"""Configuration of Steelyard in front of the workers of a verified load, with every mechanism against faults."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.harness import peer_files
from benchmarks.harness.cases import Case
from benchmarks.harness.verified.messages import WORKERS

CHECK_PATH = "/healthz"
CHECK = Case("check", "whether it forwards", path=CHECK_PATH)

OURS = """\
retries = 3                # further endpoints, where that is safe; POSTs are never sent twice

[health_checks]            # four times a second while something changes; out after two bad answers, back after one
path = "/healthz"
interval = 0.5
fast_interval = 0.25
timeout = 0.4
rise = 1
fall = 2

[outlier_detection]        # out after two failures in a row, on trial again a second later
failures = 2
latency = 5.0
window = 5.0
base_time = 1.0
max_time = 2.0

[timeouts]
attempt = 0.5              # a GET leaves a worker that hangs

[hedging]                  # and rather asks a second one before
enabled = true
share = 0.1
"""
"""Part of Steelyard's configuration before the endpoints, with all enabled mechanisms."""


def steelyard(
    port: int, workers: Sequence[int], policy: str, mechanisms: str = OURS, without: str = ""
) -> str:
    """Configuration of `balancer serve` with endpoints by region; endpoint `without` is omitted."""
    ports = {name: worker for name, worker in zip(WORKERS, workers, strict=True) if name != without}
    return peer_files.steelyard(port, ports, policy, tables=mechanisms)
