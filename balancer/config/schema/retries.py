"""The tables [retry] and [hedging] of the configuration: attempts at a second endpoint after, or beside, the first
one.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from balancer.config.schema.section import BufferSize, Duration, Section, Share
from policies.overload.hedging import Hedging

BusyStatus = Annotated[int, Field(ge=429, le=599)]
ErrorStatus = Annotated[int, Field(ge=500, le=599)]
GrpcStatus = Literal["CANCELLED", "DEADLINE_EXCEEDED", "INTERNAL", "RESOURCE_EXHAUSTED", "UNAVAILABLE"]


class RetryConfig(Section):
    """Retry budget and conditions; the number of further endpoints is `retries`."""

    share: Share = Field(
        default=0.2, description="retry budget: share of the requests of the last ten seconds"
    )
    per_second: float = Field(
        default=10.0, ge=0, le=10_000, description="retry budget: retries per second on top of that share"
    )
    body: BufferSize = Field(
        default=65_536,
        description="bytes | largest request body that is kept for a retry; once more has come, it is not repeated",
    )
    statuses: tuple[ErrorStatus, ...] = Field(
        default=(502, 503),
        description="list of 500–599 | worker statuses after which an idempotent request is retried",
    )
    busy: tuple[BusyStatus, ...] = Field(
        default=(),
        description="list of 429–599 | statuses by which a worker refuses a request unprocessed: it goes elsewhere, "
        "also a POST. They count as load and not as failures, and Retry-After keeps the endpoint out of picks; default "
        'with `kind = "inference"`: 429 and 503; see [Retries](#retries)',
    )
    idempotency_key: bool = Field(
        default=False,
        description="treatment of requests with an Idempotency-Key as idempotent; only where all workers share the "
        "keys",
    )
    grpc_statuses: tuple[GrpcStatus, ...] = Field(
        default=(),
        description='list of `"UNAVAILABLE"`, `"CANCELLED"`, `"DEADLINE_EXCEEDED"`, `"INTERNAL"`, '
        '`"RESOURCE_EXHAUSTED"` | statuses after which an RPC of gRPC is retried although a worker may '
        "have processed it; see [gRPC](grpc.md#retries)",
    )


class HedgingConfig(Section):
    """Hedging: a second attempt beside the first when that is late."""

    enabled: bool = Field(
        default=False, description="second attempt for late requests; see [Hedging](#hedging)"
    )
    quantile: float = Field(
        default=0.95,
        ge=0.5,
        le=0.999,
        description="quantile of a region's latency after which a request is late",
    )
    share: float = Field(
        default=0.05, gt=0, le=0.5, description="0–0.5 | hedging budget: share of the requests; more than 0"
    )
    minimum: Duration = Field(
        default=0.01, ge=0.01, le=60, description="s | shortest delay of a hedge, 0.01 to 60"
    )

    def hedging(self) -> Hedging | None:
        """Return the hedging rules; None if it is off."""
        return Hedging(self.quantile, self.share, self.minimum) if self.enabled else None
