"""Formats of the access log: pure functions from an entry to a line of text.

One line is one request, whatever bytes a client sends: external data is decoded as Latin-1 and everything but printable
ASCII is escaped, quotes and backslashes too, so that it can end neither its value nor its line. `docs/access-log.md`
specifies fields, units and order; it must be changed together with this module.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Final, NamedTuple

from balancer.errors import (
    ConnectionCut,
    Denied,
    ForwardingError,
    NoRoute,
    RateLimited,
    RequestRejected,
    UnsupportedByTransport,
    UpstreamError,
)
from balancer.http.grpc.call import GrpcCall
from balancer.http.grpc.status import FAILURE_NAMES
from balancer.http.h1.client import HTTP2, Client
from balancer.http.h1.fields import host_of
from balancer.http.h1.own_responses import BodyForm, ErrorBodies, error_body
from balancer.log.times import Second, rounded
from policies.facts import Endpoint, ReportedLoad
from policies.prompts import Answer

TARGET_LIMIT = 2048
"""Bytes of a request target that are kept: entries wait in memory, and a target may be as long as a head."""

HEAD_LIMIT = 4096
"""Bytes of a head that are kept, from which Host and X-Forwarded-For are read later."""

NOT_CONNECTED: Final = "-"
NEW: Final = "new"
REUSED: Final = "reused"
"""Upstream connection of a request: none, new or reused."""

UNROUTED: Final = "unrouted"
"""End of a request that no route matches. It is no failure: a scanner could fill the log with such requests."""


class Fault(NamedTuple):
    """Reason of a failed request: `end` is the kind, `reason` the code in the error response.

    `is_sent`: a response with `status` is sent, unless another one has begun; `size` are the bytes of its body, None if
    it is that of `form`.
    """

    end: str
    reason: str
    detail: str
    status: int
    is_sent: bool = True
    size: int | None = None
    form: BodyForm = error_body


class Extra(NamedTuple):
    """What an entry has because fields of the log are chosen: the route as `balancer check` lists it, and the chosen
    fields of the request and the response, by their names in lower case.
    """

    route: str
    request: Mapping[bytes, bytes]
    response: Mapping[bytes, bytes]


class Entry:
    """One finished request. Times are in seconds of the process's clock.

    `status` is 0 if no response began; `head` has the fields that the worker got. `arrived` has the times of the head's
    first byte, 0 if it came in one piece, and of its last. `routed_at` and `sent_at` are of the last attempt and
    undefined without an `endpoint`; `first_byte_at` is None if no byte came. `load` is the load that the worker
    reported. `cluster` is the name of the cluster, "" for the default one. `grpc_status` is the name of the status of
    an RPC, "-" if it got none, "" for other requests. `target` is the one received, `sent_target` the one sent to
    a worker, b"" if there is none or it is the same. `has_own_id`: the balancer has made the id.
    `policy` is the name of the policy that picked the endpoint. `extra` is None unless the log has chosen
    fields. `answer` is that to a prompt, as far as it came.
    """

    def __init__(
        self,
        ended_at: float,
        fault: Fault | None,
        status: int,
        method: bytes,
        target: bytes,
        id: bytes,  # noqa: A002
        head: bytes,
        is_http10: bool,
        client: Client,
        endpoint: Endpoint | None,
        attempts: int,
        connection: str,
        arrived: tuple[float, float],
        routed_at: float,
        sent_at: float,
        first_byte_at: float | None,
        bytes_in: int,
        bytes_out: int,
        load: ReportedLoad | None = None,
        cluster: str = "",
        grpc_status: str = "",
        sent_target: bytes = b"",
        policy: str = "",
        extra: Extra | None = None,
        answer: Answer | None = None,
        has_own_id: bool = False,
    ) -> None:
        self.ended_at = ended_at
        self.fault = fault
        self.status = status
        self.method = method
        self.target = target
        self.id = id
        self.head = head
        self.is_http10 = is_http10
        self.client = client
        self.endpoint = endpoint
        self.attempts = attempts
        self.connection = connection
        self.arrived = arrived
        self.routed_at = routed_at
        self.sent_at = sent_at
        self.first_byte_at = first_byte_at
        self.bytes_in = bytes_in
        self.bytes_out = bytes_out
        self.load = load
        self.cluster = cluster
        self.grpc_status = grpc_status
        self.sent_target = sent_target
        self.policy = policy
        self.extra = extra
        self.answer = answer
        self.has_own_id = has_own_id


class Context:
    """Data of a line beside its entry: `offset` in seconds converts the process's clock to Unix time; `sample` is the
    sampling rate of the entry as text.
    """

    def __init__(self, offset: float, sample: str) -> None:
        self.offset = offset
        self.sample = sample


NAN: Final = float("nan")


class LoggedPhases(NamedTuple):
    """Durations of the phases in seconds; nan if a phase was not reached. `service` runs from sent to last byte."""

    head: float
    queue: float
    connect: float
    first_byte: float
    service: float
    total: float


Format = Callable[[Entry, Context], str]


def fault_of(
    error: ForwardingError | None, bodies: ErrorBodies | None = None, form: BodyForm = error_body
) -> Fault | None:
    """Return the fault of an error, which may have one of the configured `bodies`, else one of this form; the error
    itself would keep its traceback's frames alive.
    """
    if error is None:
        return None
    if isinstance(error, UpstreamError):
        end = "rejected" if isinstance(error, UnsupportedByTransport) else type(error).outcome.value
    elif isinstance(error, ConnectionCut):
        return Fault(error.end, error.reason, str(error), error.status, is_sent=False)
    elif isinstance(error, Denied):
        return Fault("rejected", error.reason, str(error), error.status, size=error.size)
    elif isinstance(error, RateLimited):
        end = "limited"
    elif isinstance(error, NoRoute):
        end = UNROUTED
    else:
        end = "rejected" if isinstance(error, RequestRejected) else "unavailable"
    own = None if bodies is None else bodies.of(error)
    size = None if own is None else len(own[1])
    return Fault(end, error.reason, str(error), error.status, size=size, form=form)


def grpc_status_of(call: GrpcCall | None) -> str:
    """Return the status of an RPC for its entry; `call` is None for other requests."""
    return "" if call is None else call.status


def has_failed(entry: Entry) -> bool:
    """Return whether the request is logged whatever the sampling rate: for an error other than `NoRoute`, 5xx, or the
    same of gRPC."""
    is_fault = entry.fault is not None and entry.fault.end != UNROUTED
    return is_fault or entry.status >= 500 or is_failure(entry.grpc_status)


def is_failure(grpc_status: str) -> bool:
    """Return whether the status of an RPC is like 5xx; "" is none."""
    return bool(grpc_status) and grpc_status in FAILURE_NAMES


def excerpt(head: bytes) -> bytes:
    """Return a head; of a long one whole lines from the beginning and the end."""
    if len(head) <= HEAD_LIMIT:
        return head
    half = HEAD_LIMIT // 2
    return head[:half].rpartition(b"\n")[0] + b"\n" + head[-half:].partition(b"\n")[2]


def requested(head: bytes) -> tuple[bytes, bytes]:
    """Return method and target of a refused head; if its first line is malformed, b"" and that line."""
    line = head[: TARGET_LIMIT + 64].lstrip(b"\r\n").partition(b"\n")[0].rstrip(b"\r")
    method, _, rest = line.partition(b" ")
    if rest and method.isalpha():
        return method[:32], rest.partition(b" HTTP/")[0][:TARGET_LIMIT]
    return b"", line[:TARGET_LIMIT]


def phases(entry: Entry) -> LoggedPhases:
    """Return the durations of the phases."""
    return LoggedPhases(*durations(entry))


def durations(entry: Entry) -> tuple[float, float, float, float, float, float]:
    """Return the durations of the phases, in the order of `LoggedPhases`, whose fields take longer to read.
    Without an endpoint, or a connection, the rest counts as the wait for it."""
    head_at, began = entry.arrived
    ended = entry.ended_at
    head = began - head_at if head_at else 0.0
    total = head + ended - began
    if entry.endpoint is None:
        return (head, ended - began, NAN, NAN, NAN, total)
    queue = entry.routed_at - began
    if entry.connection == NOT_CONNECTED:
        return (head, queue, ended - entry.routed_at, NAN, NAN, total)
    sent = entry.sent_at
    first = entry.first_byte_at - sent if entry.first_byte_at is not None else NAN
    return (head, queue, sent - entry.routed_at, first, ended - sent, total)


def outcome(entry: Entry) -> tuple[str, int, int]:
    """Return the kind of end, the status that the client got, and the bytes of the body sent to it."""
    fault = entry.fault
    if fault is None:
        own_end = "admin" if entry.target.startswith(b"/-/") else "answered"
        end = own_end if entry.endpoint is None else good_end(entry.method, entry.status)
        if end == "ok" and is_failure(entry.grpc_status):
            end = "error_status"
        return end, entry.status, entry.bytes_out
    if entry.status:
        return fault.end, entry.status, entry.bytes_out
    if not fault.is_sent or entry.method == b"HEAD" or entry.grpc_status:
        return fault.end, fault.status, 0
    size = len(fault.form(fault.reason, fault.detail, entry.id)) if fault.size is None else fault.size
    return fault.end, fault.status, size


def good_end(method: bytes, status: int) -> str:
    """Return the kind of end of a request that an endpoint has answered in full."""
    if status == 101 or (method == b"CONNECT" and status < 300):
        return "tunnel"
    return "ok" if status < 500 else "error_status"


_SECOND: Final = Second()


def began_at(entry: Entry, offset: float) -> int:
    """Return the start of the request in microseconds of Unix time."""
    head_at, began = entry.arrived
    return rounded(((head_at or began) + offset) * 1e6)


def instant(entry: Entry, offset: float) -> str:
    """Format the start of the request in UTC with microseconds."""
    microseconds = began_at(entry, offset)
    return f"{_SECOND.text(microseconds // 1_000_000)}{microseconds % 1_000_000:06}Z"


def forwarded_for(entry: Entry) -> bytes:
    """Return the X-Forwarded-For that the worker got, as written by the balancer; the client's address for a refused
    request.
    """
    head = entry.head
    start = head.rfind(b"\r\nX-Forwarded-For: ")
    return head[start + 19 : head.find(b"\r", start + 19)] if start >= 0 else entry.client.address


# --- text

_BARE = re.compile(r"[A-Za-z0-9_./:@\[\]~+*-]+")
_PLAIN = re.compile(r"[ !#-\[\]-~]*")
_ESCAPED = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 256))} | {34: '\\"', 92: "\\\\"}


def version_of(entry: Entry) -> str:
    """Return the client's version of HTTP."""
    if entry.client.version == HTTP2:
        return "2.0"
    return "1.0" if entry.is_http10 else "1.1"


