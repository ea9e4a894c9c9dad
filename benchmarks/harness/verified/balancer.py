"""Configuration of Steelyard in front of the workers of a verified load, with every mechanism against faults."""

from __future__ import annotations

import json
from collections.abc import Sequence

from benchmarks.harness.cases import Case
from benchmarks.harness.verified.messages import REGIONS, WORKERS

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
    """Configuration of `balancer serve`: endpoints by region, the first is home; endpoint `without` is omitted."""
    lines = [f'listen = "127.0.0.1:{port}"', f"home_region = {json.dumps(REGIONS[0])}", "seed = 1"]
    lines += [f"policy = {json.dumps(policy)}", mechanisms]
    for name, worker in zip(WORKERS, workers, strict=True):
        if name == without:
            continue
        lines += ["[[endpoints]]", f'id = "{name}"', f'region = "{name.partition("-")[0]}"']
        lines += [f'address = "http://127.0.0.1:{worker}"']
    return "\n".join(lines) + "\n"
