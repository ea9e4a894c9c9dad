"""The Host that the requests to an endpoint have: the client's, that of its address, or a name.

An app behind an ingress that serves many names, as those of Heroku and Cloud Run, is found by its Host.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated, Final
from urllib.parse import urlsplit

from pydantic import AfterValidator

from balancer.syntax.networks import parsed
from balancer.syntax.urls import is_authority

CLIENT: Final = "client"
ADDRESS: Final = "address"
_PORTS: Final = {"http": 80, "https": 443}


def _checked(value: str, others: str = "") -> str:
    if not (value.isascii() and is_authority(value.encode())):
        raise ValueError(
            f"must be {others}a name such as app.example.org, with or without a port, got {value!r}"
        )
    return value


HostName = Annotated[str, AfterValidator(_checked)]
WorkerHost = Annotated[str, AfterValidator(partial(_checked, others='"client", "address" or '))]


def sent_host(wanted: str | None, origin: str) -> str:
    """Return the Host of requests to the server at `origin`; "": the client's. `wanted`: the key, None: by default."""
    if wanted is None:
        wanted = ADDRESS if tls_name(origin) else CLIENT
    if wanted == CLIENT:
        return ""
    return authority_of(origin) if wanted == ADDRESS else wanted


def authority_of(origin: str) -> str:
    """Return the Host of a server's own URL, without the default port; that of a Unix socket is localhost."""
    url = urlsplit(origin)
    host = url.hostname or "localhost"
    if not host.isascii():
        host = host.encode("idna").decode()
    host = f"[{host}]" if ":" in host else host
    return host if url.port in (None, _PORTS.get(url.scheme)) else f"{host}:{url.port}"


def tls_name(origin: str) -> str:
    """Return the DNS name of a server with an https address, "" if there is none."""
    url = urlsplit(origin)
    host = url.hostname or ""
    return host if url.scheme == "https" and parsed(host) is None else ""
