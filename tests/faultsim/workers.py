"""Workers: hosts that accept, refuse or hang, and their handling of requests.

A worker keeps to HTTP unless its damage says otherwise, and checks everything: each byte of a body, and that no
request arrives before its response to the last one.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from tests.faultsim.ledger import Ledger
from tests.faultsim.messages import CUT_OFF, Arrival, fields_of, in_pieces
from tests.faultsim.reading import CHUNKED, Reader, Violation
from tests.faultsim.timeline import Timeline
from tests.faultsim.wires import FIN, READ, End, Route

if TYPE_CHECKING:
    from tests.faultsim.stream_workers import StreamWorkerEnd

_REQUEST = re.compile(rb"([A-Z]+) /(\d+) HTTP/1\.1\r\n")

GARBAGE = b"\x00\x01 this is not HTTP\r\n\r\n"


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
        self._arrival: Arrival | None = None
        self._is_hung = False
        self._served = 0
        self.is_reading_stopped = host.is_frozen
        host.ends.append(self)

    def __repr__(self) -> str:
        return f"host {self._host.number} connection {self.number}"

    @property
    def is_idle(self) -> bool:
        return self._arrival is None

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
        elif self._arrival is None or not self._arrival.is_answering:
            self.leave()

    # --- Reader

    def head(self, head: bytes) -> int:
        line = _REQUEST.match(head)
        if line is None:
            raise Violation(f"{self} got what is no request: {head[:100]!r}")
        request = self._ledger.requests[int(line[2])]
        if self._arrival is not None:
            raise Violation(f"{self} got {request} before it had answered {self._arrival.request}")
        if request.is_rpc:
            raise Violation(f"{self} got an RPC, which HTTP/1.1 cannot carry")
        self._arrival = arrival = Arrival(self._ledger, request)
        self._ledger.say(f"{self} gets {request}, time {arrival.turn}")
        fields = fields_of(head)
        is_chunked = fields.get(b"transfer-encoding") == b"chunked"
        length = None if is_chunked else fields.get(b"content-length", b"0")
        arrival.check_head(line[1], length)
        if request.reply.is_early:
            self._answer_soon(arrival)
        self._pass("head")
        return CHUNKED if length is None else int(length)

    def piece(self, data: bytes) -> None:
        if self._arrival is not None and self._arrival.add(data):  # else answered early
            self._pass("body")

    def trailer(self, line: bytes) -> None:
        name, _, value = line.partition(b": ")
        if self._arrival is not None:
            self._arrival.trailers = {**(self._arrival.trailers or {}), name: value}

    def whole(self) -> None:
        arrival = self._arrival
        if arrival is None or self.is_over:
            return
        arrival.check_whole()
        self._ledger.executed(arrival.request)
        if not self._pass("whole") and not arrival.request.reply.is_early:
            self._answer_soon(arrival)

    # --- what it does

    def _pass(self, stage: str) -> bool:
        """Return whether damage of this stage was applied."""
        damage = self._arrival.damage(stage) if self._arrival is not None else None
        if damage is None or self.is_over or self._is_hung:
            return False
        self._apply_damage(damage[1])
        return True

    def _apply_damage(self, kind: str) -> None:
        self._ledger.say(f"{self} suffers {kind}")
        if kind == "reset":
            self.reset()
        elif kind == "hang":
            self._is_hung = True
        else:
            if kind == "garbage":
                self.send(GARBAGE)
            self.leave()

    def _answer_soon(self, arrival: Arrival) -> None:
        arrival.is_answering = True
        self.timeline.after(arrival.request.reply.service, self._host.when_awake, self._answer)

    def _answer(self) -> None:
        arrival = self._arrival
        if arrival is None or self.is_over or self._is_hung:
            return
        reply = arrival.request.reply
        self._ledger.tried(arrival)
        pieces = self._pieces(arrival)
        if reply.has_interim:
            self.send(b"HTTP/1.1 103 Early Hints\r\nLink: <x>\r\n\r\n")
        damage = arrival.damage(*CUT_OFF)
        if damage is not None:
            self._break_off(arrival, pieces, *damage)
            return
        if arrival.damage("ended") == ("ended", "garbage") and reply.framing != "close":
            pieces[-1] += b"".join(pieces)  # a second response to the same request
        for number, piece in enumerate(pieces):
            self._send(piece, reply.gap if number else 0.0)
        self._over(arrival)

    def _send(self, piece: bytes, after: float) -> None:
        for at in range(0, len(piece), READ):
            self.send(piece[at : at + READ], 0.0 if at else after)

    def _pieces(self, arrival: Arrival) -> list[bytes]:
        """The head with the first part of the body, then the other parts."""
        reply = arrival.request.reply
        head = b"HTTP/1.1 %d Whatever\r\nX-Attempt: %b\r\n" % (reply.status, arrival.name)
        if reply.framing == "length" and reply.status != 204:
            head += b"Content-Length: %d\r\n" % reply.size
        elif reply.framing == "chunked" and reply.status != 204:
            head += b"Transfer-Encoding: chunked\r\n"
        if reply.closes or reply.is_early:
            head += b"Connection: close\r\n"
        if arrival.request.number % 3:
            head += b"Date: Thu, 01 Jan 1970 00:00:00 GMT\r\n"
        head += b"\r\n"
        if arrival.is_bodiless:
            return [head]
        parts = in_pieces(arrival.body, reply.pieces)
        if reply.framing == "chunked":
            parts = [b"%x\r\n%b\r\n" % (len(part), part) for part in parts]
            trailers = (arrival.reply_trailers or {}).items()
            parts.append(b"0\r\n%b\r\n" % b"".join(b"%b: %b\r\n" % pair for pair in trailers))
        return [head + b"".join(parts[:1]), *parts[1:]]

    def _break_off(self, arrival: Arrival, pieces: list[bytes], stage: str, kind: str) -> None:
        """Send a part of the response, at least the head, and apply the damage."""
        framing = arrival.request.reply.framing
        whole = b"".join(pieces)
        head = whole.index(b"\r\n\r\n") + 4
        size = {"begun": head, "middle": (head + len(whole)) // 2, "last": len(whole) - 1}[stage]
        if kind == "garbage" and (framing != "chunked" or stage != "begun"):
            kind = "reset"  # elsewhere it cannot be written from a body
        if kind == "fin" and framing == "close" and size >= head:
            arrival.size = max(0, size - head) if arrival.size else 0  # the body ends there
        self._send(whole[:size], 0.0)
        if size == len(whole):  # there is no body to cut
            self._arrival = None
        if kind == "reset":  # later, so that the bytes sent before arrive
            self.timeline.after(0.01, self._apply_damage, kind)
        else:
            self._apply_damage(kind)

    def _over(self, arrival: Arrival) -> None:
        """The response was sent, whether it has arrived or not."""
        self._served += 1
        reply = arrival.request.reply
        is_until_close = reply.framing == "close" and reply.status not in (204, 304)
        _, kind = arrival.damage("ended") or ("", "")
        self._arrival = None
        if kind == "reset":
            self.timeline.after(0.02, self.reset)
        elif kind == "fin" or reply.closes or reply.is_early or is_until_close:
            self.send(FIN)
            self.is_over = True
        elif self._host.idle_close is not None:
            self.timeline.after(self._host.idle_close, self._close_if_idle, self._served)

    def _close_if_idle(self, served: int) -> None:
        if self.is_idle and self._served == served:
            self.leave()
