"""Workers: hosts that accept, refuse or hang, and what they do with requests.

Rule of this file: a worker keeps to HTTP unless its damage says otherwise, and believes nothing: it compares every
byte of a body, and takes a second request before its answer to the first one for a fault.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from tests.faultsim.ledger import Ledger, Try
from tests.faultsim.plan import Ask
from tests.faultsim.reading import CHUNKED, Content, Reader, Wrong, content
from tests.faultsim.wires import FIN, READ, End, Route

if TYPE_CHECKING:
    from tests.faultsim.timeline import Timeline

_REQUEST = re.compile(rb"([A-Z]+) /(\d+) HTTP/1\.1\r\n")
_LENGTH = re.compile(rb"\r\ncontent-length: (\d+)\r\n", re.I)

GARBAGE = b"\x00\x01 this is not HTTP\r\n\r\n"
CUT_OFF = ("begun", "middle", "last")


class Host:
    """A machine. `dialling` is what becomes of new connections: "accept", "refuse", "hang", or "slam": accept, end."""

    def __init__(self, number: int, region: str, route: Route, idle_close: float | None) -> None:
        self.number = number
        self.region = region
        self.route = route
        self.idle_close = idle_close
        self.dialling = "accept"
        self.is_frozen = False
        self.ends: list[WorkerEnd] = []
        self._waiting: list[Callable[[], None]] = []

    def alive(self) -> list[WorkerEnd]:
        """Connections that stand as far as it knows."""
        self.ends = [end for end in self.ends if not end.is_over]
        return self.ends

    def freeze(self) -> None:
        """Its kernel goes on, and the worker stands still."""
        self.is_frozen = True
        for end in self.alive():
            end.is_deaf = True

    def thaw(self) -> None:
        """It goes on where it stood."""
        self.is_frozen = False
        waiting, self._waiting = self._waiting, []
        for go_on in waiting:
            go_on()
        for end in self.alive():
            end.hear()

    def when_awake(self, go_on: Callable[[], None]) -> None:
        """At once, or when it is thawed."""
        if self.is_frozen:
            self._waiting.append(go_on)
        else:
            go_on()


class WorkerEnd(End, Reader):
    """One connection that the unit has opened."""

    def __init__(self, timeline: Timeline, host: Host, number: int, ledger: Ledger) -> None:
        End.__init__(self, timeline, host.route, number)
        Reader.__init__(self)
        self._host = host
        self._ledger = ledger
        self._ask: Ask | None = None
        self._turn = 0
        self._content: Content | None = None
        self._is_answering = self._is_hung = False
        self._served = 0
        self.is_deaf = host.is_frozen
        host.ends.append(self)

    def __repr__(self) -> str:
        return f"host {self._host.number} connection {self.number}"

    @property
    def is_idle(self) -> bool:
        """Whether nothing is asked of it."""
        return self._ask is None

    def slam(self) -> None:
        """End it as soon as it stands, which the unit hears of at once."""
        wire = self.wire
        self.is_over = True
        if wire is not None and self.number % 3:
            wire.fail(ConnectionResetError(104, "Connection reset by peer"))
        elif wire is not None:
            wire.arrive(FIN)

    # --- End

    def told(self, data: bytes) -> None:
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
            raise Wrong(f"{self} got what is no request: {head[:100]!r}")
        ask = self._ledger.asks[int(line[2])]
        if self._ask is not None:
            raise Wrong(f"{self} got {ask} before it had answered {self._ask}")
        if line[1] != ask.method:
            raise Wrong(f"{ask} became {line[1]!r}")
        self._ask, self._turn = ask, self._ledger.arrived(ask.number)
        self._content = Content(ask.number, 0)
        if self._ledger.note is not None:
            self._ledger.note(f"{self} gets {ask}, time {self._turn}")
        if ask.reply.is_early:
            self._answer_soon()
        self._pass("head")
        return self._size(head, ask)

    def _size(self, head: bytes, ask: Ask) -> int:
        if b"\r\ntransfer-encoding: chunked\r\n" in head.lower():
            return CHUNKED
        length = _LENGTH.search(head)
        size = int(length[1]) if length else 0
        if size != ask.size:
            raise Wrong(f"{ask} announces {size} bytes of {ask.size}")
        return size

    def piece(self, data: bytes) -> None:
        if self._ask is None or self._content is None:
            return  # answered early
        self._content.add(data)
        if self._content.size * 2 >= self._ask.size:
            self._pass("body")

    def whole(self) -> None:
        ask, came = self._ask, self._content
        if ask is None or came is None or self.is_over:
            return
        if came.size != ask.size:
            raise Wrong(f"{ask} ended after {came.size} bytes of {ask.size}")
        self._ledger.executed(ask)
        if not self._pass("whole") and not ask.reply.is_early:
            self._answer_soon()

    # --- what it does

    def _damage(self, stage: str) -> str | None:
        ask, turn = self._ask, self._turn
        damage = ask.worker_damage[turn] if ask is not None and turn < len(ask.worker_damage) else None
        return damage[1] if damage is not None and damage[0] == stage else None

    def _pass(self, stage: str) -> bool:
        """Whether something befalls it at this stage."""
        kind = self._damage(stage)
        if kind is None or self.is_over or self._is_hung:
            return False
        self._strike(kind)
        return True

    def _strike(self, kind: str) -> None:
        if self._ledger.note is not None:
            self._ledger.note(f"{self} is struck by {kind}")
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
        ask = self._ask
        service = ask.reply.service if ask is not None else 0.0
        self.timeline.after(service, self._host.when_awake, self._answer)

    def _answer(self) -> None:
        ask = self._ask
        if ask is None or self.is_over or self._is_hung:
            return
        reply = ask.reply
        is_bodiless = ask.method == b"HEAD" or reply.status in (204, 304)
        answer = Try(reply.status, 0 if is_bodiless else reply.size)
        self._ledger.tried(ask, self._turn, answer)
        pieces = self._pieces(ask, is_bodiless)
        if reply.has_interim:
            self.send(b"HTTP/1.1 103 Early Hints\r\nLink: <x>\r\n\r\n")
        kind = next((kind for stage in CUT_OFF if (kind := self._damage(stage)) is not None), None)
        if kind is not None:
            self._break_off(pieces, kind, answer)
            return
        if self._damage("ended") == "garbage" and reply.framing != "close":
            pieces[-1] += b"".join(pieces)  # a second answer to the same request, which nobody waits for
        for number, piece in enumerate(pieces):
            self._send(piece, reply.gap if number else 0.0)
        self._over(ask)

    def _send(self, piece: bytes, after: float) -> None:
        for at in range(0, len(piece), READ):
            self.send(piece[at : at + READ], 0.0 if at else after)

    def _pieces(self, ask: Ask, is_bodiless: bool) -> list[bytes]:
        """The head with the first part of the body, and the rest of the parts."""
        reply = ask.reply
        head = b"HTTP/1.1 %d Whatever\r\nX-Try: %d-%d\r\n" % (reply.status, ask.number, self._turn)
        if reply.framing == "length" and reply.status != 204:
            head += b"Content-Length: %d\r\n" % reply.size
        elif reply.framing == "chunked" and reply.status != 204:
            head += b"Transfer-Encoding: chunked\r\n"
        if reply.closes or reply.is_early:
            head += b"Connection: close\r\n"
        if ask.number % 3:
            head += b"Date: Thu, 01 Jan 1970 00:00:00 GMT\r\n"
        head += b"\r\n"
        if is_bodiless:
            return [head]
        body = content(ask.number, self._turn + 1, reply.size)
        step = max(1, -(-reply.size // reply.pieces))
        parts = [body[at : at + step] for at in range(0, reply.size, step)]
        if reply.framing == "chunked":
            parts = [b"%x\r\n%b\r\n" % (len(part), part) for part in parts]
            parts.append(b"0\r\n\r\n")
        return [head + b"".join(parts[:1]), *parts[1:]]

    def _break_off(self, pieces: list[bytes], kind: str, answer: Try) -> None:
        """Send a part of it, at least the head, and be struck."""
        ask = self._ask
        whole = b"".join(pieces)
        head = whole.index(b"\r\n\r\n") + 4
        stage = next(stage for stage in CUT_OFF if self._damage(stage) is not None)
        size = {"begun": head, "middle": (head + len(whole)) // 2, "last": len(whole) - 1}[stage]
        is_until_close = ask is not None and ask.reply.framing == "close"
        if kind == "garbage" and (ask is None or ask.reply.framing != "chunked" or stage != "begun"):
            kind = "reset"  # elsewhere it cannot be told from a body
        if kind == "fin" and is_until_close and size >= head:
            answer.size = max(0, size - head) if answer.size else 0  # that is then where it ends
        self._send(whole[:size], 0.0)
        if size == len(whole):  # it has no body that could be cut
            self._ask, self._is_answering = None, False
        if kind == "reset":  # not at once: what was sent is to arrive
            self.timeline.after(0.01, self._strike, kind)
        else:
            self._strike(kind)

    def _over(self, ask: Ask) -> None:
        """It has been answered, whatever has arrived of that."""
        self._served += 1
        kind = self._damage("ended")
        is_until_close = ask.reply.framing == "close" and ask.reply.status not in (204, 304)
        is_last = ask.reply.closes or ask.reply.is_early or is_until_close
        self._ask, self._is_answering = None, False
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
