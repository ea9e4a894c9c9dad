"""TLS contexts of a worker: one protocol version, with or without session resumption.

A context remembers sessions, so a worker without resumption has a new context for each connection; OpenSSL would
otherwise resume TLS 1.2 sessions from its own cache, even without tickets.
"""

from __future__ import annotations

import ssl
import tempfile
from collections.abc import Callable
from pathlib import Path

from workers.certificates import certificate_in
from workers.errors import CannotCertify
from workers.settings import Settings

VERSIONS = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}
ContextFactory = Callable[[], ssl.SSLContext]


def contexts_of(settings: Settings) -> ContextFactory | None:
    """Return the factory of the context for each connection; None without TLS. Raises CannotCertify."""
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
