"""Errors of the balancer as gRPC responses: HTTP 200 without messages, whose head has the status ("trailers-only")."""

from __future__ import annotations

from typing import Final

from balancer.errors import ForwardingError, StreamReset
from balancer.http.grpc.status import (
    DEADLINE_EXCEEDED,
    INTERNAL,
    INVALID_ARGUMENT,
    PERMISSION_DENIED,
    RESOURCE_EXHAUSTED,
    UNAUTHENTICATED,
    UNAVAILABLE,
    UNIMPLEMENTED,
    UNKNOWN,
    code_of_reset,
)

Fields = list[tuple[bytes, bytes]]

_BY_REASON: Final = {
    "deadline_passed": DEADLINE_EXCEEDED,
    "response_timeout": DEADLINE_EXCEEDED,
    "request_timeout": DEADLINE_EXCEEDED,
    "malformed_response": INTERNAL,
}
_BY_STATUS: Final = {
    400: INVALID_ARGUMENT,
    401: UNAUTHENTICATED,
    403: PERMISSION_DENIED,
    404: UNIMPLEMENTED,
    405: UNIMPLEMENTED,
    413: RESOURCE_EXHAUSTED,
    429: RESOURCE_EXHAUSTED,
    501: UNIMPLEMENTED,
    502: UNAVAILABLE,
    503: UNAVAILABLE,
    504: UNAVAILABLE,
}
"""Reason, or else HTTP status, of an error -> status of gRPC."""

_HEAD: Final[Fields] = [(b":status", b"200"), (b"content-type", b"application/grpc")]


def code_of(error: ForwardingError) -> int:
    """Return the status of gRPC for an error."""
    if isinstance(error, StreamReset):
        return code_of_reset(error.code)
    return _BY_REASON.get(error.reason) or _BY_STATUS.get(error.status, UNKNOWN)


def trailers_for(error: ForwardingError, request_id: bytes = b"") -> Fields:
    """Return the trailers of an RPC that ends with `error`."""
    text = f"{error.reason}: {error}"
    if request_id:
        text += f" (request {request_id.decode('latin-1')})"
    fields = [(b"grpc-status", b"%d" % code_of(error)), (b"grpc-message", percent_encoded(text))]
    if error.retry_after is not None:
        fields.append((b"grpc-retry-pushback-ms", b"%d" % (1000 * error.retry_after)))
    return fields


def head_for(error: ForwardingError, request_id: bytes = b"") -> Fields:
    """Return the head, which is all, of a response that ends an RPC with `error`."""
    return _HEAD + trailers_for(error, request_id)


def percent_encoded(text: str) -> bytes:
    """Return a grpc-message: UTF-8, with everything but printable ASCII and the percent sign escaped."""
    return b"".join(
        b"%c" % byte if 0x20 <= byte <= 0x7E and byte != 0x25 else b"%%%02X" % byte for byte in text.encode()
    )
