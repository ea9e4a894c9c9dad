"""Target of `experiments load`: a URL, the bytes of the requests for it, and the address that answers there."""

from __future__ import annotations

import re
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from balancer.tools.probe.target import BadTarget, ProbeTarget, target_of
from experiments.errors import BadInputError, ExperimentError
from experiments.generator.client import (
    Connection,
    GeneratorConnection,
    GeneratorTls,
    NotConnected,
    open_connection,
)
from experiments.generator.http2 import LARGEST_FRAME, Http2Connection, Http2Owner
from experiments.generator.http2_fields import header_block
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
class PreparedRequest:
    """Bytes of a request: over HTTP/1.1 the head and the body, over HTTP/2 the header block and the body."""

    method: bytes
    head: bytes
    body: bytes


@dataclass(frozen=True, slots=True)
class Message:
    """Method, header fields and body of a request. `path`: None: that of the URL; `weight`: how often it is sent."""

    method: str
    fields: tuple[tuple[str, str], ...]
    body: bytes
    path: str | None = None
    weight: float = 1.0

    def for_target(self, target: ProbeTarget, is_http2: bool = False) -> PreparedRequest:
        """The request as bytes. Raises `BadInputError` if its fields are too long for HTTP/2."""
        given = {name.lower() for name, _ in self.fields}
        authority = "localhost" if is_unix(target) else target.authority
        usual = {"Host": authority, "User-Agent": "steelyard-load", "Accept": "*/*"}
        fields = [(name, value) for name, value in usual.items() if name.lower() not in given]
        fields += self.fields
        if self.body or self.method in ("POST", "PUT", "PATCH"):
            fields.append(("Content-Length", str(len(self.body))))
        path = self.path or target.path
        if is_http2:
            host = next(value for name, value in fields if name.lower() == "host")
            others = [field for field in fields if field[0].lower() != "host"]
            scheme = "https" if target.is_tls else "http"
            head = header_block(self.method, scheme, host, path, others)
            if len(head) > LARGEST_FRAME:
                raise BadInputError(f"--http2: header fields have at most {LARGEST_FRAME:,} bytes together")
        else:
            lines = [f"{self.method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in fields)]
            head = "\r\n".join((*lines, "", "")).encode("latin-1")
        return PreparedRequest(self.method.encode(), head, self.body)


@dataclass(frozen=True, slots=True)
class Destination:
    """A target whose address is known, with the requests for it; `shares` of them add up to 1."""

    address: tuple[str, int]
    tls: GeneratorTls | None
    requests: tuple[PreparedRequest, ...]
    shares: tuple[float, ...] = (1.0,)
    is_http2: bool = False


def is_unix(target: ProbeTarget) -> bool:
    """Whether the target is a Unix socket, whose path is its host."""
    return target.scheme == "http+unix"


def parse_target(url: str) -> ProbeTarget:
    """Parse a URL. Raises `BadInputError`."""
    try:
        return target_of(url)
    except BadTarget as error:
        raise BadInputError(f"URL: {error}") from None


def parse_fields(texts: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Parse header fields `Name: value`; `@file` stands for those in a file, one per line. Raises `BadInputError`."""
    lines: list[str] = []
    for text in texts:
        if text.startswith("@"):
            whole = bytes_of(text[1:], "--header").splitlines()  # as text, some letters would end lines
            lines += filter(str.strip, (line.decode("latin-1") for line in whole))
        else:
            lines.append(text)
    return tuple(parse_field(line, "--header") for line in lines)


def parse_field(line: str, where: str) -> tuple[str, str]:
    """Parse one header field. Raises `BadInputError`, which never quotes a value: it may be a password."""
    match = FIELD.fullmatch(line)
    name, colon, _ = line.partition(":")
    if match is None:
        shown = f"{name[:40]!r} and a value" if colon else "no colon"
        raise BadInputError(f"{where}: must be 'Name: value' in one line, got {shown}")
    if match["name"].lower() in OURS - {"host"}:
        raise BadInputError(f"{where}: {name}: the load generator sets it itself")
    return match["name"], match["value"].strip()


def parse_body(text: str | None) -> bytes:
    """Body from `--data`; `@file` stands for the bytes of a file. Raises `BadInputError`."""
    if text is None:
        return b""
    data = bytes_of(text[1:], "--data") if text.startswith("@") else text.encode(errors="surrogateescape")
    return checked_body(data, "--data")


def checked_body(data: bytes, where: str) -> bytes:
    """Check the length of a body. Raises `BadInputError`."""
    if len(data) > LARGEST_BODY:
        raise BadInputError(f"{where}: must have at most {LARGEST_BODY >> 20} MiB")
    return data


def bytes_of(path: str, option: str) -> bytes:
    """Content of a file, one byte more than allowed at most. Raises `BadInputError`."""
    try:
        with Path(path).open("rb") as file:
            return file.read(LARGEST_BODY + 1)
    except (OSError, ValueError) as error:  # a NUL in the path
        problem = getattr(error, "strerror", None) or error
        raise BadInputError(f"{option}: {path[:200]!r} cannot be read: {problem}") from None


def tls_of(
    target: ProbeTarget, cacert: Path | None, is_insecure: bool, is_http2: bool = False
) -> GeneratorTls | None:
    """TLS settings for a target, None for plain HTTP. Raises `BadInputError`."""
    if not target.is_tls:
        return None
    context = ssl.create_default_context()
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
    context.set_alpn_protocols(["h2" if is_http2 else "http/1.1"])
    return GeneratorTls(context, target.host)


async def reach(
    target: ProbeTarget,
    tls: GeneratorTls | None,
    messages: Sequence[Message],
    timeout: float,
    is_http2: bool = False,
) -> Destination:
    """Open and close one connection, to learn which address answers. Raises `ServiceUnreachable`.

    The name is not resolved again: all requests of the load go to this address.
    """
    requests = tuple(message.for_target(target, is_http2) for message in messages)
    whole = sum(message.weight for message in messages)
    port = urlsplit(target.origin).port or (443 if target.is_tls else 80)
    owner = Http2Owner()

    def made() -> Connection:
        return Http2Connection(owner) if is_http2 else GeneratorConnection(owner)

    try:
        connection = await open_connection(made, target.host, port, timeout, tls)
    except NotConnected as error:
        hint = "; see --cacert and --insecure" if error.is_certificate else ""
        raise ServiceUnreachable(f"{target.origin}: {one_line(error.reason)}{hint}") from None
    peer = connection.transport.get_extra_info("peername")
    connection.close()
    address = (target.host, 0) if is_unix(target) else peer[:2]
    shares = tuple(message.weight / whole for message in messages)
    return Destination(address, tls, requests, shares, is_http2)
