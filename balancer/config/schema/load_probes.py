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
        description="path | path of the workers' load report, for policies that ask for it, such as `prequal`; see "
        "[Live](live.md)",
    )
    timeout: Annotated[float, Field(gt=0, le=60)] = Field(
        default=1.0, description="s | timeout of a probe, from the connect to the last byte; at most 60"
    )
    max_in_flight: int = Field(
        default=100, ge=1, le=10_000, description="limit of concurrent probes; further ones are not sent"
    )
