"""What all tables of a scenario have in common: they are frozen, and an unknown key is an error."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Model(BaseModel):
    """One table."""

    model_config = ConfigDict(frozen=True, extra="forbid")
