"""Clients: their requests, the checks of their responses, and their faults.

A client checks everything. A response must be for the next request, equal the worker's, and be complete; an
incomplete one must end in a reset. A client misbehaves only as its plan says.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from tests.faultsim.ledger import Ledger
from tests.faultsim.messages import Response, fields_of, in_pieces
from tests.faultsim.plan import PlannedClient, PlannedRequest
from tests.faultsim.reading import CHUNKED, UNTIL_CLOSE, Reader, Violation, content
from tests.faultsim.timeline import Timeline
from tests.faultsim.wires import FIN, READ, End, Route

STALLS = 4.0
"""Seconds for which a client that stalls reads nothing."""


def head_of(request: PlannedRequest) -> bytes:
    """The request's bytes up to the body."""
    version = b"1.0" if request.is_http10 else b"1.1"
    head = b"%b /%d HTTP/%b\r\nHost: sim\r\n" % (request.method, request.number, version)
    if request.is_chunked:
        head += b"Transfer-Encoding: chunked\r\n"
    elif request.size or request.method in (b"POST", b"PUT"):
        head += b"Content-Length: %d\r\n" % request.size
    if request.closes:
        head += b"Connection: close\r\n"
    return head + b"\r\n"


def parts_of(request: PlannedRequest) -> list[bytes]:
    """The request's body in pieces."""
    return in_pieces(content(request.number, 0, request.size), request.pieces, READ)


def body_of(request: PlannedRequest) -> list[bytes]:
    """The request's body in pieces as sent in HTTP/1.1."""
    parts = parts_of(request)
    if request.is_chunked:
        return [b"%x\r\n%b\r\n" % (len(part), part) for part in parts] + [b"0\r\n\r\n"]
    return parts


class Client:
    """A list of requests, sent on one connection at a time."""

    def __init__(self, plan: PlannedClient, ledger: Ledger, connect: Callable[[Client], None]) -> None:
        self.plan = plan
        self.ledger = ledger
        self.waiting = deque(plan.requests)
        self._connect = connect

    def go_on(self) -> None:
        """Connect if requests are left."""
        if self.waiting:
            self._connect(self)

    def refused(self) -> None:
        """The balancer accepts no connections any more."""
        while self.waiting:
            self.ledger.over(self.waiting.popleft(), "not connected")


