"""Retry rules: when a request may be sent again.

Only requests whose repetition has the same effect are repeated (RFC 9110 § 9.2.2). A request that no worker can have
received may be retried whatever its method, outside the retry budget, because it has caused no work. One that a worker
may have received is retried only if it is idempotent, and within the budget.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from balancer.grpc.status import NAMES, UNAVAILABLE
from balancer.http1.request_head import Request
from policies.endpoint.state import EndpointState
from policies.overload.retry_budget import RetryBudget

if TYPE_CHECKING:
    from balancer.config.retries import RetryConfig

IDEMPOTENT: Final = frozenset((b"GET", b"HEAD", b"OPTIONS", b"PUT", b"DELETE", b"TRACE"))  # RFC 9110 § 9.2.2

KEY_FIELD: Final = b"\nidempotency-key:"


@dataclass(slots=True)
class Retries:
    """Retry configuration and budget.

    `limit` is the maximum number of further endpoints, `body` the bytes of a request body buffered for them. `statuses`
    are response statuses treated like a broken connection. `trusts_idempotency_key`: a request with an Idempotency-Key
    is idempotent. `grpc_statuses` are the codes of gRPC after which an RPC is repeated, idempotent or not.
    """

    limit: int = 2
    body: int = 65_536
    statuses: frozenset[int] = frozenset((502, 503))
    trusts_idempotency_key: bool = False
    grpc_statuses: frozenset[int] = frozenset()
    budget: RetryBudget = field(default_factory=RetryBudget)

    def is_repeatable(self, request: Request) -> bool:
        """Return whether repeating the request has the same effect. Called only after a failure."""
        if request.method in IDEMPOTENT:
            return True
        if request.fields.is_grpc and UNAVAILABLE in self.grpc_statuses:  # so is a connection that breaks
            return True
        return self.trusts_idempotency_key and KEY_FIELD in request.head.lower()

    def is_repeatable_after(self, request: Request, code: int) -> bool:
        """Return whether an RPC that has ended with this grpc-status may be repeated."""
        return code in self.grpc_statuses or (code == UNAVAILABLE and self.is_repeatable(request))


def retries_of(config: RetryConfig, limit: int) -> Retries:
    """Return the retry rules that `config` describes, for up to `limit` further endpoints."""
    budget = RetryBudget(config.share, config.per_second)
    codes = frozenset(NAMES.index(name) for name in config.grpc_statuses)
    return Retries(limit, config.body, frozenset(config.statuses), config.idempotency_key, codes, budget)


def has_other(available: Iterable[EndpointState], tried: frozenset[str]) -> bool:
    """Return whether an endpoint is available that was not tried. Looks at one endpoint more than there were tries, at
    most."""
    return any(state.id not in tried for state in available)
