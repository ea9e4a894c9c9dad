"""Responses of our own: what the unit says when no worker's answer can be passed on.

Rule of this file: JSON with a machine-readable `error`, a sentence for people, and the request's id, so that a
log line can be found again. Nothing of the unit's inside is told.
"""

from __future__ import annotations

import json
from http import HTTPStatus

from balancer.errors import ForwardingError

ALLOWED = "GET, HEAD, POST, PUT, DELETE, OPTIONS, PATCH"
"""Methods that are forwarded everywhere."""


def error_body(reason: str, detail: str, request_id: bytes) -> bytes:
    """What the client is told, as JSON."""
    told = {"error": reason, "detail": detail, "request_id": request_id.decode("latin-1")}
    return json.dumps(told).encode()


def error_response(
    error: ForwardingError, request_id: bytes, *, stays: bool, is_head: bool, field: str | None = None
) -> bytes:
    """The whole answer to a request that failed with `error`; `field` is one more."""
    body = error_body(error.reason, str(error), request_id)
    status = HTTPStatus(error.status)
    fields = [
        f"HTTP/1.1 {status.value} {status.phrase}",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
    ]
    if error.status == HTTPStatus.METHOD_NOT_ALLOWED:  # RFC 9110 § 15.5.6
        fields.append(f"Allow: {ALLOWED}")
    if error.retry_after is not None:
        fields.append(f"Retry-After: {error.retry_after}")
    if field is not None:
        fields.append(field)
    if not stays:
        fields.append("Connection: close")
    head = "\r\n".join(fields).encode("ascii") + b"\r\n\r\n"
    return head if is_head else head + body
