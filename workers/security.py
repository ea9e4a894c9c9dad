"""TLS contexts of a worker: one protocol version, with or without session resumption, and a certificate.

A context remembers sessions, so a worker without resumption has a new context for each connection; OpenSSL would
otherwise resume TLS 1.2 sessions from its own cache, even without tickets.

Unless one is given, the certificate is made by the `openssl` program and not kept. The program is available wherever
Python's `ssl` is; a library that makes certificates would be a dependency of every installation.
"""

from __future__ import annotations

import ssl
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

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


PROGRAM = "openssl"
PATIENCE = 30.0  # seconds

_REQUEST = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"]
_SUBJECT = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost"]


def certificate_in(folder: Path) -> Path:
    """Write a new P-256 key and a self-signed certificate for 127.0.0.1 to one PEM file. Raises CannotCertify."""
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
