"""The section `[http2]`: HTTP/2 from clients."""

from __future__ import annotations

from pydantic import Field, IPvAnyNetwork

from balancer.config.schema.section import Section


class Http2Config(Section):
    """HTTP/2 from clients; settings apply to connections that are opened later."""

    enabled: bool = Field(
        default=True,
        description="offer HTTP/2 by ALPN over TLS, and take it in clear text by prior knowledge",
    )
    max_streams: int = Field(
        default=100, ge=1, le=10_000, description="maximum requests at a time on one connection"
    )
    window: int = Field(
        default=262_144,
        ge=65_535,
        le=1 << 26,
        description="bytes of a request body that a client may send ahead of its worker, per stream",
    )
    flood_exempt: tuple[IPvAnyNetwork, ...] = Field(
        default=(),
        description="networks whose addresses are shared by many clients: none is refused HTTP/2 after floods",
    )
