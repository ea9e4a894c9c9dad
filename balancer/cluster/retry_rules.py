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

    `limit` is the maximum number of further endpoints that a request is sent to, `body` the bytes of a request body
    buffered for them. `statuses` are response statuses treated like a broken connection, `busy` those by which a worker
    refuses a request unprocessed. `trusts_idempotency_key`: a request with an Idempotency-Key is idempotent.
    `grpc_statuses` are the codes of gRPC after which an RPC is repeated, idempotent or not.
    """

    __slots__ = ("body", "budget", "busy", "grpc_statuses", "limit", "statuses", "trusts_idempotency_key")

    def __init__(self, config: RetryConfig, limit: int) -> None:
        self.budget = RetryBudget()
        self.apply(config, limit)

    def apply(self, config: RetryConfig, limit: int) -> None:
        self.limit = limit
        self.body = config.body
        self.statuses, self.busy = frozenset(config.statuses), frozenset(config.busy)
        self.trusts_idempotency_key = config.idempotency_key
        self.grpc_statuses = frozenset(NAMES.index(name) for name in config.grpc_statuses)
        self.budget.apply(RetryBudget(config.share, config.per_second))
