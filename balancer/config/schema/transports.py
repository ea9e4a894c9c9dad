"""`transport` of an endpoint: the client implementation that carries requests to it.

Optional dependencies are checked when the configuration is read, so that a missing one is reported in one line.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib.util import find_spec
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from balancer.config.schema.endpoint import EndpointConfig

Transport = Literal["native", "http2", "curl", "aiohttp"]


def check_installed(transport: Transport) -> None:
    """Check that the dependencies of a transport are installed. Raises ValueError."""
    if transport == "curl" and find_spec("pycurl") is None:
        raise ValueError("'curl' needs pycurl, which is not installed: pip install '.[curl]' in the checkout")


def transports_of(endpoints: Iterable[EndpointConfig]) -> dict[str, str]:
    """Return transports by endpoint id, without the native ones."""
    return {endpoint.id: endpoint.transport for endpoint in endpoints if endpoint.transport != "native"}
