"""A row of the table: raw bytes, the clause that applies, and the expected observations at both ends.

Rows do not refer to the implementation, so that they apply to any proxy.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

CRLF = b"\r\n"

NEXT = b"GET /next HTTP/1.1\r\nHost: next.example\r\n\r\n"
"""The request after each row, which must be answered separately."""


class Reach(Enum):
    """How much of the request may reach a worker."""

    NOTHING = "nothing"
    PART = "part"
    """At most the head and a part of the body."""
    WHOLE = "whole"


@dataclass(frozen=True)
class Row:
    """One exchange. Heads are compared without case and outer space, except for those in `exact`."""

    name: str
    clause: str
    sent: bytes
    status: tuple[int, ...] = (200,)
    """Accepted statuses; the first is preferred."""
    more: tuple[int, ...] = ()
    """Statuses of responses to further requests in `sent`."""
    interims: tuple[int, ...] = ()
    end: str = "kept"
    """`kept`, `closed`; `cut`: reset before the response was whole; `short`: a clean end before it was whole."""
    then: bytes = b""
    """Bytes that the client sends after a 100."""
    leaves: bool = False
    """The client half-closes after `sent`."""
    is_open: bool = False
    """`sent` ends in the middle of a line."""

    reach: Reach = Reach.WHOLE
    lines: tuple[bytes, ...] = ()
    """Request lines at the worker."""
    holds: tuple[bytes, ...] = ()
    lacks: tuple[bytes, ...] = ()
    exact: tuple[bytes, ...] = ()
    body: bytes = b""
    trailers: tuple[bytes, ...] = ()

    early: bytes = b""
    """Bytes that the worker sends after the head."""
    answer: bytes = b""
    """The worker's response; b"": 200 with the target as the body."""
    last: str = ""
    """The worker's action after the response: none, `fin` or `rst`."""
    gets: tuple[bytes, ...] = ()
    gets_not: tuple[bytes, ...] = ()
    gets_exact: tuple[bytes, ...] = ()
    gets_body: bytes | None = None
    gets_trailers: tuple[bytes, ...] = ()

    limits: Mapping[str, int] = field(default_factory=dict)
    """`[limits]` of the configuration that differ from the defaults."""

    @property
    def is_alone(self) -> bool:
        """Whether further bytes would belong to this request."""
        return self.leaves or self.is_open or bool(self.then) or bool(self.early)

    def __str__(self) -> str:
        return self.name


def lines(*those: bytes) -> bytes:
    """A head with these lines."""
    return CRLF.join(those) + CRLF + CRLF


def request(*fields: bytes, line: bytes = b"GET / HTTP/1.1", body: bytes = b"") -> bytes:
    """A request to the host `a`."""
    return lines(line, b"Host: a", *fields) + body


def post(*fields: bytes, body: bytes = b"") -> bytes:
    """A POST whose framing is in `fields`."""
    return request(*fields, line=b"POST / HTTP/1.1", body=body)


def chunked(body: bytes, *fields: bytes) -> bytes:
    """A POST with the chunks in `body`."""
    return post(b"Transfer-Encoding: chunked", *fields, body=body)


def refused(name: str, clause: str, sent: bytes, *status: int, **more: Any) -> Row:
    """Rejected without reaching a worker; 400 by default."""
    return Row(name, clause, sent, status or (400,), **{"end": "closed", "reach": Reach.NOTHING, **more})


def stopped(name: str, clause: str, sent: bytes, *status: int, **more: Any) -> Row:
    """Rejected for its body, so a worker may have received a part."""
    return refused(name, clause, sent, *status, **{"reach": Reach.PART, **more})


def passed(name: str, clause: str, sent: bytes, line: bytes = b"", **more: Any) -> Row:
    """Forwarded to the worker, with `line` or the request line that was sent."""
    return Row(name, clause, sent, **{"lines": (line or sent.split(CRLF)[0],), **more})


def answered(name: str, clause: str, answer: bytes, *status: int, **more: Any) -> Row:
    """A GET with this response of the worker; 200 by default."""
    sent = more.pop("sent", request())
    return passed(name, clause, sent, status=status or (200,), answer=answer, **more)


def broken(name: str, clause: str, answer: bytes, **more: Any) -> Row:
    """A response of which nothing may be forwarded, to a POST, which is not retried."""
    return answered(name, clause, answer, 502, **{"sent": request(line=b"POST / HTTP/1.1"), **more})


def cut(name: str, clause: str, answer: bytes, **more: Any) -> Row:
    """A truncated response: the client gets less than the whole, or a 502 if nothing was forwarded yet."""
    sent = {"sent": request(line=b"POST / HTTP/1.1")}
    return answered(name, clause, answer, 200, 502, **{**sent, "end": "short", **more})


def under(clause: str, rows: Iterable[Row]) -> tuple[Row, ...]:
    """Set the clause of rows without one."""
    return tuple(row if row.clause else replace(row, clause=clause) for row in rows)
