"""A row of the table: raw bytes, the clause that decides them, and what must come of them.

Rule of this file: a row says what is sent and what must be seen at both ends, never how the unit gets there. So the
same rows can be tried on any proxy.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

CRLF = b"\r\n"

NEXT = b"GET /next HTTP/1.1\r\nHost: next.example\r\n\r\n"
"""The request behind each row, which must be answered by itself."""


class Reach(Enum):
    """How much of the request a worker may see."""

    NOTHING = "nothing"
    PART = "part"
    """Its head, perhaps, and some of its body: never a whole request."""
    WHOLE = "whole"


@dataclass(frozen=True)
class Row:
    """One exchange. Bytes of heads are compared without case and outer space, but for those in `exact`."""

    name: str
    clause: str
    sent: bytes
    status: tuple[int, ...] = (200,)
    """What the client gets; of several, the first is what we aim at and the others are as good."""
    more: tuple[int, ...] = ()
    """The statuses of further answers, to requests that `sent` holds too."""
    interims: tuple[int, ...] = ()
    end: str = "kept"
    """`kept`, `closed`; `cut`: reset before the response was whole; `short`: a clean end before it was whole."""
    then: bytes = b""
    """What the client adds once a 100 has come."""
    leaves: bool = False
    """The client sends no more after `sent`: it closes its side."""
    is_open: bool = False
    """`sent` ends in the middle of a line."""

    reach: Reach = Reach.WHOLE
    lines: tuple[bytes, ...] = ()
    """The request lines at the worker."""
    holds: tuple[bytes, ...] = ()
    lacks: tuple[bytes, ...] = ()
    exact: tuple[bytes, ...] = ()
    body: bytes = b""
    trailers: tuple[bytes, ...] = ()

    early: bytes = b""
    """What the worker sends as soon as the head has come."""
    answer: bytes = b""
    """What the worker answers; b"": 200 with the target as the body."""
    last: str = ""
    """What the worker does then: nothing, `fin` or `rst`."""
    gets: tuple[bytes, ...] = ()
    gets_not: tuple[bytes, ...] = ()
    gets_exact: tuple[bytes, ...] = ()
    gets_body: bytes | None = None
    gets_trailers: tuple[bytes, ...] = ()

    limits: Mapping[str, int] = field(default_factory=dict)
    """`[limits]` of the configuration, where the row needs others than the defaults."""

    @property
    def is_alone(self) -> bool:
        """Whether what is sent next would belong to this request still."""
        return self.leaves or self.is_open or bool(self.then) or bool(self.early)

    def __str__(self) -> str:
        return self.name


def lines(*those: bytes) -> bytes:
    """A head of these lines."""
    return CRLF.join(those) + CRLF + CRLF


def request(*fields: bytes, line: bytes = b"GET / HTTP/1.1", body: bytes = b"") -> bytes:
    """A request to the host `a`."""
    return lines(line, b"Host: a", *fields) + body


def post(*fields: bytes, body: bytes = b"") -> bytes:
    """A POST whose framing is in `fields`."""
    return request(*fields, line=b"POST / HTTP/1.1", body=body)


def chunked(body: bytes, *fields: bytes) -> bytes:
    """A POST in chunks, as they stand in `body`."""
    return post(b"Transfer-Encoding: chunked", *fields, body=body)


def refused(name: str, clause: str, sent: bytes, *status: int, **more: Any) -> Row:
    """No worker hears of it; 400 unless told otherwise."""
    return Row(name, clause, sent, status or (400,), **{"end": "closed", "reach": Reach.NOTHING, **more})


def stopped(name: str, clause: str, sent: bytes, *status: int, **more: Any) -> Row:
    """The fault is in the body, so a worker may have begun to hear of it."""
    return refused(name, clause, sent, *status, **{"reach": Reach.PART, **more})


def passed(name: str, clause: str, sent: bytes, line: bytes = b"", **more: Any) -> Row:
    """It reaches the worker, with this request line; else with the one that was sent."""
    return Row(name, clause, sent, **{"lines": (line or sent.split(CRLF)[0],), **more})


def answered(name: str, clause: str, answer: bytes, *status: int, **more: Any) -> Row:
    """A GET that the worker answers so; 200 unless told otherwise."""
    sent = more.pop("sent", request())
    return passed(name, clause, sent, status=status or (200,), answer=answer, **more)


def broken(name: str, clause: str, answer: bytes, **more: Any) -> Row:
    """An answer of which nothing may be passed on. The POST is one that is not sent twice."""
    return answered(name, clause, answer, 502, **{"sent": request(line=b"POST / HTTP/1.1"), **more})


def cut(name: str, clause: str, answer: bytes, **more: Any) -> Row:
    """An answer that breaks off: the client must see it, by a reset or, where nothing went down yet, a 502."""
    sent = {"sent": request(line=b"POST / HTTP/1.1")}
    return answered(name, clause, answer, 200, 502, **{**sent, "end": "cut", **more})


def under(clause: str, rows: Iterable[Row]) -> tuple[Row, ...]:
    """Rows without a clause of their own get this one."""
    return tuple(row if row.clause else replace(row, clause=clause) for row in rows)
