"""Access control of the admin interface, decided from a request's head before its body is read.

- On the traffic port an admin request needs the token: a proxy in front of that port connects from an address that may
  be this machine's, and a page that a worker serves through it shares its origin. Only the liveness and readiness
  checks are open.
- On the admin socket the file's permissions admit this user alone.
- On `admin.listen` requests from this machine are admitted, unless another site has led a browser there.

With a token configured, all three need it.
"""

from __future__ import annotations

import hmac
from enum import Enum
from typing import Final

from balancer.http.h1.fields import Values, any_of, found, lines_of
from balancer.syntax.networks import is_this_machine, parsed
from balancer.syntax.urls import host_in

BODY_LIMIT: Final = 1 << 20
"""Size limit of an admin request's body in bytes; the body is buffered completely before the hand-over."""

LIVE: Final = b"/-/live"
READY: Final = frozenset((b"/-/ready", b"/-/health"))
"""Paths for load balancers and orchestrators: answered without a token, with a boolean and one
of four reasons. An admitted request for READY gets the numbers of endpoints, too."""

PAGE: Final = b"/-/"
"""Path of the live page. With a token, `admin.listen` serves it without: a browser cannot send the token before a page
has asked for it, and the page holds nothing but its code. The traffic port does not: a page of a worker shares that
port's origin, and could read a token that is typed there.
"""

FORWARDING_FIELDS: Final = (b"x-forwarded-for", b"forwarded", b"via", b"x-real-ip")

_FIELDS: Final = lines_of(
    any_of(
        ("authorization", "host", "origin", "sec-fetch-site", *(name.decode() for name in FORWARDING_FIELDS))
    )
)


class Entrance(Enum):
    """Entrance of an admin request: the socket on which it arrived."""

    TRAFFIC = "traffic"
    SOCKET = "socket"
    LISTEN = "listen"
    PROCESS = "process"


def is_admitted(head: bytes, entrance: Entrance, token: bytes | None) -> bool:
    """Return whether a request with this head is admitted; a field that is allowed once and occurs twice counts as
    absent.
    """
    values: Values = {}
    target = head.split(b" ", 2)[1]
    for name, value, _ in found(_FIELDS, head[head.find(b"\r\n") : -2]):
        values.setdefault(name, []).append(value)
    if token is not None:
        return has_token(values.get(b"authorization", []), token)
    if not target.startswith(b"/"):  # the authority of an absolute target replaces Host (RFC 9112 § 3.2.2)
        values[b"host"] = [target.partition(b"://")[2].partition(b"/")[0].partition(b"?")[0]]
    return entrance is Entrance.LISTEN and is_from_this_machine(values)


def has_token(authorization: list[bytes], token: bytes) -> bool:
    """Return whether there is exactly one `Authorization: Bearer TOKEN` field and it has that token."""
    if len(authorization) != 1:
        return False
    scheme, _, given = authorization[0].partition(b" ")
    return scheme.lower() == b"bearer" and hmac.compare_digest(given.strip(), token)


def is_from_this_machine(values: Values) -> bool:
    """Return whether a request on a loopback address was sent by a local program on its own behalf.

    A request with forwarding fields is refused. So is one of a browser that was led here under another site's name (DNS
    rebinding) or sent here by another site's page: browsers name that site in Origin (Fetch § 3.2) or report it in
    Sec-Fetch-Site.
    """
    if any(name in values for name in FORWARDING_FIELDS):
        return False
    (host, *more) = values.get(b"host", [b""])
    if more or any(value.partition(b"://")[2] != host for value in values.get(b"origin", [])):
        return False
    if any(value not in (b"none", b"same-origin") for value in values.get(b"sec-fetch-site", [])):
        return False
    name = host_in(host).strip(b"[]").decode("latin-1")
    return is_this_machine(name) or parsed(name) is not None
