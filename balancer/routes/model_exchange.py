"""Exchange of a request whose route depends on the model that its body names, as OpenAI's API has it.

It receives the whole body, finds the route, and hands the request over to the handler of that. No endpoint is asked
and nothing is counted before, unless the request ends here: its body is too long or too slow, or its client leaves.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, cast

from balancer.cluster.cluster import Cluster
from balancer.errors import BytesExhausted, ForwardingError, RequestRejected, body_too_large
from balancer.exchange.exchange import Exchange
from balancer.exchange.exchange_state import End, State
from balancer.exchange.receiving import drop_body, receive
from balancer.exchange.responder import RequestHandler, Responder
from balancer.http.h1.request_head import Request
from balancer.upstream.request import RequestBody
from policies.facts import OutcomeKind

ENDED: Final = State.ENDED

_OTHER_BODY: Final = re.compile(
    rb"\n(?i:content-type):[ \t]*(?i:multipart/|application/grpc)"
    rb"|\n(?i:content-encoding):[ \t]*(?!(?i:identity)[ \t]*\r)[^\r \t]"
)
"""Fields of a body that names no model: files, gRPC, which is not to be waited for, and what is compressed."""


def names_model(request: Request) -> bool:
    """Return whether the body may name a model, as far as the head shows."""
    return _OTHER_BODY.search(request.head) is None


class ModelExchange(Exchange):
    """A request whose body is to be received, at the cluster of its listener. `find` returns the handler that the
    request has with its model, and how many bytes of body that takes."""

    def __init__(
        self,
        cluster: Cluster,
        downstream: Responder,
        request: Request,
        find: Callable[[], tuple[RequestHandler, int | None]],
    ) -> None:
        super().__init__(cluster, downstream, request)
        request.arrived = downstream.arrived
        self._find = find

    def start(self) -> None:
        if self.is_complete:
            self.attempt()
            return
        cast(
            RequestBody, self.body_buffer
        ).is_chunked = False  # the request is sent by another exchange, as it came
        self.usage = usage = self.downstream.usage
        usage.requests += 1
        self._started_at = self.cluster.now()
        error = self.refusal(usage, self.cluster.client_requests)
        if error is not None:
            self.reject(error)
        elif not receive(self, self.request.body_bound):
            self.attempt()

    def attempt(self) -> None:
        """Find the route by the body and hand over, or refuse a body that is more than may be kept."""
        if not self.is_complete:
            self.reject(BytesExhausted("bodies that wait for their route take all of buffering.total"))
            return
        from balancer.inference.completion_body import model_of  # an extra, which other routes do not need

        request, downstream, body = self.request, self.downstream, cast(RequestBody, self.body_buffer)
        data, trailers = body.whole(), body.trailers or b""
        request.model = model_of(data)
        try:
            handler, limit = self._find()
        except RequestRejected as error:  # by routes that have changed
            self.reject(error)
            return
        self._leave()
        downstream.hand_over(handler)
        if limit is not None and len(data) > limit:
            handler.reject(body_too_large(limit))
            return
        if data:
            handler.request_body(data)
        handler.request_ended(trailers)
        if isinstance(handler, Exchange):
            handler._started_at = self._started_at
            if handler.state is ENDED:
                return
        handler.start()

    def _leave(self) -> None:
        """Give back everything, and end without a result."""
        if self.kept is not None:
            drop_body(self, self.kept)
        self.state = ENDED
        self.count_out()
        self.observers = ()
        if self.downstream.is_held:
            self.downstream.unhold()

    def finish(
        self, end: End, kind: OutcomeKind, error: ForwardingError | None = None, now: float = 0.0
    ) -> None:
        self.cluster.counts.requests += 1
        super().finish(end, kind, error, now)
