"""The keys `split`, `split_key` and `canary` of a route: its requests are divided between clusters by weight."""

from __future__ import annotations

from collections.abc import Mapping
from math import fsum
from typing import Annotated, Self

from pydantic import Field, StringConstraints, model_validator

from balancer.config.schema.section import MOST_WEIGHT, Name, Section

Weight = Annotated[float, Field(ge=0, le=MOST_WEIGHT, allow_inf_nan=False)]


def check_weights(key: str, weights: Mapping[str, float]) -> None:
    """Check the weights of a split. Raises ValueError."""
    if len(weights) < 2:
        raise ValueError(f"{key}: must name two clusters or more, got {len(weights)}")
    if not fsum(weights.values()):
        raise ValueError(f"{key}: one of the weights must be more than 0")


class SplitChange(Section):
    """Body of PUT /-/splits: the weights of all clusters of a split, and of which route, if not of all that are split
    between these clusters."""

    weights: dict[Name, Weight]
    route: str | None = None
    reason: Annotated[str, StringConstraints(max_length=200, pattern=r"^[ -~]+$")] | None = Field(
        default=None, description="shown in the status until the next change"
    )

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        check_weights("weights", self.weights)
        return self
