"""Request keys for hashing, and session affinity (sticky sessions): read the key from a request, set the affinity
cookie on a response.

The objects here exist only while the configuration asks for a key or enables stickiness. The cookie holds a keyed hash
of the endpoint's id: without the key it reveals no endpoint and cannot be forged; an unknown token matches no endpoint.
"""

from __future__ import annotations

import re
from hashlib import blake2b

from balancer.config.schema.sticky import KeyConfig, StickyConfig
from balancer.http.h1.client import Client
from balancer.http.h1.fields import CookieSearch, only_value_of
from balancer.http.h1.request_head import KeyOf, Request
from policies.policy import Policy
from policies.routing.affinity import ByRendezvous, ByToken, Placement, Sticky, StickyCounts

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
    return _in_cookie(name, _OF_COOKIE) if config.by == "cookie" else _in_field(name)


def _in_cookie(name: bytes, value: bytes) -> KeyOf:
    search = CookieSearch(name, value).search

    def key(request: Request, client: Client) -> str | None:
        match = search(request.raw)
        return match[1].rstrip(b" \t").decode("latin-1") if match is not None else None

    return key


def _in_field(name: bytes) -> KeyOf:
    value_in = only_value_of(name)

    def key(request: Request, client: Client) -> str | None:
        value = value_in(request.raw)
        return None if value is None else value.decode("latin-1")

    return key


def _path(request: Request, client: Client) -> str | None:
    return request.target.partition(b"?")[0].decode("latin-1")


def client_address(request: Request, client: Client) -> str | None:
    """Return the peer's address, or from a trusted proxy the first X-Forwarded-For address, which the client may have
    written."""
    match = _FORWARDED_FOR(request.raw) if client.is_trusted else None
    return (match[1] if match is not None else client.address).decode("latin-1")


TOKEN_BYTES = 12
"""Bytes of the keyed hash in a cookie: two endpoints collide once in 10^14 pairs, and it cannot be guessed."""

_TOKEN = rb"([0-9a-f]{%d})(?=[ \t]*(?:;|$))" % (2 * TOKEN_BYTES)
"""The affinity token among a request's cookies."""


class Stickiness:
    """Session affinity by cookie or by request field, as configured."""

    def __init__(self, config: StickyConfig) -> None:
        self._config = config
        self._secret = config.key.get_secret_value().encode() if config.key is not None else b""
        name = (config.cookie or config.header or "").encode()
        self.key_of = _in_cookie(name, _TOKEN) if config.cookie else _in_field(name)
        self._attributes = _attributes(config)

    def around(self, policy: Policy, counts: StickyCounts) -> Policy:
        """Wrap `policy` in a sticky one; requests without an affinity key are still placed by `policy`."""
        placement: Placement = ByToken(self._token) if self._config.cookie else ByRendezvous()
        return Sticky(policy, placement, counts)

    def cookie(self, request: Request, client: Client, endpoint_id: str) -> bytes:
        """Return the Set-Cookie line for a response of this endpoint, b"" if the client has that cookie already."""
        token = self._token(endpoint_id)
        if request.key_by(self.key_of, client) == token:
            return b""
        is_secure = client.proto == b"https" if self._config.secure is None else self._config.secure
        line = f"Set-Cookie: {self._config.cookie}={token}{self._attributes}{'; Secure' if is_secure else ''}\r\n"
        return line.encode()

    def _token(self, endpoint_id: str) -> str:
        key = blake2b(
            self._secret, digest_size=32
        ).digest()  # hashed, because BLAKE2b limits the length of its key
        return blake2b(endpoint_id.encode(), key=key, digest_size=TOKEN_BYTES).hexdigest()


def _attributes(config: StickyConfig) -> str:
    age = f"; Max-Age={config.max_age}" if config.max_age is not None else ""
    return f"; Path=/; HttpOnly; SameSite={config.same_site.capitalize()}{age}"
