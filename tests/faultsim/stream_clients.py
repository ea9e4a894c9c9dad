"""Clients that speak HTTP/2: several requests at a time on one connection, each checked as in `clients.py`.

A request that the balancer has refused, or that a GOAWAY leaves out, must not have reached a worker, and is sent again.
"""

from __future__ import annotations

from typing import cast

from tests.faultsim.clients import STALLS, Client, parts_of
from tests.faultsim.messages import Response
from tests.faultsim.plan import PlannedRequest
from tests.faultsim.reading import Violation
from tests.faultsim.streams import CANCEL, NO_ERROR, REFUSED_STREAM, Stream, StreamsEnd
from tests.faultsim.timeline import Timeline
from tests.faultsim.wires import FIN, Route
from tests.support.frames import GOAWAY, PREFACE, frame

STAYS = 0.5
"""Seconds for which every second client keeps its connection after its last response."""


class ClientStream(Stream):
    """A request and its response."""

    def __init__(self, number: int, response: Response) -> None:
        super().__init__(number, 0, 0)
        self.response = response
        self.request = response.request
        self.is_stopped = False  # the request's body is never completed


def head_of(request: PlannedRequest) -> list[tuple[bytes, bytes]]:
    fields = [
        (b":method", request.method),
        (b":scheme", b"http"),
        (b":authority", b"sim"),
        (b":path", b"/%d" % request.number),
    ]
    if request.is_rpc:
        fields += [(b"content-type", b"application/grpc"), (b"te", b"trailers")]
        if request.deadline:
            fields.append((b"grpc-timeout", b"%dm" % request.deadline))
    elif not request.is_chunked and (request.size or request.method in (b"POST", b"PUT")):
        fields.append((b"content-length", b"%d" % request.size))
    return fields