def quoted(value: str) -> str:
    """Return the value quoted and escaped."""
    return f'"{value if _PLAIN.fullmatch(value) else value.translate(_ESCAPED)}"'


def is_bare(value: str) -> bool:
    """Return whether the value is unambiguous without quotes."""
    return _BARE.fullmatch(value) is not None and value != "-"


def bare(value: str) -> str:
    """Return the value unquoted if that is unambiguous, else quoted; `-` for an empty one."""
    if not value:
        return "-"
    return value if is_bare(value) else quoted(value)


@lru_cache(maxsize=1024)
def bare_bytes(value: bytes) -> str:
    """Cached `bare` for values that recur: methods, hosts, addresses."""
    return bare(value.decode("latin-1"))


@lru_cache(maxsize=1024)
def quoted_bytes(value: bytes) -> str:
    """Cached `quoted` for values that recur."""
    return quoted(value.decode("latin-1"))


def milliseconds(seconds: float) -> str:
    """Format seconds as milliseconds with three decimals; `-` for nan."""
    if seconds == 0.0:
        return "0.000ms"
    return f"{seconds * 1e3:.3f}ms" if seconds == seconds else "-"


def text_line(entry: Entry, context: Context) -> str:
    """Format an entry as key=value pairs in the style of Heroku's router."""
    end, status, sent = outcome(entry)
    head, queue, connect, first_byte, service, total = durations(entry)
    fault, endpoint, client = entry.fault, entry.endpoint, entry.client
    cluster = f"cluster={entry.cluster} " if entry.cluster else ""
    grpc = f"grpc_status={entry.grpc_status} " if entry.grpc_status else ""
    sent_path = f"sent_path={quoted(entry.sent_target.decode('latin-1'))} " if entry.sent_target else ""
    at = "at=info" if fault is None else f"at=error code={fault.reason} desc={quoted(fault.detail)}"
    dyno, region = (endpoint.id, endpoint.region) if endpoint is not None else ("-", "-")
    return (
        f"time={instant(entry, context.offset)} {at} method={bare_bytes(entry.method)} "
        f"path={quoted(entry.target.decode('latin-1'))} {sent_path}host={bare_bytes(host_of(entry.head))} "
        f"request_id={bare(entry.id.decode('latin-1'))} fwd={quoted_bytes(forwarded_for(entry))} "
        f"dyno={dyno} connect={milliseconds(connect)} service={milliseconds(service)} "
        f"status={status} {grpc}bytes={sent} protocol={client.proto.decode()} version={version_of(entry)} "
        f"client={bare_bytes(client.address)} {cluster}region={region} policy={bare(entry.policy)} "
        f"attempts={entry.attempts} connection={entry.connection} head={milliseconds(head)} "
        f"queue={milliseconds(queue)} first_byte={milliseconds(first_byte)} "
        f"total={milliseconds(total)} bytes_in={entry.bytes_in} sample={context.sample} end={end}\n"
    )
