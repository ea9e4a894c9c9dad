"""The tables [queue], [shedding] and [concurrency] of the configuration: behaviour under overload."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, StringConstraints, model_validator

from balancer.config.sections import Name, Seconds, Section
from balancer.exchange.admission import ONLY_LEVEL, AdmissionRules
from balancer.http1.request_hints import HintFields
from policies.overload.admission import Level
from policies.overload.concurrency_limit import ConcurrencyRules

FieldName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9!#$%&'+.^_`|~-]+$", max_length=128)]


class QueueConfig(Section):
    """Wait queue while every endpoint is full; `limits.queue` and `timeouts.queue` bound it."""

    order: Literal["fifo", "adaptive"] = Field(
        default="fifo", description="adaptive: newest first while the queue has stood for long"
    )
    limit_header: FieldName | None = Field(
        default=None, description="says in milliseconds how long the client waits for its answer"
    )
    start_header: FieldName | None = Field(
        default=None, description="says when the first proxy got the request; of trusted_proxies only"
    )
    start_limit: Seconds = Field(
        default=30.0, description="with start_header: how long that proxy waits; Heroku's router does 30 s"
    )


class LevelConfig(Section):
    """One priority level, with the loads at which its requests are shed."""

    name: Name = Field(description="the value of shedding.header that means it, in any case")
    queue: float = Field(default=1.0, gt=0, le=1, description="share of the queue at which it is refused")
    in_flight: float = Field(
        default=1.0, gt=0, le=1, description="share of what the endpoints may hold at which it is refused"
    )


DEFAULT_LEVELS = (
    LevelConfig(name="critical"),
    LevelConfig(name="normal", queue=0.75),
    LevelConfig(name="bulk", queue=0.25),
)


class SheddingConfig(Section):
    """Load shedding by priority level."""

    header: FieldName | None = Field(default=None, description="says how important a request is. None: off")
    trust: Literal["proxies", "everybody"] = Field(
        default="proxies", description="whose header is believed: that of trusted_proxies, or anybody's"
    )
    default: Name = Field(default="normal", description="the level of requests that say none")
    levels: tuple[LevelConfig, ...] = Field(
        default=DEFAULT_LEVELS, min_length=1, max_length=8, description="the highest first"
    )

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        names = [level.name.lower() for level in self.levels]
        for at, name in enumerate(names):
            if name in names[:at]:
                raise ValueError(f"levels.{at}.name: '{name}' is used twice; every level has its own")
        if self.default.lower() not in names:
            raise ValueError(f"default: must be one of the levels, {', '.join(names)}, got '{self.default}'")
        return self

    def by_name(self) -> dict[str, int]:
        """Return level numbers by lower-cased name; 0 is the highest."""
        return {level.name.lower(): number for number, level in enumerate(self.levels)}


class ConcurrencyConfig(Section):
    """Adaptive concurrency limit of each endpoint, derived from its latency."""

    adaptive: bool = Field(default=False, description="false: max_in_flight alone")
    initial: int = Field(default=20, ge=1, le=100_000, description="requests at once, to begin with")
    minimum: int = Field(default=4, ge=1, le=100_000, description="never fewer")
    maximum: int = Field(default=1000, ge=1, le=100_000, description="never more, nor than max_in_flight")
    tolerance: float = Field(
        default=1.5, gt=1, le=10, description="times its usual latency that an endpoint may take"
    )

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        if not self.minimum <= self.initial <= self.maximum:
            raise ValueError(
                f"initial: must be between minimum and maximum, {self.minimum}–{self.maximum}, got {self.initial}"
            )
        return self

    def rules(self) -> ConcurrencyRules | None:
        """Return the rules of the adaptive limit as plain values; None if it is off."""
        if not self.adaptive:
            return None
        return ConcurrencyRules(self.initial, self.minimum, self.maximum, self.tolerance)


def admission_rules(queue: QueueConfig, shedding: SheddingConfig) -> AdmissionRules | None:
    """Return the rules of admission control; None if no header for it is configured."""
    if queue.limit_header is None and queue.start_header is None and shedding.header is None:
        return None
    is_public = shedding.trust == "everybody"
    levels = shedding.by_name()
    of_trusted = HintFields(shedding.header, levels, queue.limit_header, queue.start_header)
    of_others = None
    if queue.limit_header is not None or (is_public and shedding.header is not None):
        of_others = HintFields(shedding.header if is_public else None, levels, queue.limit_header)
    if shedding.header is None:
        return AdmissionRules(of_trusted, of_others, ONLY_LEVEL, 0, queue.start_limit)
    by_number = tuple(Level(level.name, level.queue, level.in_flight) for level in shedding.levels)
    return AdmissionRules(
        of_trusted, of_others, by_number, levels[shedding.default.lower()], queue.start_limit
    )
