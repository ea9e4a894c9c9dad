"""Workers: hosts that accept, refuse or hang, and their handling of requests.

A worker keeps to HTTP unless its damage says otherwise, and checks everything: each byte of a body, and that no
request arrives before its response to the last one.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from tests.faultsim.ledger import Attempt, Ledger
from tests.faultsim.plan import PlannedRequest
from tests.faultsim.reading import CHUNKED, Content, Reader, Violation, content
from tests.faultsim.timeline import Timeline
from tests.faultsim.wires import FIN, READ, End, Route

if TYPE_CHECKING:
    from tests.faultsim.stream_workers import StreamWorkerEnd

_REQUEST = re.compile(rb"([A-Z]+) /(\d+) HTTP/1\.1\r\n")
_LENGTH = re.compile(rb"\r\ncontent-length: (\d+)\r\n", re.I)

GARBAGE = b"\x00\x01 this is not HTTP\r\n\r\n"
CUT_OFF = ("begun", "middle", "last")


class Host:
    """A machine. `dialling` is what happens to new connections: "accept", "refuse", "hang", or "slam": accept, then
    end. `http2`: it speaks HTTP/2, with this window for each request and number of them at a time."""

    def __init__(
        self,
        number: int,
        region: str,
        route: Route,
        idle_close: float | None,
        http2: tuple[int, int] | None = None,
    ) -> None:
        self.number = number
        self.region = region
        self.route = route
        self.idle_close = idle_close
        self.http2 = http2
        self.dialling = "accept"
        self.is_frozen = False
        self.ends: list[WorkerEnd | StreamWorkerEnd] = []
        self._waiting: list[Callable[[], None]] = []

    def alive(self) -> list[WorkerEnd | StreamWorkerEnd]:
        """Connections that are open as far as the host can see."""
        self.ends = [end for end in self.ends if not end.is_over]
        return self.ends

    def freeze(self) -> None:
        """Stop the worker; the kernel goes on."""
        self.is_frozen = True
        for end in self.alive():
            end.is_reading_stopped = True

    def thaw(self) -> None:
        self.is_frozen = False
        waiting, self._waiting = self._waiting, []
        for go_on in waiting:
            go_on()
        for end in self.alive():
            end.resume_reading()

    def when_awake(self, go_on: Callable[[], None]) -> None:
        """Call at once, or after `thaw`."""
        if self.is_frozen:
            self._waiting.append(go_on)
        else:
            go_on()


class WorkerEnd(End, Reader):
    """One connection that the balancer has opened."""

    def __init__(self, timeline: Timeline, host: Host, number: int, ledger: Ledger) -> None:
        End.__init__(self, timeline, host.route, number)
        Reader.__init__(self)
        self._host = host
        self._ledger = ledger
        self._request: PlannedRequest | None = None
        self._turn = 0
        self._content: Content | None = None
        self._trailers: dict[bytes, bytes] | None = None
        self._is_answering = self._is_hung = False
        self._served = 0
        self.is_reading_stopped = host.is_frozen
        host.ends.append(self)

    def __repr__(self) -> str:
        return f"host {self._host.number} connection {self.number}"

    @property
    def is_idle(self) -> bool:
        return self._request is None

    # --- End

    def written(self, data: bytes) -> None:
        line = _REQUEST.match(data)
        if line is not None:
            self._ledger.sent(int(line[2]))

    def received(self, data: bytes) -> None:
        if not self._is_hung:
            self.feed(data)

    def ended(self, by_reset: bool) -> None:
        if by_reset:
            self.is_over = True
        elif not self._is_answering:
            self.leave()

    # --- Reader

    def head(self, head: bytes) -> int:
        line = _REQUEST.match(head)
        if line is None:
            raise Violation(f"{self} got what is no request: {head[:100]!r}")
        request = self._ledger.requests[int(line[2])]
        if self._request is not None:
            raise Violation(f"{self} got {request} before it had answered {self._request}")
        if line[1] != request.method:
            raise Violation(f"{request} became {line[1]!r}")
        if request.is_rpc:
            raise Violation(f"{self} got an RPC, which HTTP/1.1 cannot carry")
        self._request, self._turn = request, self._ledger.arrived(request.number)
        self._content = Content(request.number, 0)
        self._trailers = None
        if self._ledger.note is not None:
            self._ledger.note(f"{self} gets {request}, time {self._turn}")
        if request.reply.is_early:
            self._answer_soon()
        self._pass("head")
        return self._size(head, request)

    def _size(self, head: bytes, request: PlannedRequest) -> int:
        if b"\r\ntransfer-encoding: chunked\r\n" in head.lower():
            return CHUNKED
        length = _LENGTH.search(head)
        size = int(length[1]) if length else 0
        if size != request.size:
            raise Violation(f"{request} announces {size} bytes of {request.size}")
        return size

    def piece(self, data: bytes) -> None:
        if self._request is None or self._content is None:
            return  # answered early
        self._content.add(data)
        if self._content.size * 2 >= self._request.size:
            self._pass("body")

    def trailer(self, line: bytes) -> None:
        name, _, value = line.partition(b": ")
        self._trailers = {**(self._trailers or {}), name: value}

    def whole(self) -> None:
        request, came = self._request, self._content
        if request is None or came is None or self.is_over:
            return
        if came.size != request.size:
            raise Violation(f"{request} ended after {came.size} bytes of {request.size}")
        if self._trailers != ({b"x-sum": request.sum} if request.has_trailers else None):
            raise Violation(f"{request} came with trailers {self._trailers}")
        self._ledger.executed(request)
        if not self._pass("whole") and not request.reply.is_early:
            self._answer_soon()

    # --- what it does

    def _damage(self, stage: str) -> str | None:
        request, turn = self._request, self._turn
        damage = (
            request.worker_damage[turn] if request is not None and turn < len(request.worker_damage) else None
        )
        return damage[1] if damage is not None and damage[0] == stage else None

    def _pass(self, stage: str) -> bool:
        """Return whether damage of this stage was applied."""
        kind = self._damage(stage)
        if kind is None or self.is_over or self._is_hung:
            return False
        self._apply_damage(kind)
        return True

    def _apply_damage(self, kind: str) -> None:
        if self._ledger.note is not None:
            self._ledger.note(f"{self} suffers {kind}")
        if kind == "reset":
            self.reset()
        elif kind == "hang":
            self._is_hung = True
        else:
            if kind == "garbage":
                self.send(GARBAGE)
            self.leave()

    def _answer_soon(self) -> None:
        self._is_answering = True
        request = self._request
        service = request.reply.service if request is not None else 0.0
        self.timeline.after(service, self._host.when_awake, self._answer)

    def _answer(self) -> None:
        request = self._request
        if request is None or self.is_over or self._is_hung:
            return
        reply = request.reply
        is_bodiless = request.method == b"HEAD" or reply.status in (204, 304)
        answer = Attempt(reply.status, 0 if is_bodiless else reply.size)
        self._ledger.tried(request, self._turn, answer)
        if reply.has_trailers and reply.framing == "chunked" and not is_bodiless:
            answer.trailers = {b"x-sum": b"%d" % self._turn}
        pieces = self._pieces(request, is_bodiless)
        if reply.has_interim:
            self.send(b"HTTP/1.1 103 Early Hints\r\nLink: <x>\r\n\r\n")
        kind = next((kind for stage in CUT_OFF if (kind := self._damage(stage)) is not None), None)
        if kind is not None:
            self._break_off(pieces, kind, answer)
            return
        if self._damage("ended") == "garbage" and reply.framing != "close":
            pieces[-1] += b"".join(pieces)  # a second response to the same request
        for number, piece in enumerate(pieces):
            self._send(piece, reply.gap if number else 0.0)
        self._over(request)

    def _send(self, piece: bytes, after: float) -> None:
        for at in range(0, len(piece), READ):
            self.send(piece[at : at + READ], 0.0 if at else after)

    def _pieces(self, request: PlannedRequest, is_bodiless: bool) -> list[bytes]:
        """The head with the first part of the body, then the other parts."""
        reply = request.reply
        head = b"HTTP/1.1 %d Whatever\r\nX-Attempt: %d-%d\r\n" % (reply.status, request.number, self._turn)
        if reply.framing == "length" and reply.status != 204:
            head += b"Content-Length: %d\r\n" % reply.size
        elif reply.framing == "chunked" and reply.status != 204:
            head += b"Transfer-Encoding: chunked\r\n"
        if reply.closes or reply.is_early:
            head += b"Connection: close\r\n"
        if request.number % 3:
            head += b"Date: Thu, 01 Jan 1970 00:00:00 GMT\r\n"
        head += b"\r\n"
        if is_bodiless:
            return [head]
        body = content(request.number, self._turn + 1, reply.size)
        step = max(1, -(-reply.size // reply.pieces))
        parts = [body[at : at + step] for at in range(0, reply.size, step)]
        if reply.framing == "chunked":
            parts = [b"%x\r\n%b\r\n" % (len(part), part) for part in parts]
            trailer = b"x-sum: %d\r\n" % self._turn if reply.has_trailers else b""
            parts.append(b"0\r\n%b\r\n" % trailer)
        return [head + b"".join(parts[:1]), *parts[1:]]

    def _break_off(self, pieces: list[bytes], kind: str, answer: Attempt) -> None:
        """Send a part of the response, at least the head, and apply the damage."""
        request = self._request
        whole = b"".join(pieces)
        head = whole.index(b"\r\n\r\n") + 4
        stage = next(stage for stage in CUT_OFF if self._damage(stage) is not None)
        size = {"begun": head, "middle": (head + len(whole)) // 2, "last": len(whole) - 1}[stage]
        is_until_close = request is not None and request.reply.framing == "close"
        if kind == "garbage" and (request is None or request.reply.framing != "chunked" or stage != "begun"):
            kind = "reset"  # elsewhere it cannot be written from a body
        if kind == "fin" and is_until_close and size >= head:
            answer.size = max(0, size - head) if answer.size else 0  # the body ends there
        self._send(whole[:size], 0.0)
        if size == len(whole):  # there is no body to cut
            self._request, self._is_answering = None, False
        if kind == "reset":  # later, so that the bytes sent before arrive
            self.timeline.after(0.01, self._apply_damage, kind)
        else:
            self._apply_damage(kind)

    def _over(self, request: PlannedRequest) -> None:
        """The response was sent, whether it has arrived or not."""
        self._served += 1
        kind = self._damage("ended")
        is_until_close = request.reply.framing == "close" and request.reply.status not in (204, 304)
        is_last = request.reply.closes or request.reply.is_early or is_until_close
        self._request, self._is_answering = None, False
        if kind == "reset":
            self.timeline.after(0.02, self.reset)
        elif kind == "fin" or is_last:
            self.send(FIN)
            self.is_over = True
        elif self._host.idle_close is not None:
            self.timeline.after(self._host.idle_close, self._close_if_idle, self._served)

    def _close_if_idle(self, served: int) -> None:
        if self.is_idle and self._served == served:
            self.leave()
