"""A balancer for `experiments live` that answers at once, in its own time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np

from experiments.errors import BadInputError
from experiments.switchback.balancer import LiveBalancer
from policies.stats.load import RATIO, SHORTEST, Histogram


class MadeUpBalancer(LiveBalancer):
    """Answers 200 requests a second, in a time that depends on the policy; `sleep` advances its time."""

    def __init__(self) -> None:
        self.at = 0.0
        self.policy: dict[str, Any] = {"name": "old"}
        self.histogram = Histogram()
        self.requests = self.failed = self.left = 0
        self.put: list[dict[str, Any]] = []
        self.files: list[dict[str, str]] = []
        self.means: dict[str, float] = {"old": 0.1, "slow": 0.12, "fast": 0.06}
        self.error_share: dict[str, float] = {}
        self.left_share: dict[str, float] = {}  # of requests whose client leaves
        self.sleeping: Callable[[], None] = lambda: None
        self._rng = np.random.default_rng(5)

    def now(self) -> float:
        return self.at

    async def sleep(self, seconds: float) -> None:
        self.sleeping()
        await asyncio.sleep(0)  # a cancellation arrives here
        self.at += seconds
        name = self.policy["name"]
        for seconds_taken in self._rng.gamma(16, self.means[name] / 16, round(200 * seconds)):
            self.requests += 1
            if self._rng.random() < self.error_share.get(name, 0.0):
                self.failed += 1
            elif self._rng.random() < self.left_share.get(name, 0.0):
                self.left += 1
            else:
                self.histogram.record(float(seconds_taken))

    async def latency(self) -> dict[str, Any]:
        name, *_ = self.policy.values()
        return {
            "shortest": SHORTEST,
            "ratio": RATIO,
            "requests": self.requests,
            "errors": {"timeout": self.failed},
            "worker_errors": 0,
            "abandoned": self.left,
            "policy": {"name": name, "spec": self.policy, "fallback_picks": 0, "files": self.files},
            "endpoints": [
                {
                    "id": "a",
                    "buckets": list(self.histogram.counts),
                    "outcomes": {"error_status": self.requests},  # of attempts, all retried
                }
            ],
        }

    async def check(self, policy: dict[str, Any]) -> None:
        if policy["name"] not in self.means:
            raise BadInputError("unknown policy")

    async def apply(self, policy: dict[str, Any]) -> None:
        self.put.append(policy)
        self.policy = policy
