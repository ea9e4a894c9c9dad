"""The tables [retry] and [hedging] of the configuration: attempts at a second endpoint after, or beside, the first
one.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from balancer.config.schema.section import Section
from policies.overload.hedging import Hedging

ErrorStatus = Annotated[int, Field(ge=500, le=599)]
GrpcStatus = Literal["CANCELLED", "DEADLINE_EXCEEDED", "INTERNAL", "RESOURCE_EXHAUSTED", "UNAVAILABLE"]


class RetryConfig(Section):
    """Retry budget and conditions; the number of further endpoints is `retries`."""

    share: float = Field(
        default=0.2, ge=0, le=1, description="budget: share of the requests of the last 10 s"
    )
    per_second: float = Field(
        default=10.0, ge=0, le=10_000, description="retries per second that are allowed in addition"
    )
    body: int = Field(
        default=65_536,
        ge=0,
        le=1 << 26,
        description="maximum bytes of a request body that are kept for a retry",
    )
    statuses: tuple[ErrorStatus, ...] = Field(
        default=(502, 503), description="worker statuses after which an idempotent request is retried"
    )
    idempotency_key: bool = Field(
        default=False, description="treat requests with an Idempotency-Key as idempotent"
    )
    grpc_statuses: tuple[GrpcStatus, ...] = Field(
        default=(),
        description="statuses of gRPC after which an RPC is retried although a worker may have processed it",
    )


class HedgingConfig(Section):
    """Hedging: a second attempt beside the first when that is late."""

    enabled: bool = Field(default=False, description="send a late request to a second endpoint as well")
    quantile: float = Field(
        default=0.95,
        ge=0.5,
        le=0.999,
        description="quantile of a region's latency after which a request is late",
    )
    share: float = Field(default=0.05, gt=0, le=0.5, description="share of the requests that may be hedged")
    minimum: float = Field(default=0.01, ge=0.01, le=60, description="shortest delay of a hedge in seconds")

    def hedging(self) -> Hedging | None:
        """Return the hedging rules; None if it is off."""
        return Hedging(self.quantile, self.share, self.minimum) if self.enabled else None
