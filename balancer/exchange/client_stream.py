"""Stream of a client's HTTP/2 connection: what exchanges use of it beside what they use of a `ClientConnection`.

The class itself is in `downstream/http2/stream.py`. For an exchange a stream is a client connection with one request,
whose response is sent as fields and as bytes of the body without framing.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING

from balancer.exchange.client_connection import ClientConnection

if TYPE_CHECKING:
    from balancer.http.h2.events import Fields


class ClientStream(ClientConnection):
    """A stream; abstract. `head` is the fields of a final response, None once it has been sent."""

    __slots__ = ()

    @property
    @abstractmethod
    def keeps_up(self) -> bool:
        """Whether the client has taken all of the response so far."""

    @property
    @abstractmethod
    def has_many_beside(self) -> bool:
        """Whether so many streams are open that none may read much ahead of the client."""

    @property
    @abstractmethod
    def read_limit(self) -> int:
        """Maximum bytes of a read from the worker: fewer where many streams are open."""

    @abstractmethod
    def fields_of(self, status: int, block: bytes) -> Fields:
        """Return a response's head as fields. Raises `MalformedResponse` for what HTTP/2 does not allow."""

    @abstractmethod
    def send_interim(self, head: Fields) -> None:
        """Send the head of an interim response (1xx)."""

    @abstractmethod
    def send(self, head: Fields | None, data: bytes, *, is_last: bool) -> None:
        """Send a part of the response."""

    @abstractmethod
    def send_end(self, head: Fields | None, data: bytes, trailers: Fields) -> None:
        """Send the last part of the response, which has trailers."""
