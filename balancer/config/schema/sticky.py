"""The tables [sticky] and [key] of the configuration: session affinity to endpoints, and the request key of policies
that send equal keys to the same endpoint."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, SecretStr, StringConstraints, model_validator

from balancer.config.schema.section import InSeconds, Section

Token = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9!#$%&'+.^_`|~-]+$", max_length=64)]


class StickyConfig(Section):
    """Session affinity; off without a cookie or a header. If the endpoint cannot take a request, the policy picks
    another.
    """

    cookie: Token | None = Field(
        default=None,
        description="name | name of the cookie for session affinity, which the balancer sets; named clusters "
        "inherit it with their name behind it; see [Sticky sessions](#sticky-sessions)",
    )
    header: Token | None = Field(
        default=None,
        description="name | field for session affinity: requests with one value go to one endpoint. Either cookie or "
        "header",
    )
    key: SecretStr | None = Field(
        default=None,
        min_length=16,
        description="text | secret of the cookie's keyed hash, 16 characters or more; required with a cookie, the "
        "same for all balancers of a service",
    )
    max_age: Annotated[int, Field(ge=1, le=31_536_000), InSeconds] | None = Field(
        default=None,
        description="s | lifetime of the cookie, a whole number; default: until the browser is closed",
    )
    same_site: Literal["lax", "strict", "none"] = Field(
        default="lax",
        description="SameSite attribute of the cookie: `lax`, `strict`, or `none`, which browsers take with Secure "
        "only",
    )
    secure: bool | None = Field(
        default=None,
        description="Secure attribute of the cookie; default: where the client speaks TLS with the balancer, and "
        'always with `same_site = "none"`',
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
