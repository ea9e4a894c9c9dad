"""Responder: what sends the response of an exchange to its client, in the client's protocol.

A connection in HTTP/1.1 is one, and each stream of a connection in HTTP/2 is one. It is the mirror image of
`UpstreamRequest`: an exchange gives it heads as a worker sent them, and bodies without framing.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Final

from balancer.clients.client_usage import Charge
from balancer.cluster.cluster import Cluster
from balancer.errors import ForwardingError
from balancer.exchange.client_side import ClientSide
from balancer.http.grpc.call import GrpcCall
from balancer.http.h1.own_responses import ErrorAnswer
from balancer.http.h1.request_head import Request
from balancer.http.h1.response_head import Response

if TYPE_CHECKING:
    from balancer.exchange.pending_upgrade import PendingUpgrade

CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
"""Interim response that every client of HTTP/1.1 skips, also one that does not expect it (RFC 9110 § 15.2)."""


class Responder(ClientSide):
    """The client of one exchange at a time; abstract."""

    __slots__ = (
        "call",
        "charge",
        "has_ended",
        "is_stream",
        "pending_upgrade",
    )

    def __init__(self, cluster: Cluster, now: float) -> None:
        super().__init__(cluster, now)
        self.is_stream = False  # of HTTP/2, with a window of its own
        self.call: GrpcCall | None = None  # while the request is an RPC of gRPC
        self.pending_upgrade: PendingUpgrade | None = None
        # More of a response is kept for the client than the write buffer's high-water mark (`buffering.py`).
        self.charge: Charge | None = None
        # The client has sent its FIN while a request was unanswered: it has closed, or has half-closed and still
        # reads. False again once it was asked.
        self.has_ended = False

    @property
    def arrived(self) -> tuple[float, float]:
        """When the first byte of the request's head came, 0 if the head came in one piece, and when all of it had."""
        return 0.0, self._cluster.now()

    # --- the response of a worker

    @property
    def is_crowded(self) -> bool:
        """Whether so many streams are open beside it that already the first read of a response is short."""
        return False

    @property
    @abstractmethod
    def first_read_size(self) -> int:
        """Bytes per read from a worker whose response begins."""

    @abstractmethod
    def respond_whole(
        self, request: Request, response: Response, fields: bytes, body: bytes, is_complete: bool
    ) -> bool:
        """Send a final response with the block `fields` and the whole body; `is_complete`: the request has come whole.
        Returns whether the connection stays."""

    @abstractmethod
    def begin_response(self, request: Request, response: Response, fields: bytes, is_complete: bool) -> bool:
        """Take the head of a final response with the block `fields`, which is sent with what follows; `is_complete` as
        above. Returns whether the connection stays after the response."""

    @abstractmethod
    def send_part(self, pieces: list[bytes]) -> int:
        """Send pieces of the body, the head before the first. Returns the bytes of the next read from the worker: more,
        the sooner the client takes them."""

    @abstractmethod
    def end_response(self, pieces: list[bytes], trailers: bytes) -> None:
        """Send the last pieces of the body and its trailers, a block of fields or b""."""

    @abstractmethod
    def send_interim(self, response: Response, fields: bytes) -> None:
        """Send the head of an interim response (1xx) with the block `fields`."""

    def accepts_switch(self, request: Request, response: Response) -> bool:
        """Return whether the worker's answer to an upgrade offer is one."""
        return True

    @abstractmethod
    def begin_tunnel(self, response: Response, fields: bytes, early: bytes) -> None:
        """Send the head of the response that begins a tunnel, and the bytes that followed it."""

    @abstractmethod
    def exchange_ended(self, stays: bool, now: float = 0.0) -> None:
        """Continue after a response was sent in full: next request, lingering close, or close. `now` is the instant, 0
        if it has to be read."""

    # --- responses of the balancer

    def count_error(self, error: ForwardingError) -> None:
        """Count an error response that is sent for no cluster but the one of the connection."""
        self._cluster.counts.count_error(error)
        self._cluster.counts.responses[error.status] += 1

    def write_error(self, answer: ErrorAnswer) -> None:
        """Send an error response."""
        self.respond(answer.response(self._process.error_bodies, self._process.date_line))

    @abstractmethod
    def respond(self, response: bytes) -> None:
        """Send a whole response of the balancer's own, which is written in HTTP/1.1."""

    def send_continue(self) -> None:
        """Send 100 (Continue)."""
        self.respond(CONTINUE)

    def ask(self) -> None:
        """Find out whether a client that has sent its FIN still reads: a closed one answers an interim response with a
        reset, which the next sweep finds."""
        self.has_ended = False
        self.send_continue()

    # --- what the client has not taken

    def uncharge(self, unsent: int = 0) -> None:
        """Give back the charge for a response, except for the bytes that are still `unsent`."""
        charge = self.charge
        if charge is None:
            return
        if unsent < charge.size:
            charge.resize(unsent)
        if not unsent:
            self.charge = None
