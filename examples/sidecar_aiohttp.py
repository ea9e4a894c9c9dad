"""aiohttp (3.12 or later) through `balancer sidecar`, and directly to the origin while the sidecar is unavailable.

    session = aiohttp.ClientSession(middlewares=[SidecarMiddleware("https://api.pay.example")])
    await session.get("https://api.pay.example/v1/charges")        the origin's own URL: nothing else changes

A request that may have been executed is not repeated unless it is idempotent. `data` is bytes, text or a form: a
stream cannot be sent again.
"""

from __future__ import annotations

import aiohttp
from yarl import URL

SIDECAR = "http://127.0.0.1:8081"
MARKER = "Steelyard-Sidecar"
IDEMPOTENT = frozenset({"GET", "HEAD", "OPTIONS", "PUT", "DELETE"})


class SidecarMiddleware:
    """Middleware for the requests to these origins of the sidecar; each redirect is a request of its own."""

    def __init__(self, *origins: str, sidecar: str = SIDECAR) -> None:
        self._origins = frozenset(URL(origin).origin() for origin in origins)
        self._sidecar = sidecar

    async def __call__(
        self, request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        origin, is_idempotent = request.url, request.method in IDEMPOTENT
        if origin.origin() not in self._origins:
            return await handler(request)
        request.url = URL(
            self._sidecar + origin.raw_path_qs, encoded=True
        )  # its Host is the origin's already
        try:
            response = await handler(request)
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError):
            pass  # the request was not sent
        except aiohttp.ClientConnectionError:
            if not is_idempotent:
                raise
        else:
            marker = response.headers.get(MARKER)  # only on errors that the sidecar generates
            if response.status not in (502, 503) or not (marker == "unsent" or (marker and is_idempotent)):
                return response
            response.release()
        request.url = origin
        return await handler(request)
