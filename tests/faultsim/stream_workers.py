"""Workers that speak HTTP/2: each request is a stream with damage of its own, and checked as in `workers.py`.

What a worker refuses, or leaves out by a GOAWAY, it has not processed, so that it may be sent again.
"""

from __future__ import annotations

import struct
from collections import deque
from typing import cast

from tests.faultsim.clients import STALLS
from tests.faultsim.ledger import Ledger
from tests.faultsim.messages import CUT_OFF, Arrival, in_pieces
from tests.faultsim.plan import PlannedRequest
from tests.faultsim.reading import Violation
from tests.faultsim.streams import (
    INTERNAL_ERROR,
    LARGEST,
    NO_ERROR,
    REFUSED_STREAM,
    Stream,
    StreamsEnd,
)
from tests.faultsim.timeline import Timeline
from tests.faultsim.workers import Host
from tests.support.frames import GOAWAY, HEADERS, PREFACE, block, frame, rst


class WorkerStream(Stream):
    """A request and its response."""

    def __init__(self, number: int, arrival: Arrival) -> None:
        super().__init__(number, 0, 0)
        self.arrival = arrival
        self.reply = arrival.request.reply
        self.is_damaged = False

    @property
    def is_untouched(self) -> bool:
        """Whether it may be said that it was not processed."""
        return not (self.arrival.is_executed or self.arrival.is_answering)


