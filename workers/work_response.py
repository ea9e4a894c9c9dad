"""The JSON response of `/work`, which describes the request."""

from __future__ import annotations

import json
from typing import NamedTuple

from aiohttp import web


class WorkResponse(NamedTuple):
    """The worker, the request, and its service and queue times in seconds."""

    worker: str
    region: str
    method: str
    request_id: str | None
    body_sha256: str
    body_bytes: int
    service_time: float
    queue_time: float

    def response(self, headers: dict[str, str], is_chunked: bool) -> web.Response:
        """Return the response, with the load report in its headers."""
        headers["Content-Type"] = "application/json; charset=utf-8"
        response = web.Response(body=json.dumps(self._asdict()).encode(), headers=headers)
        if is_chunked:
            response.enable_chunked_encoding()
        return response
