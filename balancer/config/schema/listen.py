"""Listening addresses, parsed from text. Pure: no I/O."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Annotated, Final, Self

from pydantic import AfterValidator

UNIX: Final = "unix:"
"""What an address that is a Unix socket's path begins with."""

PATH_LIMIT: Final = 107
"""Size limit of a Unix socket's path in bytes on Linux (unix(7)); macOS allows 103."""


@dataclass(frozen=True, slots=True)
class ListenAddress:
    """Host and port to listen on, or the path of a Unix socket."""

    host: str
    port: int
    path: str = ""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse "host:port" or "[v6]:port". Raises ValueError with a message of one line."""
        host, separator, port = text.rpartition(":")
        if not separator or not port.isascii() or not port.isdigit() or len(port) > 5 or int(port) > 65535:
            raise ValueError(f"must be host:port with a port of 0–65535, got '{text}'")
        return cls(host.removeprefix("[").removesuffix("]") or "0.0.0.0", int(port))

    @classmethod
    def parse_traffic(cls, text: str) -> Self:
        """Parse what `parse` does, or "unix:/path". Raises ValueError with a message of one line."""
        if not text.startswith(UNIX):
            return cls.parse(text)
        path = text.removeprefix(UNIX)
        if not path.startswith("/") or not path.isprintable() or path.endswith("/"):
            raise ValueError(f"must be unix: and the absolute path of a socket, got '{text}'")
        if len(os.fsencode(path)) > PATH_LIMIT:
            raise ValueError(f"must have at most {PATH_LIMIT} bytes behind unix:")
        return cls("", 0, path)

    def __str__(self) -> str:
        if self.path:
            return UNIX + self.path
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


HostPort = Annotated[str, AfterValidator(lambda text: ListenAddress.parse(text) and text)]
"""Text "host:port" or "[v6]:port", validated by `ListenAddress.parse`."""

TrafficAddress = Annotated[str, AfterValidator(lambda text: ListenAddress.parse_traffic(text) and text)]
"""Text as `HostPort`, or "unix:/path"."""
