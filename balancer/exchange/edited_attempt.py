"""Attempt with configured fields (`field_edits.py`); all others are plain `Attempt`s."""

from __future__ import annotations

from typing import cast

from balancer.cluster.cluster import Cluster
from balancer.exchange.attempt import Attempt
from balancer.exchange.exchange_state import ExchangeState
from balancer.exchange.field_edits import Edits
from balancer.http.h1.response_head import Response
from balancer.upstream.request import UpstreamRequest
from policies.routing.assignment import Assignment


class EditedAttempt(Attempt):
    """An attempt that may name its endpoint in a field, and whose response is edited."""

    def __init__(self, cluster: Cluster, assignment: Assignment, edits: Edits) -> None:
        super().__init__(cluster, assignment)
        self._edits = edits
        self._endpoint = assignment.state.id.encode()

    def send(self, upstream: UpstreamRequest) -> None:
        edits, exchange = self._edits.request, cast(ExchangeState, self.exchange)
        if edits.has_late:
            request, client = exchange.request, exchange.downstream.client
            head = self.head or request.head
            self.head = edits.for_endpoint(head, request, client, self.cluster, self._endpoint)
        super().send(upstream)

    def _visible_fields(self, exchange: ExchangeState, response: Response) -> bytes:
        return self._fields_of(exchange, response)

    def _fields_of(self, exchange: ExchangeState, response: Response) -> bytes:
        fields, edits, status = super()._fields_of(exchange, response), self._edits.response, response.status
        if status < 200 and status != 101:
            return edits.kept(fields)
        client = exchange.downstream.client
        return edits.edited(fields, exchange.request, client, self.cluster, self._endpoint)

    def response_ended(self, trailers: bytes) -> None:
        super().response_ended(self._edits.response.kept(trailers) if trailers else trailers)
