"""Client-Cert and Client-Cert-Chain: fields that give workers the certificate of a client (RFC 9440); its expiry."""

from __future__ import annotations

import _ssl
import ssl
from base64 import b64encode
from datetime import UTC, datetime
from typing import Any, Final, Literal

CertificateFields = Literal["off", "leaf", "chain"]

LEAF: Final = b"Client-Cert: %b\r\n"
CHAIN: Final = b"Client-Cert-Chain: %b\r\n"


def certificate_fields(tls: ssl.SSLObject, which: CertificateFields) -> bytes | None:
    """Return the lines for the requests of a connection: b"" if the client has shown no certificate, None if they are
    off."""
    if which == "off":
        return None
    leaf = tls.getpeercert(binary_form=True)
    if leaf is None:
        return b""
    others = _chain(tls)[1:] if which == "chain" else []
    return LEAF % _item(leaf) + (CHAIN % b", ".join(map(_item, others)) if others else b"")


def has_expired(tls: ssl.SSLObject) -> bool:
    """Return whether the client's certificate has expired, which a handshake that resumes a session does not check."""
    certificate, now = tls.getpeercert(), datetime.now(UTC).timestamp()
    return bool(certificate and ssl.cert_time_to_seconds(str(certificate["notAfter"])) < now)


def _item(certificate: bytes) -> bytes:
    """Return a byte sequence as structured fields have it (RFC 8941 § 3.3.5)."""
    return b":%b:" % b64encode(certificate)


def _chain(tls: Any) -> list[bytes]:
    """Return the certificates from the client's to an authority. Before Python 3.13 `ssl` has no method for them, and
    the object within it does."""
    within = tls._sslobj
    chain = (
        within.get_verified_chain() or within.get_unverified_chain() or []
    )  # a session has only the latter
    return [certificate.public_bytes(_ssl.ENCODING_DER) for certificate in chain]
