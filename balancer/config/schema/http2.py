"""The section `[http2]`: HTTP/2 from clients."""

from __future__ import annotations

from pydantic import Field, IPvAnyNetwork

from balancer.config.schema.section import Section


class Http2Config(Section):
    """HTTP/2 from clients; settings apply to connections that are opened later."""

    enabled: bool = Field(
        default=True,
        description="HTTP/2 from clients: offered by ALPN over TLS, and taken in clear text from clients that begin "
        "with it; see [HTTP/2](http2.md)",
    )
    max_streams: int = Field(
        default=100,
        ge=1,
        le=10_000,
        description="requests at a time on one HTTP/2 connection; a client waits with more",
    )
    window: int = Field(
        default=262_144,
        ge=65_535,
        le=1 << 26,
        description="bytes | bytes of a request body that a client may send ahead of the worker, for each stream; at "
        "least 65535, at most 64 MiB",
    )
    flood_exempt: tuple[IPvAnyNetwork, ...] = Field(
        default=(),
        description="list of networks | networks whose addresses many clients share, such as those of a NAT gateway: "
        "none of their addresses is refused HTTP/2 after floods (see [HTTP/2](http2.md)). Those of "
        "`trusted_proxies` are not refused either",
    )
