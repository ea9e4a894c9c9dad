"""A request as it comes to a worker, and a response as it comes to a client, with their checks: the same for HTTP/1.1
and HTTP/2, whose ends read them.
"""

from __future__ import annotations

from tests.faultsim.ledger import Ledger
from tests.faultsim.plan import Damage, PlannedRequest
from tests.faultsim.reading import Content, Violation, content

CUT_OFF = ("begun", "middle", "last")
"""Stages of damage that cuts off a response."""

Fields = dict[bytes, bytes]


def fields_of(head: bytes) -> Fields:
    """The fields of a head in HTTP/1.1, names in lower case."""
    pairs = (line.partition(b": ") for line in head.split(b"\r\n")[1:-1])
    return {name.lower(): value for name, _, value in pairs}


def in_pieces(body: bytes, number: int, most: int = 1 << 30) -> list[bytes]:
    """The body in about so many pieces of at most `most` bytes."""
    step = max(1, min(most, -(-len(body) // number)))
    return [body[at : at + step] for at in range(0, len(body), step)]


class Arrival:
    """A request at a worker, and the response there. `turn`: how many times it had arrived anywhere before."""

    def __init__(self, ledger: Ledger, request: PlannedRequest, *, is_http2: bool = False) -> None:
        self.request = request
        self.turn = ledger.arrived(request.number)
        self.trailers: Fields | None = None
        self.is_answering = self.is_hung = self.is_executed = False
        self.size = (
            0 if self.is_bodiless else request.reply.size
        )  # of the response's body, as far as it is sent
        self._came = Content(request.number, 0)
        damages = request.stream_damage if is_http2 else request.worker_damage
        self._damage = damages[self.turn] if self.turn < len(damages) else None
        self._has_trailers = not self.is_bodiless and (is_http2 or request.reply.framing == "chunked")

    def damage(self, *stages: str) -> Damage | None:
        """The stage and kind of its damage, if it is in one of these stages."""
        return self._damage if self._damage is not None and self._damage[0] in stages else None

    def check_head(self, method: bytes, length: bytes | None) -> None:
        if method != self.request.method:
            raise Violation(f"{self.request} became {method!r}")
        if length is not None and int(length) != self.request.size:
            raise Violation(f"{self.request} announces {length!r} bytes of {self.request.size}")

    def add(self, data: bytes) -> bool:
        """Compare the next bytes of the body; return whether it is half there."""
        self._came.add(data)
        return self._came.size * 2 >= self.request.size

    def check_whole(self) -> None:
        request = self.request
        if self._came.size != request.size:
            raise Violation(f"{request} ended after {self._came.size} bytes of {request.size}")
        if self.trailers != ({b"x-sum": request.sum} if request.has_trailers else None):
            raise Violation(f"{request} came with trailers {self.trailers}")

    # --- the response

    @property
    def is_bodiless(self) -> bool:
        reply = self.request.reply
        return self.request.method == b"HEAD" or reply.status in (204, 304) or reply.is_trailers_only

    @property
    def name(self) -> bytes:
        """What names the arrival in the response."""
        return b"%d-%d" % (self.request.number, self.turn)

    @property
    def body(self) -> bytes:
        return b"" if self.is_bodiless else content(self.request.number, self.turn + 1, self.size)

    @property
    def reply_trailers(self) -> Fields | None:
        reply = self.request.reply
        fields = {b"x-sum": b"%d" % self.turn} if reply.has_trailers else {}
        if self.request.is_rpc:
            fields[b"grpc-status"] = b"%d" % reply.grpc_status
        return fields if fields and self._has_trailers else None


class Response:
    """The response to a request, as its client gets it. `is_owed`: the request has not ended for the client."""

    def __init__(self, ledger: Ledger, request: PlannedRequest) -> None:
        self.request = request
        self.is_owed = True
        self.fields: Fields | None = None  # of the final head
        self.trailers: Fields | None = None
        self._status = 0
        self._ledger = ledger
        self._arrival: Arrival | None = None  # that was answered
        self._came = Content(request.number, 0)
        self._own = b""  # of the balancer's own

    def begin(self, status: int, fields: Fields) -> None:
        """The final head has come."""
        self._status, self.fields = status, fields
        attempt = fields.get(b"x-attempt")
        if attempt is not None:
            number, turn = map(int, attempt.split(b"-"))
            self._arrival = self._ledger.check(self.request, number, turn, status)
            self._came = Content(self.request.number, turn + 1)

    def add(self, data: bytes) -> None:
        """Compare the next bytes of the body."""
        if self.fields is None:
            raise Violation(f"{self.request} got a body without a head")
        if self._arrival is None:
            self._own += data
        else:
            self._came.add(data)

    def end(self, *, carries_trailers: bool = True) -> None:
        """The response was ended in good order; check that it is whole."""
        request, arrival, size = self.request, self._arrival, self._came.size
        last = self.fields if self.trailers is None else self.trailers
        if last is None:
            raise Violation(f"{request} was ended without a response")
        self.is_owed = False
        if request.is_rpc and b"grpc-status" in last and (arrival is None or b"grpc-message" in last):
            self._ledger.refused_rpc(request, last)
        elif arrival is None:
            self._ledger.refused(request, self._status, self._own)
        elif size != arrival.size:
            raise Violation(f"{request} was ended as if whole, after {size} bytes of {arrival.size}")
        elif size and int(last.get(b"content-length", size)) != size:
            raise Violation(f"{request} got another Content-Length than {size}: {last}")
        elif carries_trailers and self.trailers != arrival.reply_trailers:
            raise Violation(f"{request} got trailers {self.trailers}, not {arrival.reply_trailers}")
        else:
            self._ledger.answered += 1
            self._ledger.over(request, str(self._status))

    def lost(self, how: str) -> None:
        """The request has ended without a whole response."""
        self.is_owed = False
        self._ledger.over(self.request, how)
