"""Retry rules as configured, and the budget of retries."""

from __future__ import annotations

from typing import Final

from balancer.config.schema.retries import RetryConfig
from balancer.http.grpc.status import NAMES
from policies.overload.retry_budget import RetryBudget

IDEMPOTENT: Final = frozenset((b"GET", b"HEAD", b"OPTIONS", b"PUT", b"DELETE", b"TRACE"))  # RFC 9110 § 9.2.2

LEAST_BUSY: Final = 429
"""The least status that retry rules look at."""

KEY_FIELD: Final = b"\nidempotency-key:"


class Retries:
    """Retry rules of one cluster, and the budget, which is kept over changes of the rules.

    `config` is the section: what is read only after a failure, or rarely, is read there. Only `body`, which requests
    without a failure read, is copied, which saves them a look-up. `limit` is the maximum number of further endpoints,
    `grpc_statuses` has the codes of those of the section.
    """

    __slots__ = ("body", "budget", "config", "grpc_statuses", "limit")

    def __init__(self, config: RetryConfig, limit: int) -> None:
        self.budget = RetryBudget()
        self.apply(config, limit)

    def apply(self, config: RetryConfig, limit: int) -> None:
        self.config, self.limit, self.body = config, limit, config.body
        self.grpc_statuses = frozenset(NAMES.index(name) for name in config.grpc_statuses)
        self.budget.apply(RetryBudget(config.share, config.per_second))
