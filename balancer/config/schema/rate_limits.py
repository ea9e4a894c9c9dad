"""The tables [[rate_limits]] of the configuration: how many requests of one client, key or field value are admitted in
a period."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import Field, model_validator

from balancer.config.schema.named_clusters import ClusterSettings
from balancer.config.schema.section import InSeconds, Name, Section, require_unique
from balancer.config.schema.sticky import Token

if TYPE_CHECKING:
    from balancer.config.loading import Settings


class RateLimitConfig(Section):
    """A rate limit. It applies to the routes that name it, or to all requests with `everywhere`."""

    name: Name = Field(
        description="name | unique name, shown to clients; one `[[rate_limits]]` for each; see [Rate "
        "limits](#rate-limits)"
    )
    requests: int = Field(
        ge=1, le=1_000_000_000, description="1–10⁹ | number of requests that are admitted in each `period`"
    )
    period: Annotated[int, InSeconds] = Field(
        default=1, ge=1, le=86_400, description="s | whole seconds, at most 86400"
    )
    burst: int | None = Field(
        default=None,
        ge=1,
        le=1_000_000_000,
        description="requests | number of requests that are admitted at once after a pause; default: `requests`",
    )
    by: Literal["client", "key", "header", "all"] = Field(
        default="client",
        description="whose requests count together: those of a `client`, of a request `key`, with one value of a "
        "`header`, or `all`",
    )
    header: Token | None = Field(default=None, description='name of a field | field of `by = "header"`')
    everywhere: bool = Field(
        default=False, description="application to all requests, beside the limit of their route"
    )

    shared: bool = Field(
        default=False,
        description="one limit for all units of `[shared]`, which tell each other what they admit; else each unit "
        "admits the whole limit",
    )

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        if self.by == "header" and self.header is None:
            raise ValueError('header: is required with by = "header": which field')
        if self.by != "header" and self.header is not None:
            raise ValueError('header: applies only to by = "header"')
        return self

    @property
    def tokens(self) -> int:
        """Capacity of its buckets."""
        return self.requests if self.burst is None else self.burst

    @property
    def identity(self) -> bytes:
        """What its buckets are found by. It changes with everything that gives their levels another meaning."""
        parts = (self.name, self.requests, self.period, self.tokens, self.by, (self.header or "").lower())
        return "|".join(map(str, parts)).encode() + (b"|shared|" if self.shared else b"|")


def check_rate_limits(settings: Settings) -> None:
    """Check names and references. Raises ValueError for the first one that is wrong."""
    known = [limit.name for limit in settings.rate_limits]
    require_unique(known, "rate_limits.{at}.name: '{value}' is there twice")
    for at, limit in enumerate(settings.rate_limits):
        if limit.shared and settings.shared.url is None:
            raise ValueError(f"rate_limits.{at}.shared: needs shared.url, the store of the units")
        if limit.by == "key" and not any(
            _has_key(cluster) for cluster in (settings, *settings.clusters.values())
        ):
            raise ValueError(
                f'rate_limits.{at}.by: "key" needs a request key: give [key] or sticky.header; a sticky cookie names '
                "an endpoint, not a client"
            )
    for at, route in enumerate(settings.routes):
        if route.rate_limit is not None and route.rate_limit not in known:
            wanted = f"must be one of {', '.join(known)}" if known else "there are no [[rate_limits]]"
            raise ValueError(f"routes.{at}.rate_limit: {wanted}, got '{route.rate_limit}'")


def _has_key(cluster: ClusterSettings) -> bool:
    """Return whether requests of the cluster have a key that tells clients apart."""
    return cluster.key.by is not None or cluster.sticky.header is not None
