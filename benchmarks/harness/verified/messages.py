"""Requests and responses of a storm: every byte follows from the request's number.

Pure functions, shared by workers and load generator. No two requests have the same content, so a response to another
request, or one that lost or gained a byte, is detected. The response to a POST also depends on the body that the worker
received, which checks both directions.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from enum import IntEnum
from math import log2
from random import Random
from typing import Self

REGIONS = ("north", "south", "west")
WORKERS = tuple(f"{region}-{number}" for region in REGIONS for number in range(2))

LEAST, MOST = 16, 16_384
"""Size of a body in bytes, in either direction; log-uniform."""

NAME_FIELD = b"X-Storm-Worker"
ID_FIELD = b"X-Storm-Id"
TARGET = re.compile(rb"/storm/([gp]\d+)/(\d+)\Z")
ANSWERED = re.compile(
    rb"\r\n%b: ([\w-]+)\r\n%b: ([gp]\d+)\r\n" % (NAME_FIELD, ID_FIELD),
    re.IGNORECASE,
)


class Ending(IntEnum):
    """Outcome of a request as its client saw it, and in words."""

    words: str

    def __new__(cls, value: int, words: str = "") -> Self:
        member = int.__new__(cls, value)
        member._value_, member.words = value, words
        return member

    OK = 0, "answered"
    WORKER_503 = 1, "503 from the worker"
    STATUS_502 = 2, "502"  # from here to `OTHER_STATUS`, the proxy's own responses
    STATUS_503 = 3, "503"
    STATUS_504 = 4, "504"
    OTHER_STATUS = 5, "another status"
    CLOSED = 6, "closed without an answer"  # before the first byte of a response
    CUT = 7, "cut short"
    TIMEOUT = 8, "timed out"
    REFUSED = 9, "no connection"
    CROSSED = 10, "another request's answer"
    CORRUPT = 11, "corrupted"  # the right response with wrong bytes
    UNFINISHED = 12, "unfinished"


STATUSES = {502: Ending.STATUS_502, 503: Ending.STATUS_503, 504: Ending.STATUS_504}


@dataclass(frozen=True, slots=True)
class CheckedRequest:
    """One request; sizes in bytes. A GET has no body."""

    number: int
    is_post: bool
    body_size: int
    answer_size: int

    @property
    def id(self) -> bytes:
        return b"%b%07d" % (b"p" if self.is_post else b"g", self.number)

    @property
    def body(self) -> bytes:
        return body_of(self.id, self.body_size) if self.is_post else b""

    @property
    def answer(self) -> bytes:
        """Expected body of the response."""
        return answer_of(self.id, self.body, self.answer_size)

    def message(self, port: int) -> bytes:
        method, body = (b"POST", self.body) if self.is_post else (b"GET", b"")
        length = b"Content-Length: %d\r\n" % len(body) if self.is_post else b""
        head = b"%b /storm/%b/%d HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n%b\r\n"
        return head % (method, self.id, self.answer_size, port, length) + body


def checked_requests(count: int, posts: float, seed: int) -> list[CheckedRequest]:
    """`count` requests, a share `posts` of them POSTs."""
    rng = Random(f"{seed}:questions")
    return [
        CheckedRequest(number, rng.random() < posts, size_from(rng), size_from(rng))
        for number in range(count)
    ]


def size_from(rng: Random) -> int:
    return round(2 ** rng.uniform(log2(LEAST), log2(MOST)))


def body_of(identity: bytes, size: int) -> bytes:
    return hashlib.shake_128(b"body " + identity).digest(size)


def answer_of(identity: bytes, body: bytes, size: int) -> bytes:
    """Body of the response to a request that arrived with `body`."""
    return hashlib.shake_128(b"answer " + identity + b" " + body).digest(size)


def outcome_of(request: CheckedRequest, head: bytes, body: bytes) -> tuple[Ending, bytes]:
    """Outcome of a complete response and the name of its worker; empty for a response of the proxy itself."""
    found = ANSWERED.search(head)
    status = int(head[9:12])
    if found is None:
        return (Ending.CORRUPT if status < 400 else STATUSES.get(status, Ending.OTHER_STATUS)), b""
    name, identity = found.groups()
    if identity != request.id:
        return Ending.CROSSED, name
    if status != 200:
        return (Ending.WORKER_503 if status == 503 else Ending.CORRUPT), name
    return (Ending.OK if body == request.answer else Ending.CORRUPT), name
