"""The table [key] of the configuration: the request key of policies that send equal keys to the same endpoint."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from balancer.config.schema.section import Section
from balancer.config.schema.sticky import Token


class KeyConfig(Section):
    """Source of the request key; off by default, and then requests have no key."""

    by: Literal["header", "cookie", "path", "client"] | None = Field(
        default=None,
        description="source of the request key: `header`, `cookie`, `path` or `client`; see [Keys of "
        "requests](#keys-of-requests)",
    )
    name: Token | None = Field(default=None, description="name | name of the header or cookie")

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        needs_name = self.by in ("header", "cookie")
        if needs_name and self.name is None:
            raise ValueError(f"name: is required with by = {self.by!r}: which {self.by}")
        if not needs_name and self.name is not None:
            raise ValueError('name: applies only to by = "header" and by = "cookie"')
        return self
