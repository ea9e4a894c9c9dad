"""Read requests from the bytes of a downstream connection.

llhttp validates every byte of heads, and of heads only: its input ends with a head, so the bytes of each head are
known. Bodies are read by `body.py`. The size of a head is limited from its first byte on.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

import httptools

from balancer.config.schema.limits import Limits
from balancer.errors import RequestRejected
from balancer.http.h1.body import Body, ChunkedBody, SizedBody
from balancer.http.h1.client import Client
from balancer.http.h1.fields import END_OF_HEAD, Framing
from balancer.http.h1.request_head import Request
from balancer.http.h1.traced_head import heads_for

_NOT_FOUND: Final = -1 + len(END_OF_HEAD)
"""Value of `end` in `read` while the head is incomplete."""

_CHUNKED: Final = Framing.CHUNKED

_EMPTY_LINES: Final = re.compile(rb"(?>(?:\r\n)*)")

_SPACE_BEHIND_CODING: Final = re.compile(rb"(?i)(\r\ntransfer-encoding:[ \t]*+chunked)[ \t]++(?=\r\n)")

_AROUND_TARGET: Final = 32
"""Maximum bytes of a request line besides its target: the longest method and the version."""


class RequestReader:
    """Reads request heads one by one.

    `head` holds the bytes of a head that is incomplete or was rejected, `rest` the data that followed the last head in
    the same read.
    """

    def __init__(self, client: Client, limits: Limits, fresh_id: Callable[[], bytes]) -> None:
        self._fresh_id = fresh_id
        self.apply(client, limits)
        self._parser: httptools.HttpRequestParser | None = None
        self.head = self.rest = b""

    def apply(self, client: Client, limits: Limits) -> None:
        """Apply a new client and new limits to the next heads."""
        self._heads = heads_for(client, self._fresh_id)
        self._limits = limits
        self._target_limit = limits.target
        self._unbounded_size = min(limits.head, 3 * limits.fields)  # a field takes more than three bytes

    def read(self, data: bytes) -> Request | None:
        """Return the request whose head ends in `data`, None if none does. Raises `RequestRejected`."""
        known = self._heads.known
        if known is not None and data.startswith(known) and not self.head:
            request = self._heads.repeated(data)
            if request is not None:
                self.rest = data[len(request.raw) :]
                return request
        head = self.head + data if self.head else data
        end = head.find(END_OF_HEAD) + len(END_OF_HEAD)
        if head[0] in b"\r\n":  # RFC 9112 § 2.2: empty lines before a request are ignored
            return self._read_after_empty_lines(head)
        if end == _NOT_FOUND:
            self._grow(head)
            self._judge(data)
            return None
        if end == len(head):
            self.rest = b""
        else:
            self.rest = head[end:]
            data = data[: len(data) - len(self.rest)]
            head = head[:end]
        self.head = head  # kept until validated: the caller logs a rejected head
        self._judge(data)
        head = self.head
        if len(head) > self._unbounded_size:
            self._bound(head)
        request = self._heads.outgoing(head)
        if len(request.target) > self._target_limit:
            raise _target_too_long(self._target_limit)
        self.head = b""
        if request.fields.needs_new_parser:
            self._parser = None
        return request

    def body(self, request: Request, limit: int | None) -> Body:
        """Return a reader for the body of `request`, which fails beyond `limit` bytes if it is chunked."""
        if request.fields.framing is _CHUNKED:
            return ChunkedBody(limit, self._limits.head, self._limits.fields)
        return SizedBody(request.fields.length)

    def _judge(self, data: bytes) -> None:
        parser = self._parser
        if parser is None:
            self._parser = parser = httptools.HttpRequestParser(self)
        try:
            parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._parser = None  # llhttp takes what follows for another protocol
        except httptools.HttpParserError as error:
            self._judge_without_space(str(error))

    def _judge_without_space(self, fault: str) -> None:
        """Validate the head without the optional white space behind `chunked`, and continue with that head.

        RFC 9112 § 5.1 allows spaces and tabs there. llhttp allows spaces only, and reports it at the end of the head.
        """
        head = _SPACE_BEHIND_CODING.sub(rb"\1", self.head)
        if head == self.head:
            raise RequestRejected(400, "malformed_request", fault)
        self.head = head
        self._parser = None
        self._judge(head)

    def _read_after_empty_lines(self, head: bytes) -> Request | None:
        lines = _EMPTY_LINES.match(head)
        head = head[lines.end() :] if lines is not None else head
        self.head = self.rest = b""
        if head == b"\r":
            self.head = head  # half of an empty line
            return None
        if head[:1] in (b"\r", b"\n"):
            raise RequestRejected(400, "malformed_request", "a line ends in CR and LF")
        return self.read(head) if head else None

    def _grow(self, head: bytes) -> None:
        self.head = head
        self.rest = b""
        if b"\r\n" not in head and len(head) > self._target_limit + _AROUND_TARGET:
            raise _target_too_long(self._target_limit)
        self._bound(head)

    def _bound(self, head: bytes) -> None:
        limits = self._limits
        if len(head) > limits.head:
            raise RequestRejected(431, "head_too_large", f"at most {limits.head} bytes of head")
        if len(head) > limits.fields * 3 and head.count(b"\n") > limits.fields + 2:
            raise RequestRejected(431, "too_many_fields", f"at most {limits.fields} fields")


def takes_method(method: bytes) -> bool:
    """Return whether a method of capitals is one of HTTP/1.1: llhttp, which judges its heads, has a list of them."""
    try:
        httptools.HttpRequestParser(None).feed_data(b"%b / HTTP/1.1\r\nHost: a\r\n\r\n" % method)
    except httptools.HttpParserUpgrade:  # CONNECT
        return True
    except httptools.HttpParserError:
        return False
    return True


def _target_too_long(limit: int) -> RequestRejected:
    return RequestRejected(414, "target_too_long", f"at most {limit} bytes of target")
