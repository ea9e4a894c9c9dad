"""aiohttp through `balancer sidecar`, and straight to the origin while the sidecar is away.

    async with aiohttp.ClientSession() as session:
        response = await ask(session, "GET", "https://api.pay.example/v1/charges")

What may have been done is not asked for twice, unless that comes to the same. `data` is bytes, text or a form: what
can be sent once only cannot be sent again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import aiohttp
from yarl import URL

SIDECAR = "http://127.0.0.1:8081"
MARKER = "Steelyard-Sidecar"
IDEMPOTENT = frozenset({"GET", "HEAD", "OPTIONS", "PUT", "DELETE"})


async def ask(
    session: aiohttp.ClientSession,
    method: str,
    url: str,
    *,
    headers: Mapping[str, str] | None = None,
    sidecar: str = SIDECAR,
    **options: Any,
) -> aiohttp.ClientResponse:
    """The response of an origin that the sidecar knows. `options` are those of `ClientSession.request`."""
    origin, is_idempotent = URL(url), method in IDEMPOTENT
    aside = URL(sidecar + origin.raw_path_qs, encoded=True)
    with_host = {**(headers or {}), "Host": origin.authority}
    try:
        response = await session.request(method, aside, headers=with_host, **options)
    except aiohttp.ClientConnectorError:
        pass  # nobody has heard of it
    except aiohttp.ClientConnectionError:
        if not is_idempotent:
            raise
    else:
        told = response.headers.get(MARKER)  # on the sidecar's own errors, and on nobody else's
        if response.status not in (502, 503) or not (told == "unsent" or (told and is_idempotent)):
            return response
        response.release()
    return await session.request(method, origin, headers=headers, **options)
