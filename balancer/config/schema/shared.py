"""The table [shared] of the configuration: knowledge shared with other units through Redis or Valkey."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, SecretStr

from balancer.config.schema.section import InSeconds, Name, Section
from balancer.syntax.urls import server_url


def _store(address: SecretStr) -> SecretStr:
    url = server_url(address.get_secret_value(), ("redis", "rediss"))
    if url is None or url.query or url.fragment or url.path not in ("", "/", "/0"):
        raise ValueError("must be redis://host:port or rediss://host:port, without a path or a query")
    if find_spec("hiredis") is None:
        raise ValueError("needs hiredis, which is not installed: pip install '.[shared]' in the checkout")
    return address


class SharedConfig(Section):
    """Sharing of requests in flight, latencies and failures between units; off without a URL."""

    url: Annotated[SecretStr, AfterValidator(_store)] | None = Field(
        default=None,
        description="address | `redis://host:port` or `rediss://user:password@host:port` of a Redis or Valkey server "
        "by which units share what they learn; see [Several units](#several-units)",
    )
    group: Name = Field(
        default="default", description="name | units of one group share; other groups of the store do not"
    )
    every: Annotated[float, Field(ge=0.01, le=0.25, allow_inf_nan=False), InSeconds] = Field(
        default=0.01,
        description="s | least time between two reports of a process, 0.01 to 0.25; longer with many units or "
        "endpoints",
    )
    verify: bool = Field(
        default=True,
        description="verification of the certificate of a `rediss://` server; false for self-signed ones, as Heroku's",
    )

    @property
    def store(self) -> str:
        """The store's address without credentials, for messages."""
        parts = urlsplit("" if self.url is None else self.url.get_secret_value())
        host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
        return f"{parts.scheme}://{host}:{parts.port or 6379}"