class StreamWorkerEnd(StreamsEnd):
    """One connection that the balancer has opened to a host that speaks HTTP/2."""

    def __init__(self, timeline: Timeline, host: Host, number: int, ledger: Ledger) -> None:
        window, most_streams = host.http2 or (0, 0)
        super().__init__(timeline, host.route, number, 0.0, window, most_streams)
        self._host = host
        self._ledger = ledger
        self._written = b""  # by the balancer, up to the last whole frame
        self._has_preface = False  # written,
        self._is_begun = False  # and arrived
        self._heads: deque[dict[bytes, bytes]] = deque()  # written, and not arrived yet
        self._begun: dict[int, PlannedRequest] = {}  # by stream, as the balancer has written them
        self._last = 0  # stream that has arrived last
        self._goaway = LARGEST  # last stream that is processed
        self._is_bad = False
        self._served = 0
        self.is_reading_stopped = host.is_frozen
        host.ends.append(self)
        self.announce()

    def __repr__(self) -> str:
        return f"host {self._host.number} connection {self.number}"

    @property
    def is_idle(self) -> bool:
        return not self.streams

    # --- what the balancer has written: from now on it may have been received

    def written(self, data: bytes) -> None:
        data = self._written + data
        at = 0 if self._has_preface else len(PREFACE)
        self._has_preface = True
        while len(data) >= at + 9:
            size = int.from_bytes(data[at : at + 3], "big")
            if len(data) < at + 9 + size:
                break
            if data[at + 3] == HEADERS:
                number = int.from_bytes(data[at + 5 : at + 9], "big")
                fields = dict(self._decoder.decode(data[at + 9 : at + 9 + size], raw=True))
                self._heads.append(fields)
                if b":path" in fields:
                    self._note_sent(number, fields)
            at += 9 + size
        self._written = data[at:]

    def _note_sent(self, number: int, fields: dict[bytes, bytes]) -> None:
        request = self._ledger.requests[int(fields[b":path"][1:])]
        self._begun[number] = request
        if number <= self._goaway:
            self._ledger.sent(request.number)

    def fields_in(self, payload: bytes) -> dict[bytes, bytes]:
        return self._heads.popleft()

    # --- requests

    def received(self, data: bytes) -> None:
        if not self._is_begun:
            self._unread, data = b"", self._unread + data
            if len(data) < len(PREFACE):
                self._unread = data
                return
            if not data.startswith(PREFACE):
                raise Violation(f"{self} got no preface: {data[:40]!r}")
            self._is_begun, data = True, data[len(PREFACE) :]
        super().received(data)

    def came_head(self, number: int, fields: dict[bytes, bytes], has_ended: bool) -> None:
        if number <= self._last:
            stream = cast("WorkerStream | None", self.open_stream(number))
            if stream is not None:
                stream.arrival.trailers = fields
                self.end_came(stream)
            return
        self._last = number
        if number > self._goaway:
            self._ended.add(number)
            return
        request = self._begun[number]
        if len(self.streams) >= self.most_streams:
            if self.is_agreed:
                raise Violation(f"{self} got more than {self.most_streams} streams at a time")
            self._refuse(number, request)
            return
        arrival = Arrival(self._ledger, request, is_http2=True)
        stream = WorkerStream(number, arrival)
        self.opened(stream)
        self._ledger.say(f"{self} gets {request} on stream {number}, time {arrival.turn}")
        arrival.check_head(fields[b":method"], fields.get(b"content-length"))
        kind = (fields.get(b"te"), fields.get(b"content-type"))
        if request.is_rpc and kind != (b"trailers", b"application/grpc"):
            raise Violation(f"{request} lost what makes it an RPC: {fields}")
        if request.reply.is_early:
            self._answer_soon(stream)
        if not self._pass(stream, "head") and has_ended:
            self.end_came(stream)

    def _refuse(self, number: int, request: PlannedRequest) -> None:
        self._ledger.unprocessed(request)
        self._ended.add(number)
        self.emit(rst(number, REFUSED_STREAM))

    def came_data(self, stream: Stream, data: bytes) -> None:
        of = cast(WorkerStream, stream)
        if of.arrival.add(data):
            self._pass(of, "body")

    def came_end(self, stream: Stream) -> None:
        of = cast(WorkerStream, stream)
        of.arrival.check_whole()
        if self.is_over or of.arrival.is_hung or self.streams.get(of.id) is not of:
            return
        of.arrival.is_executed = True
        self._ledger.executed(of.arrival.request)
        if not self._pass(of, "whole") and not of.reply.is_early:
            self._answer_soon(of)

    def came_reset(self, stream: Stream, code: int) -> None:
        """The balancer gives a request up."""

    def came_goaway(self, last: int, code: int) -> None:
        if code != NO_ERROR and not self._is_bad:
            raise Violation(f"{self} got a GOAWAY with code {code}")

    def ended(self, by_reset: bool) -> None:
        if by_reset:
            self.is_over = True
        else:
            self.leave()
        self.streams.clear()

    # --- what it does wrong

    def _pass(self, stream: WorkerStream, stage: str) -> bool:
        """Return whether damage of this stage was applied."""
        damage = stream.arrival.damage(stage)
        if damage is None or self.is_over or stream.is_damaged:
            return False
        stream.is_damaged = True
        self._apply_damage(stream, damage[1])
        return damage[1] not in ("goaway", "withhold") or self.streams.get(stream.id) is not stream

    def _apply_damage(self, stream: WorkerStream, kind: str) -> None:
        if self.is_over or self.streams.get(stream.id) is not stream:
            return
        self._ledger.say(f"{self} suffers {kind} on stream {stream.id}")
        if kind == "refuse" and stream.is_untouched:
            self._ledger.unprocessed(stream.arrival.request)
            self.drop(stream, REFUSED_STREAM)
        elif kind in ("rst", "refuse"):
            self.drop(stream, INTERNAL_ERROR)
        elif kind == "goaway":
            is_left_out = stream.id == self._last and stream.is_untouched
            self.go_away(stream.id - 2 if is_left_out else self._last)
        elif kind == "withhold":
            self.withhold(stream, STALLS)
        elif kind == "hang":
            stream.arrival.is_hung = True
        elif kind == "reset":
            self.reset()
        else:
            if kind == "garbage":
                self._is_bad = True
                self.emit(frame(HEADERS, b"\xff\xff\xff\xff\xff", stream.id, 5))
            self.leave()

    def go_away(self, last: int) -> None:
        """Process no stream above `last`, and close when the others have ended."""
        last = min(last, self._goaway)
        for number, request in self._begun.items():
            if last < number <= self._goaway:
                self._ledger.unprocessed(request)
                if self.streams.pop(number, None) is not None:
                    self._ended.add(number)
        self._goaway = last
        self.emit(frame(GOAWAY, struct.pack("!II", max(0, last), NO_ERROR)))
        self._leave_if_done()

    def _leave_if_done(self) -> None:
        if self._goaway != LARGEST and not self.streams:
            self.leave()

    # --- responses

    def _answer_soon(self, stream: WorkerStream) -> None:
        stream.arrival.is_answering = True
        self.timeline.after(stream.reply.service, self._host.when_awake, lambda: self._answer(stream))

    def _answer(self, stream: WorkerStream) -> None:
        arrival, reply = stream.arrival, stream.reply
        if self.is_over or arrival.is_hung or self.streams.get(stream.id) is not stream:
            return
        self._ledger.tried(arrival)
        if reply.has_interim:
            self.emit(frame(HEADERS, block((b":status", b"103"), (b"link", b"<x>")), stream.id, 4))
        damage = arrival.damage(*CUT_OFF)
        self.send_head(stream, self._head(stream), is_last=arrival.is_bodiless and damage is None)
        if damage is not None:
            self._break_off(stream, arrival.body, *damage)
            return
        if arrival.is_bodiless:
            self._over(stream)
            return
        parts = in_pieces(arrival.body, reply.pieces)
        for turn, part in enumerate(parts):
            if reply.gap and turn:
                self.timeline.after(reply.gap * turn, self._send_part, stream, part)
            else:
                self._send_part(stream, part)
        if reply.gap and len(parts) > 1:
            self.timeline.after(reply.gap * len(parts), self._send_end, stream)
        else:
            self._send_end(stream)

    def _send_part(self, stream: WorkerStream, part: bytes) -> None:
        self.send_body(stream, part, is_last=False)

    def _send_end(self, stream: WorkerStream) -> None:
        trailers = [*(stream.arrival.reply_trailers or {}).items()] or None
        self.send_body(stream, b"", is_last=True, trailers=trailers)
        self._over(stream)

    def _head(self, stream: WorkerStream) -> list[tuple[bytes, bytes]]:
        reply = stream.reply
        fields = [(b":status", b"%d" % reply.status), (b"x-attempt", stream.arrival.name)]
        if stream.arrival.request.is_rpc:
            fields.append((b"content-type", b"application/grpc"))
            if reply.is_trailers_only:
                fields.append((b"grpc-status", b"%d" % reply.grpc_status))
        elif reply.framing == "length" and reply.status != 204:
            fields.append((b"content-length", b"%d" % reply.size))
        return fields

    def _break_off(self, stream: WorkerStream, body: bytes, stage: str, kind: str) -> None:
        """Send a part of the response, and apply the damage."""
        size = {"begun": 0, "middle": len(body) // 2, "last": len(body)}[stage]
        self.send_body(stream, body[:size], is_last=False)
        if kind == "garbage" and size < len(body) and stream.reply.framing == "length":
            self.send_body(stream, b"", is_last=True)  # against its content-length
            return
        self.timeline.after(0.01, self._apply_damage, stream, kind)
        if kind in ("goaway", "withhold"):  # nothing is missing
            self.timeline.after(0.02, self._send_rest, stream, body[size:])

    def _send_rest(self, stream: WorkerStream, rest: bytes) -> None:
        self.send_body(stream, rest, is_last=False)
        self._send_end(stream)

    def _over(self, stream: WorkerStream) -> None:
        """The response was sent, whether it has arrived or not."""
        if self.is_over:
            return
        if not stream.has_ended and stream.has_sent_all and self.number % 2:
            self.drop(stream, NO_ERROR)  # it reads no more of the request
        _, kind = stream.arrival.damage("ended") or ("", "")
        if kind == "reset":
            self.timeline.after(0.02, self.reset)
        elif kind == "fin":
            self.leave()
        elif kind == "goaway" or stream.reply.closes:
            self.go_away(self._last)
        elif kind == "garbage":
            self._is_bad = True
            self.emit(frame(HEADERS, block((b":status", b"200")), stream.id, 5))

    def closed(self, stream: Stream) -> None:
        self._served += 1
        self._leave_if_done()
        if self._host.idle_close is not None and not self.streams:
            self.timeline.after(self._host.idle_close, self._close_if_idle, self._served)

    def _close_if_idle(self, served: int) -> None:
        if self.is_idle and self._served == served and not self.is_over:
            self.go_away(self._last) if self.number % 2 else self.leave()