class StreamClientEnd(StreamsEnd):
    """One connection of a client."""

    def __init__(self, timeline: Timeline, client: Client, route: Route, number: int) -> None:
        plan = client.plan
        super().__init__(timeline, route, number, plan.pace, plan.window, 0)
        self._client = client
        self._ledger = client.ledger
        self._next = 1
        self._is_spent = False  # no further request is sent on it
        self._is_parting = False

    def __repr__(self) -> str:
        return f"client {self._client.plan.number} connection {self.number}"

    @property
    def _owed(self) -> list[ClientStream]:
        streams = (cast(ClientStream, stream) for stream in self.streams.values())
        return [stream for stream in streams if stream.response.is_owed]

    # --- requests

    def begin(self) -> None:
        self.announce(PREFACE)
        self._send_next()

    def _send_next(self) -> None:
        client = self._client
        most = min(client.plan.depth, self.most_of_peer)
        while client.waiting and len(self.streams) < most and not (self._is_spent or self.is_over):
            self._request(client.waiting.popleft())
        if not self._owed and not self.is_over and (self._is_spent or not client.waiting):
            self._part_soon()

    def _request(self, request: PlannedRequest) -> None:
        stream = ClientStream(self._next, Response(self._ledger, request))
        self._next += 2
        self._ledger.say(f"{self} requests {request} on stream {stream.id}")
        self.opened(stream)
        stage, kind = request.client_damage or ("", "")
        parts = parts_of(request)
        is_whole = not (parts or request.is_chunked)
        self.send_head(stream, head_of(request), is_last=is_whole)
        if stage == "head" or (stage == "body" and is_whole):
            stream.is_stopped = True
            self.timeline.after(request.gap, self._misbehave, stream, kind)
            return
        if stage == "body":
            stream.is_stopped = kind != "goaway"
            self.timeline.after(0.01, self._misbehave, stream, kind)
            parts = parts if kind == "goaway" else parts[: len(parts) // 2]
        elif stage == "waiting":
            self.timeline.after(0.02, self._misbehave, stream, kind)
        for turn, part in enumerate(parts):
            if request.gap and turn:
                self.timeline.after(request.gap * turn, self._send_part, stream, part)
            else:
                self._send_part(stream, part)
        if not (is_whole or stream.is_stopped):
            self.timeline.after(request.gap * len(parts), self._send_end, stream)

    def _send_part(self, stream: ClientStream, part: bytes) -> None:
        self.send_body(stream, part, is_last=False)

    def _send_end(self, stream: ClientStream) -> None:
        request = stream.request
        trailers = [(b"x-sum", request.sum)] if request.has_trailers else None
        self.send_body(stream, b"", is_last=True, trailers=trailers)

    # --- what it does wrong

    def _misbehave(self, stream: ClientStream, kind: str) -> None:
        if self.is_over or not stream.response.is_owed:
            return
        self._ledger.say(f"{self} does: {kind} on stream {stream.id}")
        if kind == "rst":
            stream.response.lost("left")
            self.drop(stream, CANCEL)
        elif kind == "withhold":
            self.withhold(stream, STALLS)
        elif kind == "goaway":
            self._is_spent = True
            self.emit(frame(GOAWAY, bytes(8)))
        elif kind == "stall":
            self._is_spent = self.is_reading_stopped = True
            self.timeline.after(STALLS, self.resume_reading)
        elif kind == "half-close":
            self._is_spent = True
            self._flush()
            self.send(FIN)
        else:
            self.reset() if kind == "reset" else self.leave()
            self._lose("left")

    # --- responses

    def came_head(self, number: int, fields: dict[bytes, bytes], has_ended: bool) -> None:
        stream = cast("ClientStream | None", self.open_stream(number))
        if stream is None:
            return
        status, response, request = int(fields.get(b":status", b"0")), stream.response, stream.request
        if response.fields is not None:
            if status or not has_ended:
                raise Violation(f"{request} got a second head: {fields}")
            response.trailers = fields
        elif status < 200:
            if status != 103 or has_ended or not request.reply.has_interim:
                raise Violation(f"{request} got an interim response that no worker sent: {fields}")
        else:
            if b"connection" in fields or b"transfer-encoding" in fields:
                raise Violation(f"{request} got fields of one connection: {fields}")
            response.begin(status, fields)
            if request.client_damage is not None and request.client_damage[0] == "response":
                self.timeline.after(request.think, self._misbehave, stream, request.client_damage[1])
        if has_ended:
            self.end_came(stream)

    def came_data(self, stream: Stream, data: bytes) -> None:
        cast(ClientStream, stream).response.add(data)

    def came_end(self, stream: Stream) -> None:
        response = cast(ClientStream, stream).response
        if response.is_owed:
            response.end()

    def closed(self, stream: Stream) -> None:
        waiting = self._client.waiting
        self.timeline.after(waiting[0].think if waiting else 0.0, self._send_next)

    # --- the end

    def came_reset(self, stream: Stream, code: int) -> None:
        of = cast(ClientStream, stream)
        has_begun = of.response.fields is not None
        if not of.response.is_owed:
            if code != NO_ERROR:
                raise Violation(f"{of.request} was answered, and its stream reset with code {code}")
        elif code == NO_ERROR:
            raise Violation(f"{of.request} was reset with NO_ERROR before the end of its response")
        elif code == REFUSED_STREAM and not has_begun:
            self._repeat(of)
        else:
            of.response.lost("cut" if has_begun else "no answer")

    def _repeat(self, stream: ClientStream) -> None:
        """The balancer says that it has done nothing: send the request again, unless its damage is done."""
        request = stream.request
        self._ledger.check_unsent(request)
        if stream.is_stopped:
            stream.response.lost("left")
        else:
            stream.response.is_owed = False
            self._client.waiting.appendleft(request)

    def came_goaway(self, last: int, code: int) -> None:
        if code != NO_ERROR:
            raise Violation(f"{self} got a GOAWAY with code {code}")
        self._is_spent = True
        for stream in [stream for stream in self._owed if stream.id > last]:
            if stream.response.fields is not None:
                raise Violation(f"{stream.request} was answered, and a GOAWAY leaves it out")
            del self.streams[stream.id]
            self._ended.add(stream.id)
            self._repeat(stream)
        self.timeline.after(0.0, self._send_next)

    def _part_soon(self) -> None:
        if not self._is_parting:
            self._is_parting = True
            self.timeline.after(STAYS if self.number % 2 and not self._is_spent else 0.0, self._part)

    def _part(self) -> None:
        self._is_parting = False
        if self._client.waiting and not self._is_spent and not self.is_over:
            self._send_next()
        elif not self._owed and not self.is_over:
            self.emit(frame(GOAWAY, bytes(8)))
            self.leave()
            self._lose("no answer")

    def ended(self, by_reset: bool) -> None:
        if self.is_over:
            return
        if by_reset:
            self.is_over = True
        else:
            self.leave()
        self._lose("no answer")

    def _lose(self, how: str) -> None:
        """End the connection and its requests without a whole response."""
        for stream in self._owed:
            has_begun = stream.response.fields is not None
            stream.response.lost("cut" if how == "no answer" and has_begun else how)
        self.streams.clear()
        self.timeline.after(0.02, self._client.go_on)
