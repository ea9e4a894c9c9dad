"""The mirror of one route, and those of all routes: which requests are copied, and what became of the copies."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping
from random import Random
from typing import Any, Final

from balancer.cluster.cluster import Cluster
from balancer.config.schema.route_parts import MirrorConfig
from balancer.config.schema.routes import RouteConfig
from balancer.http.h1.client import Client
from balancer.http.h1.fields import CHUNKED_LINE, without
from balancer.http.h1.request_head import Request
from balancer.mirroring.copy_attempt import CopyAttempt
from balancer.upstream.request import LARGEST_SHARED, RequestBody, whole_body
from policies.errors import NoEndpointAvailable, Overloaded
from policies.facts import OutcomeKind, RequestFacts
from policies.stats.load import Histogram

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
    """A copy, from the head of its request to its end; until then it is one of the mirror's `copies`.

    It collects its body, is sent once it is whole, in one write and never again, and is compared with the original: so
    it has nothing to ask of the client or of the original, and the original never waits for it. A copy that no endpoint
    can take at once is dropped. `copy_attempt.py` is what happens at the endpoint.
    """

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
        """Note that the original has ended without the authorisation that its route requires."""
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
            attempt.needs_own = len(request.raw) > LARGEST_SHARED
            attempt.lease(pool, is_idempotent=False)
            self._mirror.counts.sent += 1

    def take_request(self) -> tuple[bytes, RequestBody | None]:
        """Return head and body to be sent, of which the body is not kept."""
        head, body = copied_head(self._head()), self._body
        if body is None:
            return head, None
        self._body = None
        return head, whole_body(bytes(body), self._trailers, is_chunked=CHUNKED_LINE in head)

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


BUSY: Final = "busy"
"""Reason for skipping: `max_in_flight` copies are in flight."""


class MirrorCounts:
    """Totals of one mirror since it was configured.

    Each request that was drawn is `skipped`, for a reason, or `sent`; each sent one has `answered` or `failed`, for a
    reason. Of the answered ones, those in `cut` were not read to their end. `classes` counts the pairs of status
    classes of original and copy, where both were answered, and the histograms have the latencies of these pairs.
    """

    def __init__(self) -> None:
        self.sent = self.answered = self.cut = 0
        self.skipped: Counter[str] = Counter()
        self.failed: Counter[str] = Counter()
        self.classes: Counter[tuple[int, int]] = Counter()
        self.original_latency = Histogram()
        self.copy_latency = Histogram()

    def compare(self, original: tuple[int, float], copy: tuple[int, float]) -> None:
        """Record a pair; each is a status and the seconds from the complete request to the response's head."""
        self.classes[original[0] // 100, copy[0] // 100] += 1
        self.original_latency.record(original[1])
        self.copy_latency.record(copy[1])


class Mirror:
    """Copies of a share of the requests of one route go to `cluster`.

    `route` is the text of the route. `copies` are those in flight, their bodies perhaps still incomplete, in
    order of arrival.
    """

    def __init__(self, route: str, config: MirrorConfig, cluster: Cluster, rng: Random) -> None:
        self.route = route
        self.counts = MirrorCounts()
        self.copies: dict[RequestCopy, None] = {}
        self._random = rng.random
        self.apply(config, cluster)

    def apply(self, config: MirrorConfig, cluster: Cluster) -> None:
        """Apply the configuration from the next request on."""
        self.config = config
        self.cluster = cluster
        self._methods = frozenset(method.encode() for method in config.methods)

    def copy_of(self, request: Request, client: Client, limit: int | None) -> RequestCopy | None:
        """Return a copy of a request whose head has come; None if it is not drawn, or must not or cannot be copied, or
        has a body longer than `limit`, for which it is refused. The exchange of the request must end the copy.
        """
        config, fields = self.config, request.fields
        if limit is not None and fields.length > limit:
            return None
        if request.method not in self._methods or fields.is_offer or self._random() >= config.share:
            return None
        if fields.length > config.body:
            self.counts.skipped[BODY_TOO_LONG] += 1
            return None
        if len(self.copies) >= config.max_in_flight:
            self.counts.skipped[BUSY] += 1
            return None
        copy = RequestCopy(self, request, client)
        self.copies[copy] = None
        return copy


class Mirrors:
    """The mirrors of all routes, by the conditions of the route: its text may be that of another route, too."""

    def __init__(self) -> None:
        self.by_route: dict[tuple[Any, ...], Mirror] = {}
        self._leaving: list[Mirror] = []  # removed ones with copies in flight

    def apply(self, routes: Iterable[RouteConfig], clusters: Mapping[str, Cluster], seed: int | None) -> None:
        """Apply the routes of a configuration; a mirror of the same route to the same cluster keeps its counts."""
        before, self.by_route = self.by_route, {}
        for route in routes:
            config, key = route.mirror, route.conditions
            if config is None:
                continue
            known = before.get(key)
            if known is not None and known.config.cluster == config.cluster:
                del before[key]
                known.apply(config, clusters[config.cluster])
                self.by_route[key] = known
            else:
                self.by_route[key] = Mirror(str(route), config, clusters[config.cluster], Random(seed))
        self._leaving += before.values()

    def sweep(self, now: float) -> None:
        """Enforce the timeouts of all copies; called by the sweep."""
        for mirror in (*self.by_route.values(), *self._leaving):
            for copy in list(mirror.copies):
                copy.check(now)
        if self._leaving:
            self._leaving = [mirror for mirror in self._leaving if mirror.copies]

    def stop(self) -> None:
        """Abandon all copies."""
        for mirror in (*self.by_route.values(), *self._leaving):
            for copy in list(mirror.copies):
                copy.abandon()
