"""Fields of requests and responses that the access log asks for: taken from the heads when a request ends.

Nothing here is called unless `log.fields`, or the format, names such a field.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

from balancer.http.h1.fields import found, lines_of
from balancer.log.formats import Extra

VALUE_LIMIT: Final = 2048
"""Bytes of a field that are kept, all its lines together."""

NONE: Final[Mapping[bytes, bytes]] = {}


class ChosenFields:
    """The names of fields, in lower case, that are taken from requests and from responses."""

    def __init__(self, of_request: Iterable[bytes], of_response: Iterable[bytes]) -> None:
        self._of_request = _lines(of_request)
        self.of_response = _lines(of_response)

    def extra(self, head: bytes, response: bytes, route: str = "") -> Extra:
        """Return what an entry has beside its own values; `head` is that of the request, `response` the fields of the
        response, b"" without one.
        """
        return Extra(route, _values(self._of_request, head), _values(self.of_response, response))


def _lines(names: Iterable[bytes]) -> re.Pattern[bytes] | None:
    parts = sorted({re.escape(name) for name in names})
    return lines_of(b"|".join(parts)) if parts else None


def _values(lines: re.Pattern[bytes] | None, block: bytes) -> Mapping[bytes, bytes]:
    """Return the values of fields by name; those of several lines are joined as one list (RFC 9110 § 5.3)."""
    if lines is None or not block:
        return NONE
    values: dict[bytes, bytes] = {}
    for name, value, _ in found(lines, block):
        before = values.get(name)
        values[name] = (value if before is None else b"%b, %b" % (before, value))[:VALUE_LIMIT]
    return values
