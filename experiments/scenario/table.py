"""Base class and bounded number types of all tables of a scenario; unknown keys are errors.

Numbers are bounded so that a run of any accepted scenario fits in memory and ends.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from balancer.config.schema.section import InSeconds

MOST_REQUESTS = 20_000_000
"""Maximum number of requests in a run; some 3 GB of samples."""

MOST_SPELLS = 100_000
"""Maximum number of bursts or busy periods in a run."""

MIN_DURATION_S = 1e-6
MAX_DURATION_S = 1e7
"""Maximum duration in seconds: a third of a year."""

Seconds = Annotated[float, Field(ge=0, le=MAX_DURATION_S, allow_inf_nan=False), InSeconds]
Duration = Annotated[float, Field(ge=MIN_DURATION_S, le=MAX_DURATION_S, allow_inf_nan=False), InSeconds]
Rate = Annotated[float, Field(ge=1e-9, le=1e7, allow_inf_nan=False)]
Requests = Annotated[int, Field(ge=1, le=MOST_REQUESTS)]
Warmup = Annotated[int, Field(ge=0, le=100_000)]
Blocks = Annotated[int, Field(ge=1, le=1000)]


def complaint_in_words(error: ValidationError) -> str:
    """First pydantic error as one line `regions.0.rtt: …`."""
    complaint = error.errors()[0]
    place = ".".join(str(part) for part in complaint["loc"])
    message = complaint["msg"].removeprefix("Value error, ")
    message = "is needed" if complaint["type"] == "missing" else message
    return f"{place}: {message}" if place else message


class Model(BaseModel):
    """Base class of a table: frozen, without extra keys."""

    model_config = ConfigDict(frozen=True, extra="forbid")
