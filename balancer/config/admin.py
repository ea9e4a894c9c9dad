"""The table [admin] of the configuration: the admin interface."""

from __future__ import annotations

import os
from typing import Self

from pydantic import Field, SecretStr, field_validator, model_validator

from balancer.config.listen import HostPort, ListenAddress
from balancer.config.section import Section
from balancer.networks import is_this_machine

PATH_LIMIT = 107
"""Size limit of a Unix socket's path in bytes on Linux (unix(7)); macOS allows 103."""


class AdminConfig(Section):
    """Addresses of the admin interface (paths that begin with /-/), and its token."""

    token: SecretStr | None = Field(
        default=None,
        min_length=16,
        description="token required for every admin request, as Authorization: Bearer TOKEN; "
        "with a token, admin requests are accepted on the traffic port too",
    )
    socket: str = Field(
        default="auto",
        description="absolute path of the Unix socket for admin requests of the same user, auto or off; auto: a path "
        "that 'balancer status' derives from the port",
    )
    listen: HostPort | None = Field(
        default=None,
        description="host:port for admin requests over TCP; a loopback address, or any address with a token",
    )

    @field_validator("token")
    @classmethod
    def _can_be_sent(cls, token: SecretStr | None) -> SecretStr | None:
        if token is not None and not all("!" <= letter <= "~" for letter in token.get_secret_value()):
            raise ValueError("must be printable ASCII without spaces")
        return token

    @field_validator("socket")
    @classmethod
    def _is_a_path(cls, socket: str) -> str:
        if socket not in ("auto", "off") and not (socket.startswith("/") and "\0" not in socket):
            raise ValueError(f"must be auto, off or an absolute path, got '{socket}'")
        if len(os.fsencode(socket)) > PATH_LIMIT:
            raise ValueError(f"must have at most {PATH_LIMIT} bytes")
        return socket

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        if self.listen is not None and self.token is None:
            host = ListenAddress.parse(self.listen).host
            if not is_this_machine(host):
                raise ValueError(
                    f"listen: {self.listen} can be reached from other machines: give a loopback address, or set token"
                )
        return self
