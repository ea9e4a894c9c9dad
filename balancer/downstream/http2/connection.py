"""Downstream connection (HTTP/2, RFC 9113): a client's frames become streams, each with an exchange of its own.

After each read its events are handled, and all that they have caused is sent in one write (`open_streams.py`). The
engine (`balancer/http/h2`) frames, validates and limits floods; this class limits what is left: idle connections, and
the resets of a client over all its connections.
"""

from __future__ import annotations

import asyncio
from typing import Final, cast

from balancer.clients.client_usage import HELD_BY_TURN
from balancer.clients.turns import BYTES_PER_STEP, LARGE_HEAD, STEPS_PER_REFUSED_HEAD, STEPS_PER_RESET
from balancer.cluster.cluster import Cluster
from balancer.downstream.dispatch import AdminExchanges, handler_of
from balancer.downstream.http2.open_streams import OpenStreams
from balancer.downstream.http2.request_heads import FieldPairs, StreamRequestHeads
from balancer.downstream.http2.stream import Http2Stream
from balancer.errors import CLIENT_LEFT, Http2Error, RequestRejected
from balancer.http.h1.client import HTTP2
from balancer.http.h1.field_list import trailers_of
from balancer.http.h2.events import (
    CLOSED,
    DATA,
    ENHANCE_YOUR_CALM,
    HEAD,
    HTTP_1_1_REQUIRED,
    NO_ERROR,
    OVERSIZED,
    PROTOCOL_ERROR,
    RESET,
    TRAILERS,
    name_of,
)
from balancer.http.h2.frame_scanner import FrameScanner
from balancer.http.h2.limits import TICK, Http2Limits
from balancer.http.h2.reset_counts import FLOOD_RESETS, TOO_MANY_RESETS, refusal_delay
from balancer.routes.own_response import Refusal
from balancer.routes.table import RouteTable

RESETS_BEFORE_SWEEP: Final = 100
"""Resets of a connection that are counted for its client at once; connections that begin together share its bound."""


