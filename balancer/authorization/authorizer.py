"""Authorizer of one route: the subrequest's head, what of an answer is copied, and which answers are remembered."""

from __future__ import annotations

import re
from collections.abc import Sequence
from hashlib import blake2b
from typing import Final

from balancer.cluster.affinity import client_address
from balancer.cluster.cluster import Cluster
from balancer.config.schema.route_parts import AuthConfig
from balancer.http.h1.client import Client
from balancer.http.h1.fields import any_of, found, host_of, lines_of, scheme_of, with_lines
from balancer.http.h1.internal_fields import FieldRemoval
from balancer.http.h1.request_head import Request

MOST_REMEMBERED: Final = 10_000
"""Number of cached answers of a route; then the oldest is removed."""

NOT_ASKED_WITH: Final = FieldRemoval((
    *("content-length", "transfer-encoding", "expect", "te", "connection", "upgrade", "sec-websocket-*"),
    *("if-match", "if-none-match", "if-modified-since", "if-unmodified-since", "if-range", "range"),
    *("x-forwarded-method", "x-forwarded-uri"),
), as_in_cgi=True)  # fmt: skip
"""Fields of a request that its subrequest does not have: those of its body and connection, conditions on the worker's
representation, and those that the subrequest sets."""


def _found_by(names: Sequence[str], *, as_in_cgi: bool = False) -> re.Pattern[bytes] | None:
    return lines_of(any_of(names, as_in_cgi=as_in_cgi)) if names else None


def _lines(wanted: re.Pattern[bytes] | None, block: bytes) -> bytes:
    """Return the lines of the wanted fields."""
    if wanted is None:
        return b""
    return b"".join([b"%b: %b\r\n" % (name, value) for name, value, _ in found(wanted, block)])


def _asked_target(request: Request) -> bytes:
    """Return the target that routes compare: what it is decided on must be what a worker resolves it to."""
    _, mark, query = request.target.partition(b"?")
    return b"%b%b%b" % (request.path, mark, query) if request.path else request.received_target


class Authorizer:
    """Whether requests of one route may be forwarded is asked of `cluster`, by a GET of `config.path`."""

    def __init__(self, config: AuthConfig, cluster: Cluster) -> None:
        self.config = config
        self.cluster = cluster
        self._line = b"GET %b HTTP/1.1" % config.path.encode()
        granted = config.request_fields
        self._granted = FieldRemoval(granted, as_in_cgi=True) if granted else None
        self._for_worker = _found_by(granted)
        self._for_client = _found_by(config.response_fields)
        self._asked_by = _found_by((*config.cache_by, "client-cert"), as_in_cgi=True)
        self._remembered: dict[bytes, tuple[float, bytes]] = {}  # key -> when it ends, lines for the worker

    def subrequest_head(self, request: Request) -> bytes:
        """Return the head of the subrequest: the fields that the worker would get, without those of a body."""
        head = NOT_ASKED_WITH.without_in_head(request.head)
        added = b"X-Forwarded-Method: %b\r\nX-Forwarded-Uri: %b\r\n" % (
            request.method,
            _asked_target(request),
        )
        return self._line + with_lines(head[head.find(b"\r\n") :], added)

    def head_for_worker(self, head: bytes, lines: bytes) -> bytes:
        """Return `head` with the `lines` of an answer instead of the client's fields of the same names."""
        return head if self._granted is None else with_lines(self._granted.without_in_head(head), lines)

    def trailers_for_worker(self, block: bytes) -> bytes:
        """Return the trailers of a request without the client's fields of the names that an answer sets."""
        return block if self._granted is None else self._granted.without(block)

    def lines_for_worker(self, block: bytes) -> bytes:
        """Return the field lines of an answer that the worker gets."""
        return _lines(self._for_worker, block)

    def lines_for_client(self, block: bytes) -> bytes:
        """Return the field lines of an answer that the client gets."""
        return _lines(self._for_client, block)

    # --- the cache

    def key_of(self, request: Request, client: Client) -> bytes:
        """Return a digest of what an answer may depend on; b"" if nothing is remembered."""
        if not self.config.cache:
            return b""
        address = client_address(request, client) or ""
        parts = [request.method, scheme_of(request.head), host_of(request.head), request.received_target]
        parts.append(address.encode("latin-1"))
        parts.append(_lines(self._asked_by, request.head))
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
