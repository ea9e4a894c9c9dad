"""Messages of the health checking protocol grpc.health.v1: each has one field. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from balancer.http.grpc.status import NAMES, NOT_FOUND, UNIMPLEMENTED, message_in, status_in
from balancer.http.h1.load_report import message_fields

PATH: Final = "/grpc.health.v1.Health/Check"

_STATES: Final = ("UNKNOWN", "SERVING", "NOT_SERVING", "SERVICE_UNKNOWN")

_STRING_1: Final = 0x0A
"""Tag of field 1, `service` of HealthCheckRequest, a string."""


def check_request(
    authority: str, service: str, sender: str, metadata: Mapping[str, str]
) -> tuple[bytes, bytes]:
    """Return head and body of a Check request, in HTTP/1.1; `service` "" asks for the server as a whole. `metadata`:
    further fields by their names in lower case."""
    name = service.encode("ascii")
    message = bytes((_STRING_1, len(name))) + name if name else b""
    body = b"\0" + len(message).to_bytes(4, "big") + message
    fields = {"user-agent": f"steelyard-{sender}", **metadata}
    head = (
        f"POST {PATH} HTTP/1.1\r\nHost: {authority}\r\nTE: trailers\r\nConnection: TE\r\n"
        f"Content-Type: application/grpc\r\nContent-Length: {len(body)}\r\n"
    )
    return (head + "".join(f"{name}: {value}\r\n" for name, value in fields.items()) + "\r\n").encode(), body


def check_fault(service: str, status: int, fields: bytes, body: bytes) -> str | None:
    """Return the fault in the response to a Check, None if the service is SERVING. `fields` are those of its head and
    of its trailers."""
    code = status_in(fields)
    if code is None:
        return f"status {status} without grpc-status: not a gRPC server"
    if status != 200 and not code:
        return f"status {status}"
    if code == UNIMPLEMENTED:
        return "UNIMPLEMENTED: the worker has no service grpc.health.v1.Health"
    if code == NOT_FOUND:
        return f"NOT_FOUND: the worker's health service does not know '{service}'"
    if code:
        return f"{NAMES[code]}: {message_in(fields)}"
    state = _state_in(body)
    return None if state == "SERVING" else state


def _state_in(body: bytes) -> str:
    """Return the name of the serving status in a response of one message."""
    message = body[5:]
    if len(body) < 5 or body[0] or int.from_bytes(body[1:5], "big") != len(message):
        return "not an uncompressed message of grpc.health.v1"
    try:
        state = dict(message_fields(message)).get(1, 0)
    except ValueError:
        state = -1
    if isinstance(state, int) and 0 <= state < len(_STATES):
        return _STATES[state]
    return "not a HealthCheckResponse"
