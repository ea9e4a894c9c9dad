"""The table [admin] of the configuration: the admin interface."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Self

from pydantic import AfterValidator, Field, SecretStr, model_validator

from balancer.config.documents import read_text
from balancer.config.problems import ConfigError, in_file
from balancer.config.schema.listen import PATH_LIMIT, HostPort, ListenAddress
from balancer.config.schema.section import Section
from balancer.syntax.networks import is_this_machine

MIN_TOKEN = 16
"""Characters of the shortest token: 64 bits, if it is hexadecimal."""


def _is_printable(token: str) -> bool:
    return all("!" <= letter <= "~" for letter in token)


def _token(token: SecretStr) -> SecretStr:
    if not _is_printable(token.get_secret_value()):
        raise ValueError("must be printable ASCII without spaces")
    return token


def _socket(path: str) -> str:
    if path not in ("auto", "off") and not (path.startswith("/") and "\0" not in path):
        raise ValueError(f"must be auto, off or an absolute path, got '{path}'")
    if len(os.fsencode(path)) > PATH_LIMIT:
        raise ValueError(f"must have at most {PATH_LIMIT} bytes")
    return path


class AdminConfig(Section):
    """Addresses of the admin interface (paths that begin with /-/), and its token."""

    token: Annotated[SecretStr, Field(min_length=MIN_TOKEN), AfterValidator(_token)] | None = Field(
        default=None,
        description="text | token that every admin request needs, 16 characters or more, printable ASCII without "
        "spaces; see [Admin interface](#admin-interface)",
    )
    token_file: Path | None = Field(
        default=None,
        description="instead of `token`: file that holds it, in its only line; read at the start and at each reload",
    )
    socket: Annotated[str, AfterValidator(_socket)] = Field(
        default="auto",
        description="path, `auto` or `off` | Unix socket for admin requests of the same user; `auto`: a path that "
        "`balancer status` derives from the port",
    )
    listen: HostPort | None = Field(
        default=None,
        description="host:port | TCP address for admin requests; a loopback address, or any address with a token. "
        "`timeouts.head` applies from the connect on; of more than 64 connections the oldest that asks "
        "nothing is reset",
    )

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        if self.token is not None and self.token_file is not None:
            raise ValueError("token_file: give token or token_file, not both")
        if self.listen is not None and self.token is None and self.token_file is None:
            host = ListenAddress.parse(self.listen).host
            if not is_this_machine(host):
                raise ValueError(
                    f"listen: {self.listen} can be reached from other machines: give a loopback address, or set token"
                )
        return self

    def with_token(self) -> AdminConfig:
        """Return the table with the token of `token_file`, if that is given. Raises `ConfigError`."""
        if self.token_file is None:
            return self
        with in_file("admin.token_file", self.token_file):
            token = read_text(self.token_file).rstrip("\r\n")
        if len(token) < MIN_TOKEN or not _is_printable(token):
            raise ConfigError(
                f"admin.token_file: {self.token_file} must hold one line of {MIN_TOKEN} characters or more, "
                "printable ASCII without spaces"
            )
        return self.model_copy(update={"token": SecretStr(token)})
