"""Refused requests in virtual time: rests of engines and the retry budget, with the balancer's own rules."""

from __future__ import annotations

from typing import Final

from policies.overload.rests import Rests
from policies.overload.retry_budget import RetryBudget
from policies.routing.router import Router

RETRY_BUDGET: Final = (1.0, 100.0)
"""`retry.share` and `retry.per_second` of a cluster with `kind = "inference"`."""


class Refusals:
    """Engines that have refused requests of a router, and its retry budget: what the balancer's `Cluster` knows."""

    requests = 0

    def __init__(self, router: Router, limit: int) -> None:
        self.router = router
        self._limit = limit
        self._rests, self._budget = Rests(), RetryBudget(*RETRY_BUDGET)

    def left_out(self, tried: frozenset[str], now: float) -> frozenset[str]:
        """Return `tried`, with the engines that rest unless no others are available."""
        both, router = tried | self._rests.resting(now), self.router
        return both if (router.has_untried if tried else router.has_others)(both) else tried

    def may_retry(self, engine: str, tried: frozenset[str], now: float) -> bool:
        """Let an engine rest; return whether a request that all of `tried` have refused may go to another one."""
        self._rests.begin(engine, None, now)
        router, tries = self.router, len(tried)
        has_another = router.has_another_try(self._limit, tries, tries, tried, needs_other=True)
        return has_another and self._budget.take(self.requests, now)
