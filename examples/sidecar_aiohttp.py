"""aiohttp through `balancer sidecar`, and directly to the origin while the sidecar is unavailable.

    async with aiohttp.ClientSession() as session:
        response = await ask(session, "GET", "https://api.pay.example/v1/charges")

A request that may have been executed is not repeated unless it is idempotent. `data` is bytes, text or a form: a
stream cannot be sent again.
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
    """Return the response of an origin of the sidecar. `options` are those of `ClientSession.request`."""
    origin, is_idempotent = URL(url), method in IDEMPOTENT
    aside = URL(sidecar + origin.raw_path_qs, encoded=True)
    with_host = {**(headers or {}), "Host": origin.authority}
    try:
        response = await session.request(method, aside, headers=with_host, **options)
    except aiohttp.ClientConnectorError:
        pass  # the request was not sent
    except aiohttp.ClientConnectionError:
        if not is_idempotent:
            raise
    else:
        marker = response.headers.get(MARKER)  # only on errors that the sidecar generates
        if response.status not in (502, 503) or not (marker == "unsent" or (marker and is_idempotent)):
            return response
        response.release()
    return await session.request(method, origin, headers=headers, **options)
