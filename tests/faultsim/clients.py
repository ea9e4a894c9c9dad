"""Clients: what they ask, how they read what they get, and how they behave.

Rule of this file: a client believes nothing. A response must be for the request whose turn it is, say what a worker
said, and be whole; one that is not whole must end in a reset. Whoever misbehaves does so because its plan says so.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from tests.faultsim.ledger import Ledger, Try
from tests.faultsim.plan import Ask, Caller
from tests.faultsim.reading import CHUNKED, UNTIL_CLOSE, Content, Reader, Wrong, content
from tests.faultsim.wires import FIN, READ, End, Route

if TYPE_CHECKING:
    from tests.faultsim.timeline import Timeline

_TRY = re.compile(rb"\r\nX-Try: (\d+)-(\d+)\r\n")
_LENGTH = re.compile(rb"\r\nContent-Length: (\d+)\r\n")

STALLS = 4.0
"""Seconds for which a client that stalls reads nothing."""


def head_of(ask: Ask) -> bytes:
    """Its bytes up to the body."""
    version = b"1.0" if ask.is_http10 else b"1.1"
    head = b"%b /%d HTTP/%b\r\nHost: sim\r\n" % (ask.method, ask.number, version)
    if ask.is_chunked:
        head += b"Transfer-Encoding: chunked\r\n"
    elif ask.size or ask.method in (b"POST", b"PUT"):
        head += b"Content-Length: %d\r\n" % ask.size
    if ask.closes:
        head += b"Connection: close\r\n"
    return head + b"\r\n"


def body_of(ask: Ask) -> list[bytes]:
    """Its body as it is sent, in pieces."""
    if not ask.size and not ask.is_chunked:
        return []
    body = content(ask.number, 0, ask.size)
    step = max(1, min(READ, -(-ask.size // ask.pieces)))
    parts = [body[at : at + step] for at in range(0, ask.size, step)]
    if ask.is_chunked:
        return [b"%x\r\n%b\r\n" % (len(part), part) for part in parts] + [b"0\r\n\r\n"]
    return parts


class Client:
    """Somebody with a list of requests, and a connection at a time."""

    def __init__(self, caller: Caller, ledger: Ledger, connect: Callable[[Client], None]) -> None:
        self.caller = caller
        self.ledger = ledger
        self.waiting = deque(caller.asks)
        self._connect = connect

    def go_on(self) -> None:
        """Connect if there is something left to be asked."""
        if self.waiting:
            self._connect(self)

    def refused(self) -> None:
        """The unit accepts nobody any more."""
        while self.waiting:
            self.ledger.over(self.waiting.popleft(), "not connected")


class ClientEnd(End, Reader):
    """One connection of a client."""

    def __init__(self, timeline: Timeline, client: Client, route: Route, number: int) -> None:
        End.__init__(self, timeline, route, number, client.caller.pace)
        Reader.__init__(self)
        self._client = client
        self._ledger = client.ledger
        self._asked: deque[Ask] = deque()
        self._is_spent = False  # nothing more will be asked on it
        self._is_thinking = False
        self._reading: tuple[Ask, Try | None, Content] | None = None
        self._status = 0
        self._own = b""
        self._is_broken_off = False  # a request that nobody can answer in full, and ends as it may

    def __repr__(self) -> str:
        return f"client {self._client.caller.number} connection {self.number}"

    # --- asking

    def begin(self) -> None:
        """It is connected."""
        self._ask_on()

    def _ask_on(self) -> None:
        self._is_thinking = False
        client = self._client
        together = b""
        while client.waiting and len(self._asked) < client.caller.depth and self._may_ask:
            ask = client.waiting.popleft()
            self._asked.append(ask)
            if self._ledger.note is not None:
                self._ledger.note(f"{self} asks {ask}")
            if ask.client_damage is not None and ask.client_damage[0] in ("head", "body"):
                self._send(together)
                together = b""
                self._ask_in_part(ask, *ask.client_damage)
            elif ask.pieces == 1 and not ask.gap:
                together += head_of(ask) + b"".join(body_of(ask))
            else:
                self._send(together)
                together = b""
                self._ask_in_pieces(ask)
            self._is_spent |= ask.closes or ask.is_http10
            if ask.client_damage is not None and ask.client_damage[0] == "waiting":
                self.timeline.after(0.02, self._misbehave_amid, ask)
        self._send(together)
        if not client.waiting and not self._asked and not self.is_over:
            self._part()

    @property
    def _may_ask(self) -> bool:
        return not (self._is_spent or self.is_over)

    def _send(self, data: bytes) -> None:
        for at in range(0, len(data), READ):
            self.send(data[at : at + READ])

    def _ask_in_pieces(self, ask: Ask) -> None:
        head, body = head_of(ask), body_of(ask)
        middle = len(head) // 2
        for piece in (head[:middle], head[middle:], *body):
            self.send(piece, ask.gap)

    def _ask_in_part(self, ask: Ask, stage: str, kind: str) -> None:
        head, body = head_of(ask), b"".join(body_of(ask))
        if stage == "head" or not body:
            self.send(head[: len(head) // 2], ask.gap)
        else:
            self._send(head + body[: len(body) // 2])
        self._is_spent = self._is_broken_off = True
        if kind != "stall":
            self.timeline.after(0.01, self._misbehave, kind)

    def _misbehave_amid(self, ask: Ask) -> None:
        if ask.client_damage is not None and self._asked and self._asked[0] is ask:
            self._misbehave(ask.client_damage[1])

    def _misbehave(self, kind: str) -> None:
        if self.is_over:
            return
        if self._ledger.note is not None:
            self._ledger.note(f"{self} does: {kind}")
        self._is_spent = True
        if kind == "half-close":
            self.send(FIN)
        elif kind == "stall":
            self.is_deaf = True
            self.timeline.after(STALLS, self.hear)
        else:
            self.reset() if kind == "reset" else self.leave()
            self._lose("left")

    # --- Reader

    def received(self, data: bytes) -> None:
        self.feed(data)

    def head(self, head: bytes) -> int:
        if not self._asked:
            raise Wrong(f"{self} got what nobody asked for: {head[:100]!r}")
        ask = self._asked[0]
        self._status = status = int(head[9:12])
        if status < 200:
            self._interim(ask)
            return 0
        tried = _TRY.search(head)
        answer: Try | None = None
        turn = 0
        if tried is not None:
            turn = int(tried[2])
            answer = self._ledger.judge(ask, int(tried[1]), turn, status)
        self._reading = (ask, answer, Content(ask.number, turn + 1))
        self._own = b""
        self._is_spent |= b"\r\nConnection: close\r\n" in head
        if ask.client_damage is not None and ask.client_damage[0] == "response":
            self.timeline.after(0.0, self._misbehave_amid, ask)
        return self._size(head, ask, status)

    def _interim(self, ask: Ask) -> None:
        if not ask.reply.has_interim or ask.is_http10:
            raise Wrong(f"{ask} got an interim response that nobody sent")

    def _size(self, head: bytes, ask: Ask, status: int) -> int:
        if ask.method == b"HEAD" or status in (204, 304):
            return 0
        if b"\r\nTransfer-Encoding: chunked\r\n" in head:
            if ask.is_http10:
                raise Wrong(f"{ask} of HTTP/1.0 got chunks")
            return CHUNKED
        length = _LENGTH.search(head)
        return int(length[1]) if length is not None else UNTIL_CLOSE

    def piece(self, data: bytes) -> None:
        if self._reading is None:
            raise Wrong(f"{self} got a body without a head")
        _, answer, expected = self._reading
        if answer is None:
            self._own += data
        else:
            expected.add(data)

    def whole(self) -> None:
        if self._status < 200 or self._reading is None:
            return
        (ask, answer, came), self._reading = self._reading, None
        self._asked.popleft()
        if answer is None:
            self._ledger.refused(ask, self._status, self._own)
        elif came.size != answer.size:
            raise Wrong(f"{ask} was ended as if whole, after {came.size} bytes of {answer.size}")
        else:
            self._ledger.answered += 1
            self._ledger.over(ask, str(self._status))
        if self._client.waiting and self._may_ask:
            if not self._is_thinking:
                self._is_thinking = True
                self.timeline.after(self._client.waiting[0].think, self._ask_on)
        elif not self._asked and not self._is_spent:
            self._part()

    # --- the end

    def _part(self) -> None:
        self.leave()
        self._lose("no answer")

    def ended(self, by_reset: bool) -> None:
        if not by_reset and self._reading is not None and self._left == UNTIL_CLOSE:
            self._end()
        elif not by_reset and self.is_amid and not self._is_broken_off:
            raise Wrong(f"{self}: a response that is not whole ended in good order: {self._asked}")
        if self.is_over:
            return
        if by_reset:
            self.is_over = True
        else:
            self.leave()
        self._lose("cut" if self._reading is not None else "no answer")

    def _lose(self, how: str) -> None:
        """This connection is over: what was asked on it gets no answer any more."""
        for ask in self._asked:
            self._ledger.over(ask, how)
            how = "no answer" if how == "cut" else how
        self._asked.clear()
        self._reading = None
        self.timeline.after(0.02, self._client.go_on)
