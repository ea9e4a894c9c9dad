"""`transport` of an endpoint: what carries requests to it.

Rule of this file: what is optional is looked for when the configuration is read, so that its absence is one line then.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib.util import find_spec
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from balancer.config.sections import EndpointConfig

Transport = Literal["native", "http2", "curl", "aiohttp"]


def check_installed(transport: Transport) -> None:
    """Raises ValueError where a transport needs what this installation does not have."""
    if transport == "curl" and find_spec("pycurl") is None:
        raise ValueError("'curl' needs pycurl, which is not installed: pip install 'steelyard[curl]'")


def transports_of(endpoints: Iterable[EndpointConfig]) -> dict[str, str]:
    """By endpoint id, where it is not the native one."""
    return {endpoint.id: endpoint.transport for endpoint in endpoints if endpoint.transport != "native"}
