"""Handler of a request: it answers on its stream, or on its connection after the requests before it.

A forwarded request (`exchange/exchange.py`), an admin request (`control/admin/exchange.py`) and one that is answered
without a worker (`routes/own_response.py`) have the same interface.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from balancer.errors import ConnectionCut, ForwardingError
from balancer.http.h1.request_head import Request


class RequestHandler(Protocol):
    """Handler of one request. `head` is the request head, as far as it has come."""

    @property
    def head(self) -> bytes: ...
    def start(self) -> None: ...
    def request_body(self, data: bytes) -> None: ...
    def request_ended(self, trailers: bytes) -> None: ...
    def pause_response(self) -> None: ...
    def resume_response(self) -> None: ...
    def abandon(self, error: ConnectionCut) -> None: ...
    def reject(self, error: ForwardingError) -> None: ...
    def check(self, now: float) -> None: ...


AdminExchanges = Callable[[Any, Request], RequestHandler]
"""Creates the handler of an admin request, for its connection or stream."""
