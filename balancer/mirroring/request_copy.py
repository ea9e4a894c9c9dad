"""Copy of one request: collects its body, is sent once it is whole, and is compared with the original.

It is sent in one write and never again: so it has nothing to ask of the client or of the original, and the original
never waits for it. A copy that no endpoint can take at once is dropped. `copy_attempt.py` is what happens at the
endpoint.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from balancer.http.h1.client import Client
from balancer.http.h1.fields import Framing, without
from balancer.http.h1.request_head import Request
from balancer.mirroring.copy_attempt import CopyAttempt
from balancer.upstream.request_body import RequestBody, whole_body
from policies.errors import NoEndpointAvailable, Overloaded
from policies.facts import OutcomeKind, RequestFacts

if TYPE_CHECKING:
    from balancer.mirroring.mirror import Mirror

MARK: Final = b"\r\nX-Mirrored: 1"
"""Field of every copy. Envoy appends "-shadow" to the host instead, which a worker with virtual hosts refuses."""

NOT_COPIED: Final = (b"x-mirrored", b"expect")
"""A field of the same name, and Expect: the body is sent with the head."""

BODY_TOO_LONG: Final = "body_too_long"

Result = tuple[int, float]
"""Final status, and seconds from the complete request to the head of the response."""


def copied_head(head: bytes) -> bytes:
    """Return the head of a copy of the request that has this head for the worker."""
    end = head.find(b"\r\n")
    return head[:end] + MARK + without(NOT_COPIED, head[end:-2]) + b"\r\n"


class RequestCopy:
    """A copy, from the head of its request to its end; until then it is one of the mirror's `copies`."""

    def __init__(self, mirror: Mirror, request: Request, client: Client) -> None:
        self._mirror = mirror
        self._cluster = mirror.cluster
        self._request = request
        self._client = client
        # Of single bytes, pieces in a list would take forty times the limit.
        self._body: bytearray | None = bytearray() if request.fields.has_body else None
        self._trailers = b""
        self._whole_at: float | None = None if request.fields.has_body else mirror.cluster.now()
        self._is_over = False
        self._attempt: CopyAttempt | None = None
        self._result: Result | None = None
        self._original: Result | None = None

    # --- the original

    def request_body(self, data: bytes) -> None:
        """Copy bytes of the body, without framing."""
        body = self._body
        if body is None:
            return
        if len(body) + len(data) > self._mirror.config.body:
            self._skip(BODY_TOO_LONG)
        else:
            body += data

    def request_ended(self, trailers: bytes) -> None:
        """Note that the request is whole; `trailers` is a block of fields or b""."""
        self._trailers = trailers
        self._whole_at = self._cluster.now()

    def original_answered(self, status: int, at: float) -> None:
        """Note the final status that the client got, and when its head came; it is compared with the copy's."""
        if self._whole_at is not None:
            self._original = status, max(0.0, at - self._whole_at)
            self._compare()

    def original_ended(self) -> None:
        """Note that the original has ended; without the whole request there is nothing to send."""
        if self._whole_at is None:
            self._skip("incomplete")

    def not_authorised(self) -> None:
        """Note that the original has ended without the authorisation that its route wants."""
        self._skip("not_authorised")

    # --- sending

    def send_soon(self) -> None:
        """Send the whole request in the next iteration of the loop: no fault of the copy can reach the original."""
        if not self._is_over:
            asyncio.get_running_loop().call_soon(self._send)

    def _send(self) -> None:
        if self._is_over:
            return
        cluster, request = self._cluster, self._request
        key = None if cluster.key_of is None else cluster.key_of(request, self._client)
        facts = RequestFacts(
            request.method.decode(), request.target.decode("latin-1"), cluster.home_region, key
        )
        try:
            assignment = cluster.router.route(facts)
        except (NoEndpointAvailable, Overloaded):
            self._skip("full" if cluster.router.has_eligible else "no_endpoint_available")
            return
        self._attempt = attempt = CopyAttempt(self, cluster, assignment)
        pool = cluster.pools.by_id[assignment.state.id]
        if cluster.pools.room == 0 and not pool.has_idle:
            attempt.end(OutcomeKind.ABANDONED, is_clean=False)
            self._skip("descriptors")
        else:
            attempt.lease(pool, is_idempotent=False)
            self._mirror.counts.sent += 1

    def take_request(self) -> tuple[bytes, RequestBody | None]:
        """Return head and body to be sent, of which the body is not kept."""
        head, body = copied_head(self._head()), self._body
        if body is None:
            return head, None
        self._body = None
        is_chunked = self._request.fields.framing is Framing.CHUNKED
        return head, whole_body(bytes(body), self._trailers, is_chunked=is_chunked)

    def _head(self) -> bytes:
        """Return the head for the worker. Its traceparent, if it has one, names a span of the copy's own, as that of
        each attempt does. Where spans are exported it names the span of the request, because that of a copy is not."""
        request, tracing = self._request, self._client.tracing
        has_spans = tracing is not None and tracing.spans is not None
        return request.head if has_spans else request.another_head()

    @property
    def method(self) -> bytes:
        return self._request.method

    def check(self, now: float) -> None:
        """Enforce timeouts; `now` is the cached time."""
        if self._attempt is not None:
            self._attempt.check(now)

    # --- ends

    def answered(self, status: int, at: float, *, is_cut: bool) -> None:
        """End the copy: its response head came at `at`; `is_cut`: the rest was not read."""
        counts = self._mirror.counts
        counts.answered += 1
        counts.cut += is_cut
        self._end()
        if self._whole_at is not None:
            self._result = status, at - self._whole_at
            self._compare()

    def failed(self, reason: str) -> None:
        """End the copy: it was sent, and has no whole response."""
        self._mirror.counts.failed[reason] += 1
        self._end()

    def abandon(self) -> None:
        """End the copy at shutdown; the endpoint is not charged with a failure."""
        if self._attempt is None:
            self._skip("abandoned")
        else:
            self._attempt.end(OutcomeKind.ABANDONED, is_clean=False)
            self.failed("abandoned")

    def _skip(self, reason: str) -> None:
        if not self._is_over:
            self._mirror.counts.skipped[reason] += 1
            self._end()

    def _end(self) -> None:
        self._is_over = True
        self._body = self._attempt = None
        self._mirror.copies.pop(self, None)

    def _compare(self) -> None:
        if self._result is not None and self._original is not None:
            self._mirror.counts.compare(self._original, self._result)
