"""The key `auth` of a route: another cluster decides whether its requests are forwarded."""

from __future__ import annotations

from typing import Annotated, Final, Self

from pydantic import Field, StringConstraints, model_validator

from balancer.config.schema.field_edits import RequestFieldEdits
from balancer.config.schema.section import FieldName, Name, Seconds, Section

CopiedName = Annotated[FieldName, StringConstraints(to_lower=True)]

OURS: Final = {*RequestFieldEdits.OWNED, "date", "x-real-ip"} - {"content-type"}
"""Fields that forwarding sets or needs, which cannot be copied from the answer of an authorisation."""


class AuthConfig(Section):
    """Forward authorisation: the cluster that is asked, and what is copied from its answer."""

    cluster: Name = Field(
        description="name | cluster that is asked before a request of the route is forwarded; see "
        "[Authorisation](#authorisation)"
    )
    path: Annotated[str, StringConstraints(pattern=r"^/[!-~]{0,2047}$")] = Field(
        description="path | path, with a query if one is wanted, of the subrequest"
    )
    timeout: Seconds = Field(default=5.0, description="s | time for the answer; then the client gets 503")
    request_fields: tuple[CopiedName, ...] = Field(
        default=(),
        description="list of names | fields of a 2xx answer that the worker gets; the client's own are removed",
    )
    response_fields: tuple[CopiedName, ...] = Field(
        default=(),
        description="list of names | fields of a 2xx answer that the client gets, such as `set-cookie`",
    )
    cache: Annotated[float, Field(ge=0, le=3600, allow_inf_nan=False)] = Field(
        default=0.0,
        description="s | time for which a 2xx answer holds for equal requests, at most an hour; 0: every request asks",
    )
    cache_by: tuple[CopiedName, ...] = Field(
        default=("authorization", "cookie"),
        description="list of names | fields of a request that the answer may depend on, beside its method, scheme, "
        "host, target, client address and client certificate",
    )

    @model_validator(mode="after")
    def _may_be_copied(self) -> Self:
        for key in ("request_fields", "response_fields"):
            for name in getattr(self, key):
                if name in OURS or name.startswith("x-forwarded-"):
                    raise ValueError(f"{key}: '{name}' is set by the balancer, and cannot be copied")
        if "cache_by" in self.model_fields_set and not self.cache:
            raise ValueError("cache_by: needs cache")
        return self
