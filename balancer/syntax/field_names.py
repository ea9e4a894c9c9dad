"""Names of header fields that an application may confuse. Pure."""

from __future__ import annotations

from typing import Final

SIGNS: Final = "!#$%&'*+.^_`|~"
"""Characters of a field name besides letters, digits and hyphens."""

_AS_HYPHENS: Final = bytes.maketrans(SIGNS.encode(), b"-" * len(SIGNS))


def in_cgi(name: bytes) -> bytes:
    """Replace every sign in a field name by a hyphen.

    Names that are equal afterwards may be one variable to an application: CGI and WSGI turn hyphens into underscores
    (RFC 3875 § 4.1.18), and some servers turn all signs.
    """
    return name.translate(_AS_HYPHENS)
