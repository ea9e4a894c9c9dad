"""Lines of the access log in JSON: a function from an entry to a line.

Most of a line is that of the line before for the same client, or for the same endpoint. Such texts are kept, so that a
line costs the data path little more than its times and its request id.
"""

from __future__ import annotations

from functools import lru_cache
from json.encoder import encode_basestring_ascii
from typing import Final

from balancer.http.h1.client import LastLine
from balancer.http.h1.fields import host_of
from balancer.log.formats import (
    NOT_CONNECTED,
    REUSED,
    Context,
    Entry,
    began_at,
    durations,
    forwarded_for,
    outcome,
    version_of,
)
from balancer.log.times import DIGITS as THREE_DIGITS
from balancer.log.times import Second, decimals
from policies.facts import Endpoint

# Module constants, because an imported name is looked up anew each time.
DIGITS: Final = THREE_DIGITS
UNCONNECTED: Final = NOT_CONNECTED
ON_REUSED: Final = REUSED
json_text: Final = encode_basestring_ascii

_SECOND: Final = Second('{"time":"')


def seconds_or_null(seconds: float) -> str:
    """Format seconds with six decimals; null for nan."""
    begin, end = decimals(seconds)
    return begin + end


def json_string(value: str) -> str:
    """Format a JSON string; DEL is escaped, which JSON does not require."""
    text = json_text(value)
    return text.replace("\x7f", "\\u007f") if "\x7f" in text else text


def text_or_null(value: bytes) -> str:
    """Format bytes, decoded as Latin-1, as a JSON string or null."""
    return json_string(value.decode("latin-1")) if value else "null"


repeated_or_null = lru_cache(maxsize=1024)(text_or_null)
"""Cached `text_or_null` for values that recur: methods, hosts, addresses."""


class Place:
    """The text of an endpoint that has been asked once on a connection that was reused."""

    def __init__(self, endpoint: Endpoint, cluster: str, policy: str, text: str) -> None:
        self.endpoint = endpoint
        self.cluster = cluster
        self.policy = policy
        self.text = text


MOST_PLACES: Final = 4096

_PLACES: Final[dict[str, Place]] = {}
"""By the id of the endpoint."""


def place_text(entry: Entry) -> str:
    """Format where the request went, from the cluster to the connection."""
    endpoint = entry.endpoint
    is_usual = endpoint is not None and entry.attempts == 1 and entry.connection == ON_REUSED
    if endpoint is not None and is_usual:
        place = _PLACES.get(endpoint.id)
        if (
            place is not None
            and place.endpoint is endpoint
            and place.policy == entry.policy
            and place.cluster == entry.cluster
        ):
            return place.text
    cluster = f'"cluster":"{entry.cluster}",' if entry.cluster else ""
    name, region = (f'"{endpoint.id}"', f'"{endpoint.region}"') if endpoint is not None else ("null", "null")
    connection = f'"{entry.connection}"' if entry.connection != UNCONNECTED else "null"
    text = (
        f'{cluster}"endpoint":{name},"region":{region},"policy":{json_text(entry.policy)},'
        f'"attempts":{entry.attempts},"connection":{connection},"head":'
    )
    if endpoint is not None and is_usual:
        if len(_PLACES) >= MOST_PLACES:
            _PLACES.clear()
        _PLACES[endpoint.id] = Place(endpoint, entry.cluster, entry.policy, text)
    return text


def _renew(last: LastLine, entry: Entry, at: int) -> None:
    """Format what follows from the fields of the head, which begin at `at`, and from the client."""
    head, client = entry.head, entry.client
    end = head.rfind(b"\r\nX-Request-ID: ") if entry.endpoint is not None else -1
    last.fields = head[at:end] if end > at else b""
    last.end = ""
    last.is_http10, last.has_own_id = entry.is_http10, entry.has_own_id
    quote = '"' if entry.has_own_id else ""  # of an id that needs no escaping
    last.host = f'"host":{repeated_or_null(host_of(head))},"request_id":{quote}'
    last.client = (
        f'{quote},"client":{repeated_or_null(client.address)},"forwarded_for":{repeated_or_null(forwarded_for(entry))},'
        f'"protocol":"{client.proto.decode()}","version":"{version_of(entry)}",'
    )


def _asked(last: LastLine, entry: Entry, end: str) -> str:
    """Format the end, its reason, and what was asked for."""
    fault = entry.fault
    reason, detail = (
        (json_text(fault.reason), json_text(fault.detail)) if fault is not None else ("null", "null")
    )
    sent_path = f'"sent_path":{text_or_null(entry.sent_target)},' if entry.sent_target else ""
    text = (
        f'Z","end":"{end}","reason":{reason},"detail":{detail},"method":{repeated_or_null(entry.method)},'
        f'"path":{text_or_null(entry.target)},{sent_path}{last.host}'
    )
    if fault is None and not sent_path:
        last.end, last.method, last.target, last.asked = end, entry.method, entry.target, text
    return text


def _answer(last: LastLine, entry: Entry, status: int, size: int, sample: str) -> str:
    """Format the response and the sample."""
    grpc = f'"grpc_status":"{entry.grpc_status}",' if entry.grpc_status else ""
    text = f',"status":{status},{grpc}"bytes":{size},"bytes_in":{entry.bytes_in},"sample":{sample}}}\n'
    last.status = status if not grpc else -1
    last.size, last.bytes_in, last.sample, last.answer = size, entry.bytes_in, sample, text
    return text


def json_line(entry: Entry, context: Context) -> str:
    """Format an entry as a JSON object."""
    end, status, size = outcome(entry)
    head_for, queued_for, connect_for, first_for, service_for, total_for = durations(entry)
    last = entry.client.last_line
    if last is None:
        last = entry.client.last_line = LastLine()
    at = len(entry.method) + len(entry.sent_target or entry.target) + 10  # of the fields: behind " HTTP/1.1"
    fields = last.fields
    if (
        not fields
        or entry.endpoint is None
        or last.is_http10 != entry.is_http10
        or last.has_own_id != entry.has_own_id
        or entry.head[at : at + len(fields)] != fields
    ):
        _renew(last, entry, at)
    is_same = (
        entry.fault is None
        and last.method == entry.method
        and last.target == entry.target
        and last.end == end
        and not entry.sent_target
    )
    asked = last.asked if is_same else _asked(last, entry, end)
    is_same = (
        last.status == status
        and last.size == size
        and last.bytes_in == entry.bytes_in
        and last.sample == context.sample
        and not entry.grpc_status
    )
    answer = last.answer if is_same else _answer(last, entry, status, size, context.sample)
    began = began_at(entry, context.offset)
    part = began % 1_000_000
    queue, queue_rest = decimals(queued_for)
    first, first_rest = decimals(first_for)
    service, service_rest = decimals(service_for)
    total, total_rest = decimals(total_for)
    head, connect = '0.000000,"queue":', ',"connect":0.000000,"first_byte":'
    if head_for != 0.0:
        head = f'{seconds_or_null(head_for)},"queue":'
    if connect_for != 0.0:
        connect = f',"connect":{seconds_or_null(connect_for)},"first_byte":'
    request_id = entry.id.decode("ascii") if entry.has_own_id else text_or_null(entry.id)
    return (
        f"{_SECOND.text(began // 1_000_000)}{DIGITS[part // 1000]}{DIGITS[part % 1000]}{asked}"
        f"{request_id}{last.client}{place_text(entry)}{head}{queue}{queue_rest}{connect}{first}{first_rest}"
        f',"service":{service}{service_rest},"total":{total}{total_rest}{answer}'
    )
