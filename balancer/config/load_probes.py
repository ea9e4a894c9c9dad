"""The table [load_probes] of the configuration: how workers are asked for their load, out of band.

Rule of this file: as in `sections.py`.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from balancer.config.sections import Section
from balancer.upstream.load_probes import ProbePlan


class LoadProbesConfig(Section):
    """Off unless there is a path, and sent only while a policy asks for them."""

    path: str | None = Field(
        default=None, pattern=r"^/[!-~]*$", description="GET this of a worker whose load the policy asks for"
    )
    timeout: Annotated[float, Field(gt=0, le=60)] = Field(
        default=1.0, description="seconds, from before the connection to the last byte"
    )
    most: int = Field(
        default=100, ge=1, le=10_000, description="under way at once; further ones are not sent"
    )

    def plan(self) -> ProbePlan:
        """The value that the probes work with."""
        return ProbePlan(self.path, self.timeout, self.most)