class Http2Connection(OpenStreams):
    """A client's HTTP/2 connection; the protocol of its transport."""

    def __init__(
        self,
        cluster: Cluster,
        limits: Http2Limits,
        admin_exchange: AdminExchanges,
        routes: RouteTable | None = None,
    ) -> None:
        super().__init__(cluster, limits)
        self._admin_exchange = admin_exchange
        self._routes = routes
        self._unstarted: list[Http2Stream] = []  # started at the end of the current read
        self.ends_late = False
        self.is_begun = False  # a request has come
        self._frames = FrameScanner()
        self._late = b""  # from `_late_at` on, input that has not been parsed
        self._late_at = 0
        self._steps = 0  # that the current read or turn has cost
        self._left_at = 0.0  # when the connection began to leave, else 0
        self._ticked_at = cluster.process.cached_time
        self._unsent = 0  # bytes for the client at the last sweep, while it is left
        self._resets = 0  # of those of the engine that have been counted for the client

    # --- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        limits, process = self._cluster.limits, self._process
        self.begin(transport, HTTP2)
        self.write = self.transport.write
        self._high = limits.high_water
        client = self.client
        self._heads = StreamRequestHeads(client, limits, process.fresh_id)
        self.usage = process.connected(self, client.address)
        process.counts.http2_connections += 1
        self._is_refused = bool(process.resets) and process.resets.refuses(client.address, process.now())
        if self._is_refused:
            delay = refusal_delay(process.counts.http2_connections, self.usage.holders)
            asyncio.get_running_loop().call_later(delay, self._end_refused)
        else:
            self.write(self.engine.data_to_send())

    def apply(self) -> None:
        super().apply()
        limits = self._cluster.limits
        self._heads.apply(self.client, limits)
        self._high = limits.high_water

    def data_received(self, data: bytes) -> None:
        if self._is_refused:
            self.transport.pause_reading()  # what comes with the first bytes is a client's, more is a flood's
            return
        self._late = self._late[self._late_at :] + data if self._late else data
        self._late_at = 0
        if self.is_held & HELD_BY_TURN:
            return
        limit = self._process.turns.at_once
        self._take(limit)
        if self._steps >= limit:
            self._process.turns.spend(self._steps - limit)
            if self._frames.has_more_resets(self._late, self._late_at, self.engine.resets_left):
                self._count_resets(self._cluster.now(), FLOOD_RESETS)
                self._end(ENHANCE_YOUR_CALM, TOO_MANY_RESETS)
            else:
                self._process.turns.wait(self)

    def take_turn(self, steps: int) -> int:
        self._take(steps)
        if self._steps >= steps:
            self._process.turns.wait(self)
        else:
            self._process.turns.end(self)
        return self._steps

    def _take(self, limit: int) -> None:
        """Take input until it has cost `limit` steps. What heads cost is known between pieces, which grow."""
        frames, data, at, heads = self._frames, self._late, self._late_at, 1
        self._late = b""
        self._is_reading = True
        self._steps = 0
        size = len(data)
        while at < size and self._steps < limit and not self.engine.is_closed:
            heads *= 2
            end = frames.end_of_piece(data, at, limit - self._steps, heads)
            if end == at:
                break
            self._steps += frames.small
            resets = self.engine.resets
            self._receive(data[at:end])
            if self.engine.resets > resets and self.engine.has_many_resets:
                self._steps += STEPS_PER_RESET * (self.engine.resets - resets)
            at = end
        if at < size and not self.engine.is_closed:
            self._late, self._late_at = data, at
        if self._unstarted:
            unstarted, self._unstarted = self._unstarted, []
            for stream in unstarted:
                stream.start()
        self._is_reading = False
        if self._flush_is_due or self.engine.has_answers or self._watched or self._ended or self._left_at:
            self._flush()
        if self.engine.resets - self._resets >= RESETS_BEFORE_SWEEP:
            self._ends_flood(self._cluster.now())

    def _receive(self, data: bytes) -> None:
        engine = self.engine
        for kind, stream_id, value, flag in engine.receive(data):
            if kind == HEAD:
                self._begin(stream_id, value, flag)
            elif kind == DATA:
                self._flush_is_due = True
                stream = self._streams.get(stream_id)
                if stream is None:
                    engine.acknowledge(stream_id, len(value))
                else:
                    stream.data(value, flag)
            else:
                self._handle(kind, stream_id, value, flag)

    def _handle(self, kind: int, stream_id: int, value: object, flag: bool) -> None:
        stream = self._streams.get(stream_id)
        if kind == RESET:
            self.flush_soon()
            if flag:
                self._process.counts.http2_resets += 1
            if stream is not None:
                if not flag:
                    stream.cut_by = Http2Error(f"the stream was reset: {name_of(cast(int, value))}")
                stream.lost(None)
            elif stream_id in self._ended:
                self.forget(self._ended[stream_id])
        elif kind == TRAILERS and stream is not None:
            stream.ended(trailers_of(cast(FieldPairs, value)))
        elif kind == OVERSIZED:
            stream = self._open(stream_id)
            self._refuse(stream, self._heads.oversized(cast(FieldPairs, value)), flag)
        elif kind == CLOSED:
            code, reason = cast("tuple[int, str]", value)
            if flag:
                code = NO_ERROR  # only those of our own count
            elif code != NO_ERROR:
                self.cut_by = Http2Error(reason)
            if code == ENHANCE_YOUR_CALM:
                self._count_resets(self._cluster.now(), FLOOD_RESETS)
            self._closed(code, lingers=code == NO_ERROR and self.engine.has_discarded)

    def eof_received(self) -> bool:
        """Close: without an end of its own, a client of HTTP/2 can neither open windows nor end a stream."""
        self.ends_late = bool(self.is_held & HELD_BY_TURN)
        return self.ends_late

    def connection_lost(self, error: Exception | None) -> None:
        self._process.forget(self)
        has_left = self.cut_by is CLIENT_LEFT and not (self.engine.is_closed or self._left_at)
        self._count_resets(self._cluster.now(), also=len(self._streams) if has_left else 0)
        self._flush_is_due = self._is_reading = True  # nothing is sent any more
        for stream in self._ended.values():
            stream.uncharge()
        self._ended.clear()
        self._watched.clear()
        self._unstarted.clear()
        for stream in list(self._streams.values()):
            stream.cut_by = self.cut_by
            stream.lost(error)
        self._process.client_left()

    def pause_writing(self) -> None:
        self.is_write_paused = self.engine.is_blocked = True

    def resume_writing(self) -> None:
        self.is_write_paused = self.engine.is_blocked = False
        self._flush()
        self._handle_events()

    # --- streams

    def _open(self, stream_id: int) -> Http2Stream:
        cluster = self._cluster
        self.is_begun = True
        self._process.counts.http2_streams += 1
        stream = Http2Stream(cluster, self, stream_id)
        self._streams[stream_id] = stream
        return stream

    def _begin(self, stream_id: int, fields: FieldPairs, has_ended: bool) -> None:
        stream = self._open(stream_id)
        try:
            request = self._heads.read(fields, has_ended)
            if len(request.raw) > LARGE_HEAD:
                self._steps += (len(request.raw) - LARGE_HEAD) // BYTES_PER_STEP
            if request.fields.is_grpc:
                stream.begin_call(request)
            handler, limit = handler_of(self._cluster, stream, request, self._admin_exchange, self._routes)
        except RequestRejected as error:
            self._refuse(stream, error, has_ended)
            return
        stream.expect(handler, request, limit, has_ended)
        if limit is not None and request.fields.length > limit:
            stream.reject_body(limit)
            return
        if request.fields.is_offer:
            stream.await_upgrade()
        if stream.expects_body:
            self._unstarted.append(stream)  # sent with the body in this read
        else:
            handler.start()

    def _refuse(self, stream: Http2Stream, error: RequestRejected, has_ended: bool) -> None:
        """Answer a request that is not forwarded; the connection stays, unless that happens often."""
        self._steps += STEPS_PER_REFUSED_HEAD
        self.count_fault()
        refusal = Refusal(self._cluster, stream, error, self._heads.raw, self._routes)
        stream.refuse(refusal, has_ended)

    # --- ends

    def check(self, now: float) -> None:
        cluster, engine = self._cluster, self.engine
        if now - self._ticked_at >= TICK:
            self._ticked_at = now
            engine.tick()
            if engine.has_discarded:
                self.flush_soon()
        if engine.resets > self._resets and self._ends_flood(now):
            return
        for stream in list(self._streams.values()):
            if self.is_held & HELD_BY_TURN and not stream.is_write_paused:
                stream.idle_since = now  # what it sends may be behind that
            stream.check(now)
        for stream in list(self._ended.values()):
            stream.check_reader(now)
        quiet = now - self.idle_since
        if self.transport.is_closing():  # and takes nothing of the last bytes
            if not self._makes_progress(self.transport.get_write_buffer_size(), now):
                self.abort()
        elif self._left_at:  # and the client does not end it, nor take anything of the last responses
            unsent = engine.unsent_in_all + self.transport.get_write_buffer_size()
            if not (self._streams or self._ended or self._makes_progress(unsent, now)):
                self._end(NO_ERROR)
        elif not self._process.keeps_alive or engine.is_worn:
            self._leave()
        elif not (self._streams or self._ended):
            if not self.is_begun and quiet > cluster.timeouts.head:
                self._end(NO_ERROR)
            elif quiet > self._process.idle_limit:
                self._leave()

    def _makes_progress(self, unsent: int, now: float) -> bool:
        """Return whether a client that is left has done or taken anything within `timeouts.linger`."""
        if unsent != self._unsent:
            self._unsent, self.idle_since = unsent, now
        return now - max(self.idle_since, self._left_at) <= self._cluster.timeouts.linger

    def close_if_idle(self, now: float, longer_than: float) -> bool:
        """Leave if no stream has been open for more than `longer_than` seconds. Returns whether it left."""
        if self._streams or self._ended or self._left_at or now - self.idle_since <= longer_than:
            if self._process.is_draining:
                self._leave()
            return False
        self._leave()
        return True

    def end_late_head(self, now: float, longer_than: float) -> bool:
        return False

    def _leave(self) -> None:
        if not self._left_at and not self.transport.is_closing():
            self._left_at = self._cluster.now()
            self.engine.leave()
            self.flush_soon()

    def _end(self, code: int, reason: str = "") -> None:
        """End the connection and all its streams."""
        self.engine.terminate(code, reason)
        if reason:
            self.cut_by = Http2Error(reason)
        self._closed(code)

    def _end_refused(self) -> None:
        if not self.transport.is_closing():
            self._end(HTTP_1_1_REQUIRED, TOO_MANY_RESETS)

    def _closed(self, code: int, *, lingers: bool = False) -> None:
        """Send the last bytes and close. If it `lingers`, drop input until the client closes, too: what comes after a
        close is answered by a reset, which discards what the client has not read (RFC 9112 § 9.6)."""
        if code in (ENHANCE_YOUR_CALM, HTTP_1_1_REQUIRED):
            self._process.counts.http2_floods += 1
        elif code >= PROTOCOL_ERROR:
            self._process.counts.http2_violations += 1
        if not self.transport.is_closing():
            data = self.engine.data_to_send()
            if data:
                self.write(data)
            if lingers:
                self._left_at = self.idle_since = self._cluster.now()
                self.transport.write_eof()
            else:
                self.transport.close()

    def _ends_flood(self, now: float) -> bool:
        """Count the new resets for the client; end the connection if it has its part in too many. Returns whether."""
        if not self._count_resets(now) or not self.engine.has_many_resets:
            return False
        self._end(ENHANCE_YOUR_CALM, TOO_MANY_RESETS)
        return True

    def _count_resets(self, now: float, at_least: int = 0, also: int = 0) -> bool:
        """Count the resets since the last call for the client, and `also` streams that it left open. Returns whether it
        is refused HTTP/2 for now."""
        number = max(at_least, self.engine.resets - self._resets) + also
        self._resets = self.engine.resets
        if not number or self.client.is_trusted or self._cluster.exempts(self.client.address):
            return False
        return self._process.resets.add(self.client.address, number, now)
