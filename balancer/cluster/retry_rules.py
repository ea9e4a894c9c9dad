"""Retry rules as configured, and the budget of retries."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from balancer.config.schema.retries import RetryConfig
from balancer.http.grpc.status import NAMES
from policies.overload.retry_budget import RetryBudget

IDEMPOTENT: Final = frozenset((b"GET", b"HEAD", b"OPTIONS", b"PUT", b"DELETE", b"TRACE"))  # RFC 9110 § 9.2.2

LEAST_BUSY: Final = 429
"""The least status that retry rules look at."""

KEY_FIELD: Final = b"\nidempotency-key:"


@dataclass(slots=True)
class Retries:
    """Retry configuration and budget.

    `limit` is the maximum number of further endpoints that a request is sent to, `body` the bytes of a request body
    buffered for them. `statuses` are response statuses treated like a broken connection, `busy` those by which a worker
    refuses a request unprocessed. `trusts_idempotency_key`:
    a request with an Idempotency-Key is idempotent. `grpc_statuses` are the codes of gRPC after which an RPC is
    repeated, idempotent or not.
    """

    limit: int = 2
    body: int = 65_536
    statuses: frozenset[int] = frozenset((502, 503))
    busy: frozenset[int] = frozenset()
    trusts_idempotency_key: bool = False
    grpc_statuses: frozenset[int] = frozenset()
    budget: RetryBudget = field(default_factory=RetryBudget)


def retries_of(config: RetryConfig, limit: int) -> Retries:
    """Return the retry rules that `config` describes, for up to `limit` further endpoints."""
    budget = RetryBudget(config.share, config.per_second)
    codes = frozenset(NAMES.index(name) for name in config.grpc_statuses)
    statuses, busy = frozenset(config.statuses), frozenset(config.busy)
    return Retries(limit, config.body, statuses, busy, config.idempotency_key, codes, budget)
