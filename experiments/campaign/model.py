"""What all tables of a scenario have in common: they are frozen, and an unknown key is an error.

Numbers are bounded: a run of any scenario that is accepted fits in memory and ends.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

MOST_REQUESTS = 20_000_000
"""Of a run; some 3 GB of samples."""

MOST_SPELLS = 100_000
"""Bursts, or busy spells, of a run."""

LEAST = 1e-6
LONGEST = 1e7
"""Seconds: a third of a year."""

Seconds = Annotated[float, Field(ge=0, le=LONGEST, allow_inf_nan=False)]
Duration = Annotated[float, Field(ge=LEAST, le=LONGEST, allow_inf_nan=False)]
Rate = Annotated[float, Field(ge=1e-9, le=1e7, allow_inf_nan=False)]
Requests = Annotated[int, Field(ge=1, le=MOST_REQUESTS)]
Warmup = Annotated[int, Field(ge=0, le=100_000)]
Blocks = Annotated[int, Field(ge=1, le=1000)]


class Model(BaseModel):
    """One table."""

    model_config = ConfigDict(frozen=True, extra="forbid")
