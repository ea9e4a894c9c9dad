"""Target of `experiments load`: a URL, the bytes of a request for it, and the address that answers there."""

from __future__ import annotations

import re
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from balancer.tools.probe.target import BadTarget, ProbeTarget, target_of
from experiments.errors import BadInputError, ExperimentError
from experiments.generator.client import GeneratorConnection, GeneratorTls, NotConnected, connect
from experiments.platform.printable import one_line

FIELD = re.compile(r"(?P<name>[!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*(?P<value>[\t -~\x80-\xff]*)")
"""A header field as RFC 9110 section 5.5 allows it."""

OURS = {"host", "content-length", "transfer-encoding", "connection", "upgrade", "expect", "te", "trailer"}
"""Fields that decide the framing or the connection; a Host may be given."""

LARGEST_BODY = 1 << 20
"""Limit of a body in bytes: each request in flight may have a copy in a write buffer."""


class ServiceUnreachable(ExperimentError):
    """No connection to a URL could be opened before the load."""


@dataclass(frozen=True, slots=True)
class Message:
    """Method, header fields and body of all requests."""

    method: str
    fields: tuple[tuple[str, str], ...]
    body: bytes

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the fields, without their values."""
        return tuple(name for name, _ in self.fields)

    def for_target(self, target: ProbeTarget) -> bytes:
        """The request as bytes."""
        given = {name.lower() for name, _ in self.fields}
        usual = {"Host": target.authority, "User-Agent": "steelyard-load", "Accept": "*/*"}
        fields = [(name, value) for name, value in usual.items() if name.lower() not in given]
        fields += self.fields
        if self.body or self.method in ("POST", "PUT", "PATCH"):
            fields.append(("Content-Length", str(len(self.body))))
        lines = [f"{self.method} {target.path} HTTP/1.1", *(f"{name}: {value}" for name, value in fields)]
        return "\r\n".join((*lines, "", "")).encode("latin-1") + self.body


@dataclass(frozen=True, slots=True)
class Destination:
    """A target whose address is known, with the bytes of a request for it."""

    address: tuple[str, int]
    tls: GeneratorTls | None
    method: bytes
    request: bytes


class NoOwner:
    """Owner of a connection that is only opened and closed."""

    def connection_closed(self, connection: GeneratorConnection) -> None: ...


def parse_target(url: str) -> ProbeTarget:
    """Parse a URL. Raises `BadInputError`."""
    try:
        return target_of(url)
    except BadTarget as error:
        raise BadInputError(f"URL: {error}") from None


def parse_fields(texts: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Parse header fields `Name: value`; `@file` stands for those in a file, one per line. Raises `BadInputError`.

    A message never quotes a value, which may be a password.
    """
    lines = [line for text in texts for line in (lines_of(text[1:]) if text.startswith("@") else [text])]
    found = []
    for line in lines:
        match = FIELD.fullmatch(line)
        name, colon, _ = line.partition(":")
        if match is None:
            shown = f"{name[:40]!r} and a value" if colon else "no colon"
            raise BadInputError(f"--header: must be 'Name: value' in one line, got {shown}")
        if match["name"].lower() in OURS - {"host"}:
            raise BadInputError(f"--header: {name}: the load generator sets it itself")
        found.append((match["name"], match["value"].strip()))
    return tuple(found)


def lines_of(path: str) -> list[str]:
    """Lines of a file that are not blank."""
    text = bytes_of(path, "--header").decode("latin-1")
    return [line for line in text.splitlines() if line.strip()]


def parse_body(text: str | None) -> bytes:
    """Body from `--data`; `@file` stands for the bytes of a file. Raises `BadInputError`."""
    if text is None:
        return b""
    data = bytes_of(text[1:], "--data") if text.startswith("@") else text.encode(errors="surrogateescape")
    if len(data) > LARGEST_BODY:
        raise BadInputError(f"--data: must have at most {LARGEST_BODY >> 20} MiB")
    return data


def bytes_of(path: str, option: str) -> bytes:
    """Content of a file, one byte more than allowed at most. Raises `BadInputError`."""
    try:
        with Path(path).open("rb") as file:
            return file.read(LARGEST_BODY + 1)
    except (OSError, ValueError) as error:  # a NUL in the path
        problem = getattr(error, "strerror", None) or error
        raise BadInputError(f"{option}: {path[:200]!r} cannot be read: {problem}") from None


def tls_of(target: ProbeTarget, cacert: Path | None, is_insecure: bool) -> GeneratorTls | None:
    """TLS settings for a target, None for plain HTTP. Raises `BadInputError`."""
    if not target.is_tls:
        return None
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    if is_insecure:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    elif cacert is not None:
        try:
            context = ssl.create_default_context(cafile=cacert)
        except ssl.SSLError:  # a subclass of OSError
            raise BadInputError(f"--cacert: {cacert} holds no certificate in PEM") from None
        except (OSError, ValueError) as error:  # a NUL in the path
            problem = getattr(error, "strerror", None) or error
            raise BadInputError(f"--cacert: cannot read {cacert}: {problem}") from None
        context.set_alpn_protocols(["http/1.1"])
    return GeneratorTls(context, target.host)


async def reach(
    target: ProbeTarget, tls: GeneratorTls | None, message: Message, timeout: float
) -> Destination:
    """Open and close one connection, to learn which address answers. Raises `ServiceUnreachable`.

    The name is not resolved again: all requests of the load go to this address.
    """
    port = urlsplit(target.origin).port or (443 if target.is_tls else 80)
    try:
        connection = await connect(NoOwner(), target.host, port, timeout, tls)
    except NotConnected as error:
        hint = "; see --cacert and --insecure" if error.is_certificate else ""
        raise ServiceUnreachable(f"{target.origin}: {one_line(error.reason)}{hint}") from None
    address = connection.transport.get_extra_info("peername")[:2]
    connection.close()
    return Destination(address, tls, message.method.encode(), message.for_target(target))
