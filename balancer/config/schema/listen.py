"""Listening addresses, parsed from text. Pure: no I/O."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Self

from pydantic import AfterValidator


@dataclass(frozen=True, slots=True)
class ListenAddress:
    """Host and port to listen on."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse "host:port" or "[v6]:port". Raises ValueError with a message of one line."""
        host, separator, port = text.rpartition(":")
        if not separator or not port.isascii() or not port.isdigit() or len(port) > 5 or int(port) > 65535:
            raise ValueError(f"must be host:port with a port of 0–65535, got '{text}'")
        return cls(host.removeprefix("[").removesuffix("]") or "0.0.0.0", int(port))

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def _checked(text: str) -> str:
    ListenAddress.parse(text)
    return text


HostPort = Annotated[str, AfterValidator(_checked)]
"""Text "host:port" or "[v6]:port", validated by `ListenAddress.parse`."""
