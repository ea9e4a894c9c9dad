"""The table [shared] of the configuration: knowledge shared with other units through Redis or Valkey."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, field_validator

from balancer.config.schema.section import Name, Section


class SharedConfig(Section):
    """Sharing of requests in flight, latencies and failures between units; off without a URL."""

    url: SecretStr | None = Field(
        default=None,
        description="address | `redis://host:port` or `rediss://user:password@host:port` of a Redis or Valkey server "
        "by which units share what they learn; see [Several units](#several-units)",
    )
    group: Name = Field(
        default="default", description="name | units of one group share; other groups of the store do not"
    )
    every: Annotated[float, Field(ge=0.01, le=0.25, allow_inf_nan=False)] = Field(
        default=0.01,
        description="s | least time between two reports of a process, 0.01 to 0.25; longer with many units or "
        "endpoints",
    )
    verify: bool = Field(
        default=True,
        description="verification of the certificate of a `rediss://` server; false for self-signed ones, as Heroku's",
    )

    @field_validator("url")
    @classmethod
    def _is_a_store(cls, url: SecretStr | None) -> SecretStr | None:
        if url is None:
            return None
        try:
            parts = urlsplit(url.get_secret_value())
            is_good = parts.scheme in ("redis", "rediss") and parts.hostname and parts.port != 0
        except ValueError:
            is_good = False
        if not is_good or parts.query or parts.fragment or parts.path not in ("", "/", "/0"):
            raise ValueError("must be redis://host:port or rediss://host:port, without a path or a query")
        if find_spec("hiredis") is None:
            raise ValueError("needs hiredis, which is not installed: pip install '.[shared]' in the checkout")
        return url

    @property
    def store(self) -> str:
        """The store's address without credentials, for messages."""
        parts = urlsplit("" if self.url is None else self.url.get_secret_value())
        host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
        return f"{parts.scheme}://{host}:{parts.port or 6379}"
