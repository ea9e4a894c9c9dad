"""DNS names of a certificate's subjectAltName (RFC 5280 § 4.2.1.6), to select certificates by SNI, and its end.

It parses only as much ASN.1 as these two need and does not validate: the certificate is the operator's own, and
OpenSSL validates it. Malformed input raises `ValueError`. Pure: no I/O.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

_SEQUENCE, _OCTETS, _OBJECT_ID, _EXTENSIONS, _DNS_NAME = 0x30, 0x04, 0x06, 0xA3, 0x82
_GENERALIZED_TIME = 0x18
_SUBJECT_ALT_NAME = bytes((0x55, 0x1D, 0x11))  # 2.5.29.17


def dns_names(certificate: bytes) -> list[str]:
    """DNS names of a certificate (DER), in lower case, wildcards unexpanded. Raises `ValueError`."""
    names: list[str] = []
    for extension in _extensions(certificate):
        parts = dict(_elements(extension))
        if parts.get(_OBJECT_ID) == _SUBJECT_ALT_NAME:
            general_names = _first(_SEQUENCE, parts.get(_OCTETS, b""))
            names += [
                value.decode("ascii").lower() for tag, value in _elements(general_names) if tag == _DNS_NAME
            ]
    return names


def expiry(certificate: bytes) -> datetime:
    """Return the last second at which a certificate (DER) is valid (RFC 5280 § 4.1.2.5). Raises `ValueError`."""
    to_be_signed = _first(_SEQUENCE, _first(_SEQUENCE, certificate))
    # the signature's algorithm, the issuer, the validity
    validity = [value for tag, value in _elements(to_be_signed) if tag == _SEQUENCE][2:3]
    times = [*_elements(b"".join(validity))]
    if len(times) != 2:
        raise ValueError("not a certificate")
    tag, text = times[1][0], times[1][1].decode("ascii")
    century = "" if tag == _GENERALIZED_TIME else "19" if text >= "50" else "20"
    return datetime.strptime(century + text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC)


def is_named(host: str, name: str) -> bool:
    """Whether `name`, which may be a wildcard for one label, matches `host` (RFC 6125 § 6.4.3)."""
    if name.startswith("*."):
        label, _, domain = host.partition(".")
        return bool(label) and domain == name[2:]
    return host == name


def _extensions(certificate: bytes) -> Iterator[bytes]:
    to_be_signed = _first(_SEQUENCE, _first(_SEQUENCE, certificate))
    for tag, value in _elements(to_be_signed):
        if tag == _EXTENSIONS:
            yield from (extension for _, extension in _elements(_first(_SEQUENCE, value)))


def _first(tag: int, data: bytes) -> bytes:
    found, value = next(_elements(data), (0, b""))
    if found != tag:
        raise ValueError("not a certificate")
    return value


def _elements(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Tag and value of each ASN.1 element in `data` (X.690 § 8.1). Raises `ValueError`."""
    at = 0
    while at < len(data):
        if at + 2 > len(data):
            raise ValueError("not a certificate")
        tag, size, start = data[at], data[at + 1], at + 2
        if size & 0x80:
            start += size & 0x7F
            size = int.from_bytes(data[at + 2 : start], "big")
        at = start + size
        if at > len(data):
            raise ValueError("not a certificate")
        yield tag, data[start:at]