class ClientEnd(End, Reader):
    """One connection of a client."""

    def __init__(self, timeline: Timeline, client: Client, route: Route, number: int) -> None:
        End.__init__(self, timeline, route, number, client.plan.pace)
        Reader.__init__(self)
        self._client = client
        self._ledger = client.ledger
        self._awaited: deque[PlannedRequest] = deque()
        self._is_spent = False  # no further request is sent on it
        self._is_thinking = False
        self._reading: Response | None = None  # since its final head
        self._has_half_closed = False
        self._asked: PlannedRequest | None = None  # the last one that got 100 (Continue)
        self._is_broken_off = False  # an incomplete request, which may end in any way

    def __repr__(self) -> str:
        return f"client {self._client.plan.number} connection {self.number}"

    # --- requests

    def begin(self) -> None:
        self._send_next()

    def _send_next(self) -> None:
        self._is_thinking = False
        client = self._client
        together = b""
        while client.waiting and len(self._awaited) < client.plan.depth and self._may_send:
            request = client.waiting.popleft()
            self._awaited.append(request)
            self._ledger.say(f"{self} requests {request}")
            stage, kind = request.client_damage or ("", "")
            if stage in ("head", "body"):
                self._send(together)
                together = b""
                self._send_part(request, stage, kind)
            elif request.pieces == 1 and not request.gap:
                together += head_of(request) + b"".join(body_of(request))
            else:
                self._send(together)
                together = b""
                self._send_in_pieces(request)
            self._is_spent |= request.closes or request.is_http10
            if stage == "waiting":
                self.timeline.after(0.02, self._misbehave_amid, request)
        self._send(together)
        if not client.waiting and not self._awaited and not self.is_over:
            self._part()

    @property
    def _may_send(self) -> bool:
        return not (self._is_spent or self.is_over)

    def _send(self, data: bytes) -> None:
        for at in range(0, len(data), READ):
            self.send(data[at : at + READ])

    def _send_in_pieces(self, request: PlannedRequest) -> None:
        head, body = head_of(request), body_of(request)
        middle = len(head) // 2
        for piece in (head[:middle], head[middle:], *body):
            self.send(piece, request.gap)

    def _send_part(self, request: PlannedRequest, stage: str, kind: str) -> None:
        head, body = head_of(request), b"".join(body_of(request))
        if stage == "head" or not body:
            self.send(head[: len(head) // 2], request.gap)
        else:
            self._send(head + body[: len(body) // 2])
        self._is_spent = self._is_broken_off = True
        if kind != "stall":
            self.timeline.after(0.01, self._misbehave, kind)

    def _misbehave_amid(self, request: PlannedRequest) -> None:
        if request.client_damage is not None and self._awaited and self._awaited[0] is request:
            self._misbehave(request.client_damage[1])

    def _misbehave(self, kind: str) -> None:
        if self.is_over:
            return
        self._ledger.say(f"{self} does: {kind}")
        self._is_spent = True
        if kind == "half-close":
            self._has_half_closed = True
            self.send(FIN)
        elif kind == "stall":
            self.is_reading_stopped = True
            self.timeline.after(STALLS, self.resume_reading)
        else:
            self.reset() if kind == "reset" else self.leave()
            self._lose("left")

    # --- Reader

    def received(self, data: bytes) -> None:
        self.feed(data)

    def head(self, head: bytes) -> int:
        if not self._awaited:
            raise Violation(f"{self} got a response without a request: {head[:100]!r}")
        request = self._awaited[0]
        status = int(head[9:12])
        if status < 200:
            self._interim(request, status)
            return 0
        fields = fields_of(head)
        self._reading = Response(self._ledger, request)
        self._reading.begin(status, fields)
        self._is_spent |= fields.get(b"connection") == b"close"
        if request.client_damage is not None and request.client_damage[0] == "response":
            self.timeline.after(0.0, self._misbehave_amid, request)
        if request.method == b"HEAD" or status in (204, 304):
            return 0
        if fields.get(b"transfer-encoding") == b"chunked":
            if request.is_http10:
                raise Violation(f"{request} of HTTP/1.0 got chunks")
            return CHUNKED
        return int(fields.get(b"content-length", UNTIL_CLOSE))

    def _interim(self, request: PlannedRequest, status: int) -> None:
        if (
            status == 100 and not request.is_http10
        ):  # whether this client, which has sent its FIN, still reads
            if not self._has_half_closed or request is self._asked:
                raise Violation(f"{request} was asked to continue")
            self._asked = request
            return
        if not request.reply.has_interim or request.is_http10:
            raise Violation(f"{request} got an interim response that no worker sent")

    def piece(self, data: bytes) -> None:
        if self._reading is None:
            raise Violation(f"{self} got a body without a head")
        self._reading.add(data)

    def trailer(self, line: bytes) -> None:
        name, _, value = line.partition(b": ")
        if self._reading is not None:
            self._reading.trailers = {**(self._reading.trailers or {}), name: value}

    def whole(self) -> None:
        response, self._reading = self._reading, None
        if response is None:  # an interim one
            return
        self._awaited.popleft()
        response.end(carries_trailers=self._is_chunked)
        if self._client.waiting and self._may_send:
            if not self._is_thinking:
                self._is_thinking = True
                self.timeline.after(self._client.waiting[0].think, self._send_next)
        elif not self._awaited and not self._is_spent:
            self._part()

    # --- the end

    def _part(self) -> None:
        self.leave()
        self._lose("no answer")

    def ended(self, by_reset: bool) -> None:
        if not by_reset and self._reading is not None and self._left == UNTIL_CLOSE:
            self._end()
        elif not by_reset and self.is_amid and self._reading is None and not self._is_broken_off:
            raise Violation(f"{self}: a head that is not whole ended in good order: {self._awaited}")
        if self.is_over:
            return
        if by_reset:
            self.is_over = True
        else:
            self.leave()
        self._lose("cut" if self._reading is not None else "no answer")

    def _lose(self, how: str) -> None:
        """End the connection and its requests without a response."""
        for request in self._awaited:
            self._ledger.over(request, how)
            how = "no answer" if how == "cut" else how
        self._awaited.clear()
        self._reading = None
        self.timeline.after(0.02, self._client.go_on)
