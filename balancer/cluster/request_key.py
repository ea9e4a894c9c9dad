"""Request key for hashing and affinity: a field, a cookie, the path, or the client's address.

Made only where the configuration asks for a key; otherwise a request pays one attribute test.
"""

from __future__ import annotations

import re

from balancer.config.schema.sticky import KeyConfig
from balancer.http.h1.client import Client
from balancer.http.h1.cookies import CookieSearch
from balancer.http.h1.fields import Find, first_value_of
from balancer.http.h1.request_head import KeyOf, Request

_FORWARDED_FOR = re.compile(rb"\n(?i:x-forwarded-for):[ \t]*([^\r, \t]+(?:[ \t]+[^\r, \t]+)*)").search
"""The first address of X-Forwarded-For: the client as the first proxy saw it."""

_OF_COOKIE = rb"[ \t]*([^; \t][^;]*)"
"""The value of a cookie that is not empty, with white space behind it."""


def key_of(config: KeyConfig) -> KeyOf | None:
    """Return the key function for a configuration, None if requests have no key."""
    if config.by == "path":
        return _path
    if config.by == "client":
        return client_address
    if config.by is None or config.name is None:
        return None
    name = config.name.encode()
    is_cookie = config.by == "cookie"
    return _found(CookieSearch(name, _OF_COOKIE).search if is_cookie else first_value_of(name).search)


def _found(search: Find) -> KeyOf:
    def key(request: Request, client: Client) -> str | None:
        match = search(request.raw)
        return match[1].rstrip(b" \t").decode("latin-1") if match is not None else None

    return key


def _path(request: Request, client: Client) -> str | None:
    return request.target.partition(b"?")[0].decode("latin-1")


def client_address(request: Request, client: Client) -> str | None:
    """Return the peer's address, or from a trusted proxy the first X-Forwarded-For address, which the client may have
    written."""
    match = _FORWARDED_FOR(request.raw) if client.is_trusted else None
    return (match[1] if match is not None else client.address).decode("latin-1")
