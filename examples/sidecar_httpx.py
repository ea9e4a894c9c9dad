"""httpx through `balancer sidecar`, and directly to the origin while the sidecar is unavailable.

    client = httpx.Client(mounts={"https://api.pay.example": SidecarTransport()})
    client.get("https://api.pay.example/v1/charges")        the origin's own URL: nothing else changes

A request that may have been executed is not repeated unless it is idempotent. For `httpx.AsyncClient` the same with
AsyncBaseTransport, AsyncHTTPTransport, `handle_async_request` and `await`.
"""

from __future__ import annotations

import httpx

SIDECAR = httpx.URL("http://127.0.0.1:8081")
MARKER = "Steelyard-Sidecar"
IDEMPOTENT = frozenset({"GET", "HEAD", "OPTIONS", "PUT", "DELETE"})


class SidecarTransport(httpx.BaseTransport):
    """Transport for the origins of the sidecar; `direct` reaches them without it."""

    def __init__(self, sidecar: httpx.URL = SIDECAR, direct: httpx.BaseTransport | None = None) -> None:
        self._sidecar = sidecar
        self._aside = httpx.HTTPTransport(trust_env=False)
        self._direct = direct or httpx.HTTPTransport()

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        is_idempotent = request.method in IDEMPOTENT
        try:
            response = self._aside.handle_request(self._to_sidecar(request))
        except (httpx.ConnectError, httpx.ConnectTimeout):
            return self._direct.handle_request(request)  # the request was not sent
        except httpx.TransportError:
            if not is_idempotent:
                raise
            return self._direct.handle_request(request)
        marker = response.headers.get(MARKER)  # only on errors that the sidecar generates
        may_go = response.status_code in (502, 503) and (marker == "unsent" or (marker and is_idempotent))
        if not may_go or not isinstance(request.stream, httpx.ByteStream):
            return response
        response.close()
        return self._direct.handle_request(request)

    def _to_sidecar(self, request: httpx.Request) -> httpx.Request:
        """The same request, addressed to the sidecar; its Host is the origin's already."""
        url = request.url.copy_with(
            scheme=self._sidecar.scheme, host=self._sidecar.host, port=self._sidecar.port
        )
        return httpx.Request(
            request.method, url, headers=request.headers, stream=request.stream, extensions=request.extensions
        )

    def close(self) -> None:
        self._aside.close()
        self._direct.close()
