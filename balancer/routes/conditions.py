"""What conditions of routes ask about one request: each answer is found at most once, if a route asks."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address
from typing import Final
from urllib.parse import unquote_to_bytes

from balancer.errors import AmbiguousPath
from balancer.http.h1.client import Client
from balancer.http.h1.fields import Values, found, lines_of
from balancer.http.h1.request_head import Request
from balancer.rate_limits.request_source import MAX_NODE_BYTES, Trusts, address_of
from balancer.syntax.networks import parsed

ANY: Final = b"*"
"""A condition that any value meets."""

NO_VALUES: Final[list[bytes]] = []

_NO_LINES: Final = re.compile(rb"\n(:):()")
"""Matches no head: no name of a field begins with a colon."""

Lines = re.Pattern[bytes]


class Asked:
    """One request, as conditions see it. `lines` finds all fields that a route asks for."""

    def __init__(self, lines: Lines, request: Request, client: Client, trusts: Trusts) -> None:
        self.request = request
        self._lines = lines
        self._client = client
        self._trusts = trusts
        self._fields: Values | None = None
        self._parameters: Values | None = None
        self._address: IPv4Address | IPv6Address | None = None
        self._has_address = False

    def values_of(self, name: bytes, *, in_query: bool) -> list[bytes]:
        """Return all values of a field, whose name is in lower case, or of a parameter of the query."""
        if in_query:
            values = self._parameters
            if values is None:
                self._parameters = values = parameters_of(self.request.target)
        else:
            values = self._fields
            if values is None:
                self._fields = values = {}
                for found_name, value, _ in found(self._lines, self.request.head):
                    values.setdefault(found_name, []).append(value)
        return values.get(name, NO_VALUES)

    @property
    def address(self) -> IPv4Address | IPv6Address | None:
        """The client's address: of a trusted proxy's request, the one that it states."""
        if not self._has_address:
            self._has_address = True
            address = address_of(self.request, self._client, self._trusts)
            self._address = parsed_address(address) if len(address) <= MAX_NODE_BYTES else None
        return self._address


MAX_PARAMETERS: Final = 64
"""Parameters of a query that routes are compared with: each costs a hundredth of a short request."""


@lru_cache(maxsize=4096)
def parsed_address(address: bytes) -> IPv4Address | IPv6Address | None:
    return parsed(address.decode("latin-1"))


def parameters_of(target: bytes) -> Values:
    """Return the parameters of a target's query, decoded as those of forms are (WHATWG URL § 5.1). Raises
    `AmbiguousPath` for more than `MAX_PARAMETERS`: to ignore some would be a way around routes.
    """
    values: Values = {}
    query = target.partition(b"?")[2]
    if query.count(b"&") >= MAX_PARAMETERS:
        raise AmbiguousPath(f"the query has more than {MAX_PARAMETERS} parameters")
    is_plain = b"%" not in query and b"+" not in query
    for pair in query.split(b"&"):
        name, _, value = pair.partition(b"=")
        if not is_plain:
            name, value = _decoded(name), _decoded(value)
        values.setdefault(name, []).append(value)
    return values


def _decoded(text: bytes) -> bytes:
    return unquote_to_bytes(text.replace(b"+", b" "))


class Condition:
    """A field or a parameter of the query that a request must have, with the value `wanted` or any if that is `ANY`."""

    def __init__(self, name: str, wanted: str, *, in_query: bool) -> None:
        self.name = name.encode() if in_query else name.lower().encode()
        self.wanted = wanted.encode()
        self.in_query = in_query

    def holds(self, asked: Asked) -> bool:
        values = asked.values_of(self.name, in_query=self.in_query)
        return bool(values) if self.wanted == ANY else self.wanted in values


def lines_asked_for(conditions: Iterable[Condition]) -> Lines:
    """Return an expression for the lines of all fields that are asked for."""
    names = {re.escape(one.name) for one in conditions if not one.in_query}
    return lines_of(b"|".join(sorted(names))) if names else _NO_LINES
