"""Copy of one request: sent to an endpoint of the mirror's pool, and settled there like any other request.

It is sent once the request is whole, in one write, and never again: so it has nothing to ask of the client or of the
original, and the original never waits for it. A copy that no endpoint can take at once is dropped. Of its response the
status and the time of the head are kept, and the rest is discarded.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from balancer.errors import ConnectFailed, MalformedResponse, ResponseTimeout, UpstreamError
from balancer.http1.chunks import chunk, last_chunk
from balancer.http1.fields import Framing, without
from balancer.http1.load_report import reported_load
from policies.errors import NoEndpointAvailable, Overloaded
from policies.facts import Outcome, OutcomeKind, RequestFacts

if TYPE_CHECKING:
    from balancer.exchange.proxy import Proxy
    from balancer.http1.client import Client
    from balancer.http1.request_head import Request
    from balancer.http1.response_head import Response
    from balancer.mirroring.mirror import Mirror
    from balancer.upstream.request import UpstreamRequest
    from policies.facts import ReportedLoad
    from policies.insight.canary import Arm
    from policies.routing.assignment import Assignment

MARK: Final = b"\r\nX-Mirrored: 1"
"""Field of every copy. Envoy appends "-shadow" to the host instead, which a worker with virtual hosts refuses."""

NOT_COPIED: Final = (b"x-mirrored", b"expect")
"""A field of the same name, and Expect: the body is sent with the head."""

READ_LIMIT: Final = 1 << 20
READ_TIME: Final = 10.0
"""Bytes of a response, and seconds after its head, that are read so that the connection can be kept; of a response
that is longer or slower the rest is not read. A copy of an endless one would never end."""

Result = tuple[int, float]
"""Final status, and seconds from the complete request to the head of the response."""


def copied_head(head: bytes) -> bytes:
    """Return the head of a copy of the request that has this head for the worker."""
    line, end = head[: head.find(b"\r\n")], head.find(b"\r\n")
    return line + MARK + without(NOT_COPIED, head[end:-2]) + b"\r\n"


class RequestCopy:
    """A copy: the `LeaseWaiter` of its pool and the `ResponseSink` of its response."""

    def __init__(self, mirror: Mirror, request: Request, client: Client) -> None:
        self._mirror = mirror
        self._proxy: Proxy = mirror.proxy
        self._request = request
        self._client = client
        # Of single bytes, pieces in a list would take forty times the limit.
        self._body: bytearray | None = bytearray() if request.fields.has_body else None
        self._trailers = b""
        self._whole_at: float | None = None if request.fields.has_body else mirror.proxy.now()
        self._is_over = False
        self._assignment: Assignment | None = None
        self._arm: Arm | None = None
        self._upstream: UpstreamRequest | None = None
        self._sent_at = 0.0
        self._first_byte_at: float | None = None
        self._status = self._bytes_in = self._bytes_out = 0
        self._load: ReportedLoad | None = None
        self._result: Result | None = None
        self._original: Result | None = None

    # --- the original

    def request_body(self, data: bytes) -> None:
        """Copy bytes of the body, without framing."""
        body = self._body
        if body is None or self._is_over:
            return
        if len(body) + len(data) > self._mirror.config.body:
            self._skip("body_too_long")
        else:
            body += data

    def request_ended(self, trailers: bytes) -> None:
        """Note that the request is whole; `trailers` is a block of fields or b""."""
        self._trailers = trailers
        self._whole_at = self._proxy.now()

    def original_answered(self, status: int, at: float) -> None:
        """Note the final status that the client got, and when its head came; it is compared with the copy's."""
        if self._whole_at is not None:
            self._original = status, max(0.0, at - self._whole_at)
            self._compare()

    def original_ended(self) -> None:
        """Note that the original has ended; without the whole request there is nothing to send."""
        if self._whole_at is None:
            self._skip("incomplete")

    def send_soon(self) -> None:
        """Send the whole request in the next iteration of the loop: no fault of the copy can reach the original."""
        if not self._is_over:
            asyncio.get_running_loop().call_soon(self._send)

    # --- sending

    def _send(self) -> None:
        if self._is_over:
            return
        proxy, request = self._proxy, self._request
        key = None if proxy.key_of is None else proxy.key_of(request, self._client)
        facts = RequestFacts(
            request.method.decode(), request.target.decode("latin-1"), proxy.home_region, key
        )
        try:
            self._assignment = assignment = proxy.router.route(facts)
        except (NoEndpointAvailable, Overloaded):
            self._skip("full" if proxy.router.has_eligible else "no_endpoint_available")
            return
        self._arm = proxy.canary.take() if proxy.canary is not None else None
        self._sent_at = assignment.routed_at
        pool = proxy.pools.by_id[assignment.state.id]
        upstream = pool.lease_quiet()  # it is never sent a second time
        if upstream is None and proxy.pools.room == 0:
            self._skip("descriptors")
            return
        self._mirror.counts.sent += 1
        if upstream is not None:
            self._send_on(upstream)
        else:
            assignment.connecting()
            pool.wait(self)

    def _send_on(self, upstream: UpstreamRequest) -> None:
        request = self._request
        self._upstream = upstream
        data = copied_head(request.head)
        if self._body is not None:
            self._bytes_in = len(self._body)
            data += self._framed(bytes(self._body))
            self._body = None
        upstream.send(data, self, request.method)

    def _framed(self, body: bytes) -> bytes:
        if self._request.fields.framing is not Framing.CHUNKED:
            return body
        return (chunk(body) if body else b"") + last_chunk(self._trailers)

    def connected(self, upstream: UpstreamRequest) -> None:
        assignment = self._assignment
        if self._is_over or assignment is None:
            upstream.release()
            return
        self._sent_at = self._proxy.now()
        assignment.connected(self._sent_at)
        self._send_on(upstream)

    def connect_failed(self, error: ConnectFailed) -> None:
        self._fail(error.reason, error.outcome)

    # --- the response (`ResponseSink`)

    def response_whole(self, response: Response, body: bytes) -> None:
        self._bytes_out = len(body)
        self._note_head(response)
        self._answered()

    def response_started(self, response: Response) -> None:
        if response.status == 101:
            self.response_failed(MalformedResponse("101 for a request without Upgrade"))
        elif response.status >= 200:
            self._note_head(response)

    def _note_head(self, response: Response) -> None:
        proxy, assignment = self._proxy, self._assignment
        self._first_byte_at = now = proxy.now()
        self._status = response.status
        if proxy.reads_load:
            self._load = reported_load(response.block)
        if assignment is not None:
            assignment.answered(now)

    def response_body(self, data: bytes) -> None:
        self._bytes_out += len(data)
        if self._bytes_out > READ_LIMIT:
            self._answered(is_cut=True)

    def response_paused(self) -> None:
        """Do nothing: the body is discarded as it comes."""

    def response_ended(self, trailers: bytes) -> None:
        self._answered()

    def response_failed(self, error: UpstreamError) -> None:
        self._fail(error.reason, error.outcome)

    def upstream_paused(self) -> None:
        """Do nothing: the whole request is in the write buffer, and is as small as its limit."""

    def upstream_resumed(self) -> None:
        """Do nothing: `upstream_paused` has paused nothing."""

    def check(self, now: float) -> None:
        """Enforce the first-byte timeout of the pool, and the time to read a response; `now` is the cached time."""
        first_byte = self._proxy.timeouts.first_byte
        if self._upstream is None:
            return
        if self._first_byte_at is None:
            if now - self._sent_at > first_byte:
                self.response_failed(ResponseTimeout(f"no response within {first_byte:g} s"))
        elif now - self._first_byte_at > READ_TIME:
            self._answered(is_cut=True)

    # --- ends

    def abandon(self) -> None:
        """End the copy at shutdown; the endpoint is not charged with a failure."""
        if self._assignment is None:
            self._skip("abandoned")
        else:
            self._fail("abandoned", OutcomeKind.ABANDONED)

    def _skip(self, reason: str) -> None:
        if not self._is_over:
            self._mirror.counts.skipped[reason] += 1
            self._end(OutcomeKind.ABANDONED, is_clean=False)

    def _fail(self, reason: str, kind: OutcomeKind) -> None:
        if not self._is_over:
            self._mirror.counts.failed[reason] += 1
            self._end(kind, is_clean=False)

    def _answered(self, *, is_cut: bool = False) -> None:
        if self._is_over:  # cut, and the rest of the read is still reported
            return
        counts = self._mirror.counts
        counts.answered += 1
        counts.cut += is_cut
        if self._first_byte_at is not None and self._whole_at is not None:
            self._result = self._status, self._first_byte_at - self._whole_at
        self._end(OutcomeKind.OK if self._status < 500 else OutcomeKind.ERROR_STATUS, is_clean=not is_cut)
        self._compare()

    def _end(self, kind: OutcomeKind, *, is_clean: bool) -> None:
        """Give up the connection, settle, and drop what takes memory."""
        self._is_over = True
        self._body = None
        self._mirror.copies.pop(self, None)
        upstream, self._upstream = self._upstream, None
        if upstream is not None and is_clean:
            upstream.release()
        elif upstream is not None:
            upstream.close()
        if self._assignment is not None:
            self._settle(self._assignment, kind)

    def _settle(self, assignment: Assignment, kind: OutcomeKind) -> None:
        outcome = Outcome(
            kind, self._status or None, self._sent_at, self._first_byte_at, self._proxy.now(), self._bytes_in,
            self._bytes_out, self._load,
        )  # fmt: skip
        self._proxy.router.settle(assignment, outcome)
        if self._arm is not None:
            self._arm.record(outcome, assignment.routed_at)

    def _compare(self) -> None:
        if self._result is not None and self._original is not None:
            self._mirror.counts.compare(self._original, self._result)
