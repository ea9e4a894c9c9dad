"""Attempt at a request that came on a stream: as any other, but its response is sent in HTTP/2."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast

from balancer.config.schema.limits import READ
from balancer.errors import MalformedResponse
from balancer.exchange.attempt import STREAMING, Attempt
from balancer.exchange.client_stream import ClientStream
from balancer.http.h1.chunks import passing_trailers
from balancer.http.h1.field_list import fields_of
from balancer.http.h1.fields import Framing
from balancer.http.h1.websocket import is_accepted

if TYPE_CHECKING:
    from balancer.exchange.exchange import Exchange
    from balancer.http.h1.response_head import Response
    from balancer.http.h2.events import Fields
    from balancer.upstream.request import UpstreamRequest

NONE: Final = Framing.NONE
LENGTH: Final = Framing.LENGTH
UNTIL_CLOSE: Final = Framing.UNTIL_CLOSE


class StreamAttempt(Attempt):
    """An attempt whose client is a `ClientStream`. `read_size`: bytes per read from the worker."""

    read_size = READ
    _fields: Fields | None = None  # the response's head, until it is sent

    def _send(self, exchange: Exchange, upstream: UpstreamRequest) -> None:
        super()._send(exchange, upstream)
        if upstream.read_size != READ and cast(ClientStream, exchange.downstream).has_many_beside:
            upstream.set_read_size(READ)

    def response_whole(self, response: Response, body: bytes) -> None:
        exchange = cast("Exchange", self.exchange)
        if response.status >= 500 and exchange.retries_status(self, response.status, is_whole=True):
            return
        self._note_end(response.status)
        now = exchange.proxy.now()
        self._final_head(exchange, response, now)
        self.bytes_out = len(body)
        cast(ClientStream, exchange.downstream).send(self._fields, body, is_last=True)
        exchange.complete(self, now)

    def _framed_head(self, exchange: Exchange, response: Response, block: bytes) -> bytes:
        """Keep the final head as fields; the frames of the stream end its body."""
        if not response.has_date:
            block += exchange.proxy.date_line
        self._fields = cast(ClientStream, exchange.downstream).fields_of(response.status, block)
        if exchange.request.method == b"HEAD" or response.is_bodiless:
            self._to_client = NONE
        else:
            self._to_client = LENGTH if response.framing is LENGTH else UNTIL_CLOSE
        return b""

    def _send_interim(self, exchange: Exchange, response: Response) -> None:
        exchange.active_at = exchange.proxy.now()
        self.has_sent_interim = True
        stream = cast(ClientStream, exchange.downstream)
        stream.send_interim(stream.fields_of(response.status, self._fields_of(exchange, response)))

    def _switch(self, exchange: Exchange, response: Response) -> None:
        if response.status == 101 and not is_accepted(exchange.request.head, response.block):
            exchange.attempt_failed(self, MalformedResponse("Sec-WebSocket-Accept does not match the key"))
            return
        super()._switch(exchange, response)

    def response_paused(self) -> None:
        """Send what a read has brought; read more at once from the worker the sooner the client takes it."""
        if self.state is not STREAMING or not self._out:
            return
        stream = cast(ClientStream, cast("Exchange", self.exchange).downstream)
        size = (
            min(2 * self.read_size, stream.read_limit) if stream.keeps_up else max(READ, self.read_size // 2)
        )
        self.read_size = size
        stream.send(self._fields, self._take_out(), is_last=False)
        self._fields = None
        if stream.is_write_paused:
            self.pause()
        if self.upstream is not None and self.upstream.read_size != size:
            self.upstream.set_read_size(size)

    def response_ended(self, trailers: bytes) -> None:
        exchange = cast("Exchange", self.exchange)
        stream = cast(ClientStream, exchange.downstream)
        self._note_end(self.status)
        passing = passing_trailers(trailers) if self._to_client is not NONE else b""
        if passing:
            stream.send_end(self._fields, self._take_out(), fields_of(passing))
        else:
            stream.send(self._fields, self._take_out(), is_last=True)
        self._fields = None
        if stream.charge is not None:
            stream.charge.whole(stream.unsent)
        exchange.complete(self, exchange.proxy.now())

    def _note_end(self, status: int) -> None:
        """Note how the response ends, before its last part is sent."""

    def _take_out(self) -> bytes:
        data = b"".join(self._out)
        self._out.clear()
        return data
