"""Status codes of gRPC, and what each says about the endpoint that sent it. Pure.

A worker's status is in the trailers, or in the head of a response without messages ("trailers-only"). Failures of the
endpoint are those that HTTP has as 5xx. An error that a request can cause by itself is none: it would let one client
eject all endpoints.

An error of the balancer is a response with HTTP 200 and without messages, whose head has the status.
"""

from __future__ import annotations

import re
from typing import Final

from balancer.errors import ForwardingError, StreamReset
from balancer.http.h1.field_list import Fields
from policies.facts import OutcomeKind

NAMES: Final = (
    *("OK", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND", "ALREADY_EXISTS"),
    *("PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED", "OUT_OF_RANGE"),
    *("UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS", "UNAUTHENTICATED"),
)
"""Names by code."""

CANCELLED: Final = 1
UNKNOWN: Final = 2
INVALID_ARGUMENT: Final = 3
DEADLINE_EXCEEDED: Final = 4
NOT_FOUND: Final = 5
PERMISSION_DENIED: Final = 7
RESOURCE_EXHAUSTED: Final = 8
UNIMPLEMENTED: Final = 12
INTERNAL: Final = 13
UNAVAILABLE: Final = 14
DATA_LOSS: Final = 15
UNAUTHENTICATED: Final = 16

_CLIENT_ERROR: Final = (OutcomeKind.OK, 400)
OUTCOMES: Final = dict.fromkeys(range(1, len(NAMES)), _CLIENT_ERROR) | {
    UNKNOWN: (OutcomeKind.ERROR_STATUS, 500),
    DEADLINE_EXCEEDED: (OutcomeKind.TIMEOUT, 504),
    NOT_FOUND: (OutcomeKind.OK, 404),
    RESOURCE_EXHAUSTED: (OutcomeKind.OK, 429),
    UNIMPLEMENTED: (OutcomeKind.OK, 404),
    INTERNAL: (OutcomeKind.ERROR_STATUS, 500),
    UNAVAILABLE: (OutcomeKind.ERROR_STATUS, 503),
    DATA_LOSS: (OutcomeKind.ERROR_STATUS, 500),
}
"""Codes other than OK -> kind of the outcome and HTTP status that policies see."""

FAILURE_NAMES: Final = frozenset(NAMES[code] for code in OUTCOMES if OUTCOMES[code][0].is_failure)

_OF_HTTP: Final = {
    400: INTERNAL,
    401: UNAUTHENTICATED,
    403: PERMISSION_DENIED,
    404: UNIMPLEMENTED,
    429: UNAVAILABLE,
    431: INTERNAL,
    502: UNAVAILABLE,
    503: UNAVAILABLE,
    504: UNAVAILABLE,
}
"""HTTP status of a response without a grpc-status -> the code that clients take it for
(grpc/doc/http-grpc-status-mapping.md)."""

_OF_RESET: Final = {7: UNAVAILABLE, 8: CANCELLED, 11: RESOURCE_EXHAUSTED, 12: PERMISSION_DENIED}
"""Code of RST_STREAM -> status (grpc/doc/PROTOCOL-HTTP2.md, "Errors"); all others are INTERNAL."""

_find_status: Final = re.compile(rb"\r\ngrpc-status:[ \t]*([0-9]{1,9})[ \t]*\r").search
_find_message: Final = re.compile(rb"\r\ngrpc-message:[ \t]*([^\r]*)").search
_find_pushback: Final = re.compile(rb"\r\ngrpc-retry-pushback-ms:[ \t]*([^\r]*)").search


def status_in(block: bytes) -> int | None:
    """Return the grpc-status in a block of fields (names in lower case), None without one; UNKNOWN if it is unknown."""
    if b"grpc-status:" not in block:
        return None
    match = _find_status(block)
    code = UNKNOWN if match is None else int(match[1])
    return code if code < len(NAMES) else UNKNOWN


def message_in(block: bytes) -> str:
    """Return the grpc-message in a block of fields as it was sent, percent-encoded; "" without one."""
    match = _find_message(block)
    return "" if match is None else match[1].decode("latin-1").strip()


def forbids_retry(block: bytes) -> bool:
    """Return whether the worker asks not to repeat the RPC, or to wait before (gRFC A6, pushback)."""
    match = _find_pushback(block)
    return match is not None and match[1].strip() != b"0"


def code_of_http(status: int) -> int:
    """Return the code that a response without grpc-status means."""
    return _OF_HTTP.get(status, UNKNOWN)


def code_of_reset(code: int) -> int:
    """Return the status that RST_STREAM with this error code means."""
    return _OF_RESET.get(code, INTERNAL)


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
