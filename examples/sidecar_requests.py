"""requests through `balancer sidecar`, and directly to the origin while the sidecar is unavailable.

    session = requests.Session()
    session.mount("https://api.pay.example/", SidecarAdapter())
    session.get("https://api.pay.example/v1/charges")       the origin's own URL: nothing else changes

A request that may have been executed is not repeated unless it is idempotent.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

import requests
from requests.adapters import HTTPAdapter
from urllib3.exceptions import ConnectTimeoutError, MaxRetryError, NewConnectionError

SIDECAR = "http://127.0.0.1:8081"
MARKER = "Steelyard-Sidecar"
IDEMPOTENT = frozenset({"GET", "HEAD", "OPTIONS", "PUT", "DELETE"})


class SidecarAdapter(HTTPAdapter):
    """Transport adapter for the origins of the sidecar."""

    def __init__(self, sidecar: str = SIDECAR) -> None:
        super().__init__()
        self.sidecar = sidecar

    def send(self, request: requests.PreparedRequest, *args: Any, **options: Any) -> requests.Response:
        is_idempotent = request.method in IDEMPOTENT
        try:
            response = super().send(self._aside(request), *args, **{**options, "proxies": None})
        except requests.ConnectionError as error:
            if not (is_idempotent or is_unsent(error)):
                raise
        else:
            marker = response.headers.get(MARKER)  # only on errors that the sidecar generates
            may_go = response.status_code in (502, 503) and (marker == "unsent" or (marker and is_idempotent))
            if not may_go or not isinstance(request.body, bytes | str | None):
                response.url, response.request = str(request.url), request
                return response
            response.close()
        return super().send(request, *args, **options)

    def _aside(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        """The same request, addressed to the sidecar."""
        aside, url = request.copy(), urlsplit(str(request.url))
        aside.headers["Host"] = url.netloc
        aside.url = f"{self.sidecar}{url.path or '/'}{f'?{url.query}' if url.query else ''}"
        return aside


def is_unsent(error: requests.ConnectionError) -> bool:
    """Whether the connection was never established."""
    cause = error.args[0] if error.args else None
    return isinstance(cause, MaxRetryError) and isinstance(
        cause.reason, NewConnectionError | ConnectTimeoutError
    )
