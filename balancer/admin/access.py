"""Who may use the control plane: judged before a request's body is read.

- A request on the port that serves traffic needs the token: every proxy before that port, and every page that a worker
  serves through it, looks like this machine or shares its origin. Only the probes are for everybody.
- A request on the control socket is this user's, by the permissions of the file.
- A request on `control.listen` is this machine's. A browser on it must not be led there by another site.

With a token configured all three need it.
"""

from __future__ import annotations

import hmac
from enum import Enum
from typing import Final

from balancer.downstream.networks import is_this_machine, parsed
from balancer.http1.fields import Values, any_of, found, lines_of

FORWARDING_FIELDS: Final = (b"x-forwarded-for", b"forwarded", b"via", b"x-real-ip")

_FIELDS: Final = lines_of(
    any_of(
        ("authorization", "host", "origin", "sec-fetch-site", *(name.decode() for name in FORWARDING_FIELDS))
    )
)


class Entrance(Enum):
    """Where a control request came in."""

    TRAFFIC = "traffic"
    SOCKET = "socket"
    LISTEN = "listen"
    PROCESS = "process"


def is_admitted(head: bytes, entrance: Entrance, token: bytes | None) -> bool:
    """Whether a request with this head may go on. A field that should stand once and stands twice is none."""
    values: Values = {}
    for name, value, _ in found(_FIELDS, head[head.find(b"\r\n") : -2]):
        values.setdefault(name, []).append(value)
    if token is not None:
        return has_token(values.get(b"authorization", []), token)
    return entrance is Entrance.LISTEN and is_from_this_machine(values)


def has_token(authorization: list[bytes], token: bytes) -> bool:
    """Whether there is one field `Authorization: Bearer TOKEN` with that token."""
    if len(authorization) != 1:
        return False
    scheme, _, given = authorization[0].partition(b" ")
    return scheme.lower() == b"bearer" and hmac.compare_digest(given.strip(), token)


def is_from_this_machine(values: Values) -> bool:
    """Whether a request on a loopback address was sent by a program on this machine on its own behalf.

    A proxy speaks for others. A browser may have been led here under another site's name (DNS rebinding), or be sent
    here by another site's page: browsers then name that site in Origin (Fetch § 3.2), or say so in Sec-Fetch-Site.
    """
    if any(name in values for name in FORWARDING_FIELDS):
        return False
    (host, *more) = values.get(b"host", [b""])
    if more or any(value.partition(b"://")[2] != host for value in values.get(b"origin", [])):
        return False
    if any(value not in (b"none", b"same-origin") for value in values.get(b"sec-fetch-site", [])):
        return False
    name = host_name(host.decode("latin-1"))
    return is_this_machine(name) or parsed(name) is not None


def host_name(host: str) -> str:
    """The name or address in a Host field, without port and brackets."""
    if host.startswith("["):
        name, bracket, _ = host[1:].partition("]")
        return name if bracket else ""
    return host.partition(":")[0]
