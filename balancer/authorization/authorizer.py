"""Authorizer of one route: the subrequest's head, what of an answer is copied, and which answers are remembered."""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

from balancer.cluster.cluster import Cluster
from balancer.cluster.request_key import client_address
from balancer.config.schema.authorization import AuthConfig
from balancer.http.h1.client import Client
from balancer.http.h1.fields import PROTO, any_of, found, host_of, lines_of, scheme_of
from balancer.http.h1.internal_fields import InternalFields
from balancer.http.h1.request_head import Request

MOST_REMEMBERED: Final = 10_000
"""Answers that a route remembers; the oldest is forgotten for one more."""

NOT_ASKED_WITH: Final = InternalFields((
    *("content-length", "transfer-encoding", "expect", "te", "connection", "upgrade", "sec-websocket-*"),
    *("if-match", "if-none-match", "if-modified-since", "if-unmodified-since", "if-range", "range"),
    *("x-forwarded-method", "x-forwarded-uri"),
))  # fmt: skip
"""Fields of a request that its subrequest does not have: those of its body and connection, conditions on the worker's
representation, and those that the subrequest sets."""


class Authorizer:
    """Whether requests of one route may be forwarded is asked of `cluster`, by a GET of `config.path`."""

    def __init__(self, config: AuthConfig, cluster: Cluster) -> None:
        self.config = config
        self.cluster = cluster
        self._line = b"GET %b HTTP/1.1" % config.path.encode()
        self._granted = InternalFields(config.request_fields) if config.request_fields else None
        self._for_worker = lines_of(any_of(config.request_fields)) if config.request_fields else None
        self._for_client = lines_of(any_of(config.response_fields)) if config.response_fields else None
        self._asked_by = lines_of(any_of(config.cache_by)) if config.cache_by else None
        self._remembered: dict[bytes, tuple[float, bytes]] = {}  # key -> when it ends, lines for the worker

    def subrequest_head(self, request: Request) -> bytes:
        """Return the head of the subrequest: the fields that the worker would get, without those of a body."""
        head = request.head
        block = NOT_ASKED_WITH.without_in_request(head[head.find(b"\r\n") : -2])
        end = block.find(PROTO)
        added = b"\r\nX-Forwarded-Method: %b\r\nX-Forwarded-Uri: %b" % (
            request.method,
            request.received_target,
        )
        return b"".join((self._line, block[:end], added, block[end:], b"\r\n"))

    def head_for_worker(self, head: bytes, lines: bytes) -> bytes:
        """Return `head` with the `lines` of an answer instead of the client's fields of the same names."""
        granted = self._granted
        if granted is None:
            return head
        begin = head.find(b"\r\n")
        block = granted.without_in_request(head[begin:-2])
        end = block.find(PROTO)
        return b"".join((head[:begin], block[:end], lines, block[end:], b"\r\n"))

    def lines_for_worker(self, block: bytes) -> bytes:
        """Return the field lines of an answer that the worker gets, each behind its CRLF."""
        if self._for_worker is None:
            return b""
        return b"".join([b"\r\n%b: %b" % (name, value) for name, value, _ in found(self._for_worker, block)])

    def lines_for_client(self, block: bytes) -> bytes:
        """Return the field lines of an answer that the client gets, each with its CRLF."""
        if self._for_client is None:
            return b""
        return b"".join([b"%b: %b\r\n" % (name, value) for name, value, _ in found(self._for_client, block)])

    # --- the cache

    def key_of(self, request: Request, client: Client) -> bytes:
        """Return a digest of what an answer may depend on; b"" if nothing is remembered."""
        if not self.config.cache:
            return b""
        address = client_address(request, client) or ""
        parts = [request.method, scheme_of(request.head), host_of(request.head), request.received_target]
        parts.append(address.encode("latin-1"))
        if self._asked_by is not None:
            parts += [b"%b: %b" % (name, value) for name, value, _ in found(self._asked_by, request.head)]
        return blake2b(b"\r\n".join(parts), digest_size=16).digest()

    def remembered(self, key: bytes, now: float) -> bytes | None:
        """Return the lines for the worker of a 2xx answer that still holds."""
        held = self._remembered.get(key)
        return held[1] if held is not None and now < held[0] else None

    def remember(self, key: bytes, lines: bytes, now: float) -> None:
        """Remember the lines for the worker of a 2xx answer."""
        if not key:
            return
        self._remembered.pop(key, None)  # the last one is the newest
        if len(self._remembered) >= MOST_REMEMBERED:
            del self._remembered[next(iter(self._remembered))]
        self._remembered[key] = now + self.config.cache, lines
