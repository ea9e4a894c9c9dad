"""The table [sticky] of the configuration: session affinity to endpoints."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, SecretStr, StringConstraints, model_validator

from balancer.config.schema.section import Section

Token = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9!#$%&'+.^_`|~-]{1,64}$")]


class StickyConfig(Section):
    """Session affinity; off without a cookie or a header. If the endpoint cannot take a request, the policy picks
    another.
    """

    cookie: Token | None = Field(
        default=None, description="name of a cookie that we set; it names the endpoint, by a keyed hash"
    )
    header: Token | None = Field(
        default=None, description="name of a field; requests with one value go to one endpoint"
    )
    key: SecretStr | None = Field(
        default=None,
        min_length=16,
        description="of the cookie's hash; the same for all units of a service",
    )
    max_age: Annotated[int, Field(ge=1, le=31_536_000)] | None = Field(
        default=None, description="seconds that browsers keep the cookie. None: until they are closed"
    )
    same_site: Literal["lax", "strict", "none"] = Field(
        default="lax", description="whether the cookie goes along from other sites' pages"
    )
    secure: bool | None = Field(
        default=None,
        description="whether the cookie is for https alone. None: where clients speak TLS with us; default: "
        "true with same_site none",
    )

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        if self.cookie is not None and self.header is not None:
            raise ValueError("header: give cookie or header, not both")
        if self.cookie is not None and self.key is None:
            raise ValueError("key: is required with cookie: 16 characters or more, the same for all units")
        if self.same_site == "none":
            self._derive(secure=True)
        if self.same_site == "none" and self.secure is not True:
            raise ValueError('same_site: browsers take "none" only with secure = true')
        return self
