"""The table [load_probes] of the configuration: out-of-band load probes of workers."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from balancer.config.schema.section import Section


class LoadProbesConfig(Section):
    """Load probes; off without a path, and sent only while the policy needs them."""

    path: str | None = Field(
        default=None,
        pattern=r"^/[!-~]*$",
        description="path of the load report; the policy decides which workers are probed",
    )
    timeout: Annotated[float, Field(gt=0, le=60)] = Field(
        default=1.0, description="timeout of a probe in seconds, from the connect to the last byte"
    )
    max_in_flight: int = Field(
        default=100, ge=1, le=10_000, description="concurrent probes; further ones are not sent"
    )
