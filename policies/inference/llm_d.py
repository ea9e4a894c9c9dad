"""llm-d's rule: a weighted sum of the cached share of the prompt, the queue and the free KV cache.

llm-d-router, `_config.yaml` and `plugins/scheduling/scorer/` (August 2026): 3 · prefix + 2 · queue + 2 · (1 − kv), the
highest wins, of equals one at random. `prefix` is cached over all blocks of the prompt, `queue` is (most − its) /
(most − least) of the requests that wait, 1 where all are equal, `kv` the share of the KV cache in use.

llm-d reads queue and KV cache from the endpoints' metrics every 50 ms. Here load probes do, while there are requests,
and a report counts for `expiry` seconds. Where there is none, the queue and the cache are those of the own accounts: an
old report is unknown, not full.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Annotated

from policies.endpoint.state import EndpointState
from policies.inference.rule import Capacity, InferenceRule
from policies.inference.tokens import CAPACITY, EndpointTokens
from policies.options import above, at_least
from policies.prompts import Prompt

HIGHEST_SUM = "highest-sum"
"""Reason: the highest weighted sum of cached share, short queue and free KV cache. The score is its negative."""


class LlmD(InferenceRule):
    """The highest weighted sum of the cached share of the prompt, a short queue and a free KV cache (llm-d)."""

    def __init__(
        self,
        rng: Random,
        *,
        prefix: Annotated[float, "weight of the cached share of the prompt", at_least(0)] = 3.0,
        queue: Annotated[float, "weight of a short queue", at_least(0)] = 2.0,
        kv: Annotated[float, "weight of a free KV cache", at_least(0)] = 2.0,
        expiry: Annotated[float, "seconds for which a report of an endpoint counts", above(0)] = 2.0,
        refresh: Annotated[float, "least seconds between two load probes of an endpoint", above(0)] = 0.05,
        capacity: Capacity = CAPACITY,
    ) -> None:
        super().__init__(rng, capacity)
        self._prefix = prefix
        self._queue = queue
        self._kv = kv
        self._expiry = expiry
        self._refresh = refresh

    def probes(self, now: float) -> Sequence[EndpointState]:
        """Return the endpoints to probe next."""
        return self.accounts.due(self._refresh, now)

    def choose(self, accounts: list[EndpointTokens], prompt: Prompt, now: float) -> EndpointState:
        """Pick the endpoint of the highest sum."""
        queues = list[float]()
        used = list[float]()
        for each in accounts:
            is_known = now - each.reported_at < self._expiry
            waiting = each.reported.waiting if is_known else None
            usage = each.reported.kv_usage if is_known else None
            queues.append(each.queue if waiting is None else waiting)
            used.append(min(1.0, each.resident / each.capacity) if usage is None else usage)
        most = max(queues)
        spread = most - min(queues)
        blocks = max(1, len(prompt.blocks))
        costs = [
            -self._prefix * each.held / blocks
            - self._queue * ((most - queue) / spread if spread else 1.0)
            - self._kv * (1.0 - kv)
            for each, queue, kv in zip(accounts, queues, used, strict=True)
        ]
        return self.least(accounts, costs, HIGHEST_SUM)
