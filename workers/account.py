"""What `/work` answers: an account of one request, as a small JSON object."""

from __future__ import annotations

import json
from typing import NamedTuple

from aiohttp import web


class Account(NamedTuple):
    """Who served the request, what came with it, and how long it was served and queued, in seconds."""

    worker: str
    region: str
    method: str
    request_id: str | None
    body_sha256: str
    body_bytes: int
    service_time: float
    queue_time: float

    def response(self, headers: dict[str, str], is_chunked: bool) -> web.Response:
        """The answer, with the load report in its headers."""
        headers["Content-Type"] = "application/json; charset=utf-8"
        response = web.Response(body=json.dumps(self._asdict()).encode(), headers=headers)
        if is_chunked:
            response.enable_chunked_encoding()
        return response
