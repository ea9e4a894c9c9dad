"""The tables [queue], [admission] and [concurrency] of the configuration: behaviour under overload."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from balancer.config.schema.section import FieldName, Name, PositiveShare, Seconds, Section, require_unique
from policies.endpoint.concurrency_limit import ConcurrencyRules


class QueueConfig(Section):
    """Wait queue while every endpoint is full; `limits.queue` and `timeouts.queue` bound it."""

    order: Literal["fifo", "adaptive"] = Field(
        default="fifo",
        description="order of the wait queue; `adaptive`: last in, first out during overload; see "
        "[Overload](#overload)",
    )
    timeout_header: FieldName | None = Field(
        default=None, description="name of a field | field with the client's timeout in whole milliseconds"
    )
    start_header: FieldName | None = Field(
        default=None,
        description="name of a field | field with the time at which the first proxy received the request; accepted "
        "from `trusted_proxies` only",
    )
    start_timeout: Seconds = Field(
        default=30.0,
        description="with `queue.start_header`: timeout of that proxy; Heroku's router has 30 s",
    )


class LevelConfig(Section):
    """One priority level, with the loads at which its requests are shed."""

    name: Name = Field(
        description="name | name of a level; one `[[admission.levels]]` for each, the highest first, at most 8; see "
        "[Overload](#overload)"
    )
    queue: PositiveShare = Field(
        default=1.0,
        description="0–1 | fill level of the queue, above 0, at which the level is rejected; 1: only when it is full",
    )
    in_flight: PositiveShare = Field(
        default=1.0,
        description="0–1 | share of the endpoints' limits in use, above 0, at which the level is rejected; 1: it waits",
    )


DEFAULT_LEVELS = (
    LevelConfig(name="critical"),
    LevelConfig(name="normal", queue=0.75),
    LevelConfig(name="bulk", queue=0.25),
)


class AdmissionConfig(Section):
    """Admission control: requests of low priority levels are rejected first."""

    header: FieldName | None = Field(
        default=None,
        description="name of a field | field with the priority level of a request; without it there are no levels",
    )
    trust: Literal["proxies", "all"] = Field(
        default="proxies",
        description="senders whose field counts: `proxies`, those of `trusted_proxies`, or `all`",
    )
    default: Name = Field(
        default="normal",
        description="name | level of requests without the field, or with an unknown level; default: the middle level "
        "where none is `normal`",
    )
    levels: tuple[LevelConfig, ...] = Field(
        default=DEFAULT_LEVELS, min_length=1, max_length=8, description="priority levels, the highest first"
    )

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        names = [level.name.lower() for level in self.levels]
        if self.default not in names:
            self._derive(default=self.levels[len(self.levels) // 2].name)
        require_unique(names, "levels.{at}.name: '{value}' is used twice; every level has its own")
        if self.default.lower() not in names:
            raise ValueError(f"default: must be one of the levels, {', '.join(names)}, got '{self.default}'")
        return self

    def by_name(self) -> dict[str, int]:
        """Return level numbers by lower-cased name; 0 is the highest."""
        return {level.name.lower(): number for number, level in enumerate(self.levels)}


class ConcurrencyConfig(Section):
    """Adaptive concurrency limit of each endpoint, derived from its latency."""

    adaptive: bool = Field(
        default=False, description="concurrency limits derived from latency; see [Overload](#overload)"
    )
    initial: int = Field(
        default=20,
        ge=1,
        le=100_000,
        description="requests | limit at the start; its default lies between `minimum` and `maximum`",
    )
    minimum: int = Field(
        default=4,
        ge=1,
        le=100_000,
        description="requests | lowest limit; default: `initial` or `maximum` if that is lower",
    )
    maximum: int = Field(
        default=1000,
        ge=1,
        le=100_000,
        description="requests | highest limit; `max_in_flight` applies too; default: `initial` if that is higher",
    )
    tolerance: float = Field(
        default=1.5,
        gt=1,
        le=10,
        description="> 1, to 10 | accepted latency, as a multiple of the latency without queueing",
    )

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        if self._has("maximum"):
            self._derive(initial=min(self.initial, self.maximum))
        if self._has("minimum"):
            self._derive(initial=max(self.initial, self.minimum))
        self._derive(
            minimum=min(self.minimum, self.initial, self.maximum), maximum=max(self.initial, self.maximum)
        )
        if self.minimum > self.maximum:
            raise ValueError(f"minimum: must not be above maximum ({self.maximum}), got {self.minimum}")
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
