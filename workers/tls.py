"""TLS at the worker's end of the link, and its contexts: one protocol version, and a certificate.

The handshake's flights are bytes that cross the link like any others, so each takes half a round trip. With R the round
trip: TLS 1.2 adds 2R to a new connection, 1R if a session is resumed, TLS 1.3 adds 1R.

An event loop's own TLS needs a transport of the loop, which the far end of a link is not: so this uses the `ssl`
module's memory BIOs. A control request (`/-/`) may be sent in plain HTTP on the same port: the link must recognise it
to let it bypass the delay.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from workers.errors import CannotCertify
from workers.link import is_control
from workers.settings import Settings

VERSIONS = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}
ContextFactory = Callable[[], ssl.SSLContext]


def contexts_of(settings: Settings) -> ContextFactory | None:
    """Return the factory of the context for each connection; None without TLS. Raises CannotCertify.

    A context remembers sessions, so a worker without resumption has a new one for each connection; OpenSSL would
    otherwise resume TLS 1.2 sessions from its own cache, even without tickets.
    """
    if settings.tls is None:
        return None
    with tempfile.TemporaryDirectory(prefix="steelyard-") as folder:
        given = settings.certificate
        pem = (given if given is not None else certificate_in(Path(folder))).absolute()
        first = _context(settings, pem)
        if settings.resumption:
            return lambda: first
        text = pem.read_bytes()
    return lambda: _context_of_text(settings, text)


def _context_of_text(settings: Settings, text: bytes) -> ssl.SSLContext:
    with tempfile.NamedTemporaryFile(prefix="steelyard-", suffix=".pem") as file:  # ssl reads files only
        file.write(text)
        file.flush()
        return _context(settings, Path(file.name))


def _context(settings: Settings, pem: Path) -> ssl.SSLContext:
    assert settings.tls is not None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = context.maximum_version = VERSIONS[settings.tls]
    context.set_alpn_protocols(["h2", "http/1.1"] if settings.http == "2" else ["http/1.1"])
    if not settings.resumption:
        context.options |= ssl.OP_NO_TICKET
        context.num_tickets = 0
    try:
        context.load_cert_chain(pem)
    except (OSError, ssl.SSLError) as error:
        reason = getattr(error, "strerror", None) or getattr(error, "reason", None) or str(error)
        raise CannotCertify(f"{pem}: {reason}; it must hold a certificate and its key, as PEM") from None
    return context


PROGRAM = "openssl"
PATIENCE = 30.0  # seconds

_REQUEST = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"]
_SUBJECT = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost"]


def certificate_in(folder: Path) -> Path:
    """Write a new P-256 key and a self-signed certificate for 127.0.0.1 to one PEM file. Raises CannotCertify.

    The `openssl` program is available wherever Python's `ssl` is; a library that makes certificates would be a
    dependency of every installation.
    """
    key, certificate, both = (folder / f"{name}.pem" for name in ("key", "certificate", "both"))
    argv = [PROGRAM, *_REQUEST, *_SUBJECT, "-keyout", str(key), "-out", str(certificate)]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=PATIENCE)
    except (OSError, subprocess.TimeoutExpired):
        raise CannotCertify(f"no program '{PROGRAM}' that makes one; give one with --certificate") from None
    if done.returncode:
        raise CannotCertify(done.stderr.strip()[-200:])
    both.write_text(
        certificate.read_text(encoding="ascii") + key.read_text(encoding="ascii"), encoding="ascii"
    )
    return both


Buffer = bytes | bytearray | memoryview
READ_SIZE = 1 << 16


class TlsConnection(asyncio.Protocol, asyncio.Transport):
    """Decrypts and encrypts for `protocol`, whose plain transport it is."""

    def __init__(self, contexts: ContextFactory, protocol: asyncio.Protocol) -> None:
        super().__init__()
        self._protocol = protocol
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._context = contexts()
        self._tls = self._context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._is_plain: bool | None = None
        self._handshake_done = self._is_over = False

    # ── from the client ──────────────────────────────────────────────────────────────────────────────────

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._protocol.connection_made(self)

    def data_received(self, data: bytes) -> None:
        if self._is_plain is None:
            self._is_plain = is_control(data) is not None
        if self._is_plain:
            self._protocol.data_received(data)
            return
        self._incoming.write(data)
        try:
            self._advance()
        except ssl.SSLWantReadError:
            self._flush()
        except ssl.SSLError:
            self._flush()  # sends the alert with the reason
            self._transport.close()

    def eof_received(self) -> bool | None:
        return self._protocol.eof_received() if self._is_plain else False

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_over = True
        self._protocol.connection_lost(exc)

    def pause_writing(self) -> None:
        self._protocol.pause_writing()

    def resume_writing(self) -> None:
        self._protocol.resume_writing()

    def _advance(self) -> None:
        """Process what has arrived. Raises SSLWantReadError when it needs more data."""
        if not self._handshake_done:
            self._tls.do_handshake()
            self._handshake_done = True
            self._flush()
        while data := self._tls.read(READ_SIZE):
            self._protocol.data_received(data)
        if not self._is_over:  # the client has sent close_notify
            self._protocol.eof_received()
            self.close()

    # ── the transport of `protocol` ──────────────────────────────────────────────────────────────────────

    def write(self, data: Buffer) -> None:
        """Encrypt and send; one write is one packet, if it fits."""
        if self._is_over:
            return
        if self._is_plain:
            self._transport.write(data)
            return
        view = memoryview(data)
        while view:
            view = view[self._tls.write(view) :]
        self._flush()

    def close(self) -> None:
        """Send close_notify, and close the client's transport."""
        if self._is_over:
            return
        self._is_over = True
        if self._handshake_done:
            with contextlib.suppress(ssl.SSLError):  # without waiting for the client's close_notify
                self._tls.unwrap()
            self._flush()
        self._transport.close()

    def abort(self) -> None:
        self._is_over = True
        self._transport.abort()

    def is_closing(self) -> bool:
        return self._is_over or self._transport.is_closing()

    def pause_reading(self) -> None:
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        self._transport.resume_reading()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if not self._is_plain and name in ("sslcontext", "ssl_object"):
            return self._context if name == "sslcontext" else self._tls
        return self._transport.get_extra_info(name, default)

    def _flush(self) -> None:
        if self._outgoing.pending:
            self._transport.write(self._outgoing.read())
