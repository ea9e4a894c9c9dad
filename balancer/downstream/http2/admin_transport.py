"""Transport of a stream whose request the admin application answers: it writes HTTP/1.1, and the client gets HTTP/2."""

from __future__ import annotations

from balancer.downstream.http2.stream_transport import StreamTransport, TakenStream
from balancer.http.h1.body import Body, body_of
from balancer.http.h1.fields import END_OF_HEAD
from balancer.http.h1.response_head import incoming_response


class AdminTransport(StreamTransport):
    """Translates one response; the application closes after it."""

    def __init__(self, stream: TakenStream) -> None:
        super().__init__(stream)
        self._head = b""  # as far as it has come
        self._body: Body | None = None

    def write(self, data: bytes | bytearray | memoryview) -> None:
        body, given = self._body, bytes(data)
        if body is None:
            head, end, given = (self._head + given).partition(END_OF_HEAD)
            if not end:
                self._head = head
                return
            response = incoming_response(head + b"\r\n")
            self._stream.send(self._stream.heads_of(response.status, response.block), b"", is_last=False)
            body = self._body = body_of(response.framing, response.length)
        super().write(body.feed(given))
