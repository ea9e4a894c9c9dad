"""Who may use the control plane: judged before a request's body is read.

- A request on the port that serves traffic needs the token: every proxy before that port, and every page that a worker
  serves through it, looks like this machine or shares its origin. Only the probes are for everybody.
- A request on the control socket is this user's, by the permissions of the file.
- A request on `control.listen` is this machine's. A browser on it must not be led there by another site.

With a token configured all three need it.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from enum import Enum

from balancer.clients.networks import is_this_machine, parsed

FORWARDING_FIELDS = ("X-Forwarded-For", "Forwarded", "Via", "X-Real-IP")


class Entrance(Enum):
    """Where a control request came in."""

    TRAFFIC = "traffic"
    SOCKET = "socket"
    LISTEN = "listen"
    PROCESS = "process"


def has_token(authorization: bytes | None, token: bytes | None) -> bool:
    """Whether a field `Authorization: Bearer TOKEN` gives the token that is configured."""
    if authorization is None or token is None:
        return False
    scheme, _, given = authorization.partition(b" ")
    return scheme.lower() == b"bearer" and hmac.compare_digest(given.strip(), token)


def is_from_this_machine(fields: Mapping[str, str]) -> bool:
    """Whether a request on a loopback address was sent by a program on this machine on its own behalf.

    A proxy speaks for others. A browser may have been led here under another site's name (DNS rebinding), or be sent
    here by another site's page: browsers then name that site in Origin (Fetch § 3.2), or say so in Sec-Fetch-Site.
    """
    if any(name in fields for name in FORWARDING_FIELDS):
        return False
    host = fields.get("Host", "")
    if fields.get("Origin", f"://{host}").partition("://")[2] != host:
        return False
    if fields.get("Sec-Fetch-Site", "none") not in ("none", "same-origin"):
        return False
    name = host_name(host)
    return is_this_machine(name) or parsed(name) is not None


def host_name(host: str) -> str:
    """The name or address in a Host field, without port and brackets."""
    if host.startswith("["):
        name, bracket, _ = host[1:].partition("]")
        return name if bracket else ""
    return host.partition(":")[0]
