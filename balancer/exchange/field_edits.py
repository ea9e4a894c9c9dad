"""Fields that are set, added and removed (`[headers]`, and by route): prepared when the configuration is loaded.

Names that are removed are one expression, and lines without variables one piece of bytes. Nothing here exists, and no
request passes here, while no field is configured.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import cast

from balancer.cluster.cluster import Cluster
from balancer.config.schema.field_edits import FieldEdits, parts_of
from balancer.config.schema.routes import RouteConfig
from balancer.config.schema.sections import HeadersConfig
from balancer.exchange.attempt import Attempt
from balancer.exchange.exchange_state import ExchangeState
from balancer.http.h1.client import Client
from balancer.http.h1.fields import any_of, host_of, scheme_of, with_lines
from balancer.http.h1.internal_fields import FieldRemoval
from balancer.http.h1.own_responses import BlockEdit
from balancer.http.h1.request_head import Request
from balancer.http.h1.response_head import Response
from balancer.rate_limits.request_source import address_of
from balancer.upstream.request import UpstreamRequest
from policies.routing.assignment import Assignment


class Line:
    """A field line: of `parts`, each a text with the variable behind it, or the whole line as `text`."""

    def __init__(self, name: str, value: str) -> None:
        parts = list(parts_of(value))
        self.name = name.encode()
        self.is_late = ("", "endpoint") in parts
        self._parts = tuple((text.encode(), variable) for text, variable in parts)
        self.text = b""
        if not any(variable for _, variable in parts):
            self.text = b"%b: %b\r\n" % (self.name, b"".join(text for text, _ in self._parts))

    def of(self, request: Request, client: Client, cluster: Cluster, endpoint: bytes) -> bytes:
        """Return the line, b"" if its value is empty."""
        if self.text:
            return self.text
        found = [
            _value_of(variable, request, client, cluster, endpoint) if variable else text
            for text, variable in self._parts
        ]
        value = b"".join(found).strip(b" ")  # HTTP/2 has none around a value
        return b"%b: %b\r\n" % (self.name, value) if value else b""


def _value_of(variable: str, request: Request, client: Client, cluster: Cluster, endpoint: bytes) -> bytes:
    """Return the value of one of `VARIABLES`, b"" where the request has none."""
    if variable == "client":
        return address_of(request, client, cluster.trusts)
    if variable == "scheme":
        return scheme_of(request.head)
    if variable == "host":
        return host_of(request.head)
    if variable == "tls":
        return client.tls_version.encode()
    if variable == "cluster":
        return cluster.name.encode() or b"default"
    return endpoint if variable == "endpoint" else request.id


class HeadEdits:
    """What is done with the fields of a head; of several `configs` the later ones apply to the result of the earlier.

    `in_cgi`: a name stands for all that workers may confuse with it.
    """

    def __init__(self, configs: Iterable[FieldEdits], *, in_cgi: bool) -> None:
        removed: list[str] = []
        lines: list[Line] = []
        for config in configs:
            names = [*config.remove, *config.set]
            removed += names
            is_removed = re.compile(any_of(names, as_in_cgi=in_cgi)).fullmatch if names else None
            lines = [line for line in lines if is_removed is None or not is_removed(line.name.lower())]
            lines += [Line(name, value) for name, value in (*config.set.items(), *config.add.items())]
        self._removal = FieldRemoval(removed, as_in_cgi=in_cgi) if removed else None
        self._lines = [line for line in lines if not (in_cgi and line.is_late)]
        self._late = [line for line in lines if in_cgi and line.is_late]
        self._fixed = b"".join(line.text for line in self._lines)
        self._is_fixed = all(line.text for line in self._lines)
        self.has_late = bool(self._late)

    def kept(self, block: bytes) -> bytes:
        """Return a block of fields without those that are removed or set."""
        return block if self._removal is None else self._removal.without(block)

    def edited(
        self, block: bytes, request: Request, client: Client, cluster: Cluster, endpoint: bytes
    ) -> bytes:
        """Return a block of fields as it is sent."""
        return self.kept(block) + self._added(request, client, cluster, endpoint)

    def _added(self, request: Request, client: Client, cluster: Cluster, endpoint: bytes) -> bytes:
        if self._is_fixed:
            return self._fixed
        return b"".join([line.of(request, client, cluster, endpoint) for line in self._lines])

    # --- of a request

    def edit(self, request: Request, client: Client, cluster: Cluster) -> None:
        """Edit the head of a request for workers, but for what differs between endpoints."""
        added = self._added(request, client, cluster, b"")
        head = request.head if self._removal is None else self._removal.without_in_head(request.head)
        request.head = with_lines(head, added)

    def for_endpoint(
        self, head: bytes, request: Request, client: Client, cluster: Cluster, endpoint: bytes
    ) -> bytes:
        """Return an edited head with the fields that name its endpoint."""
        return with_lines(
            head, b"".join([line.of(request, client, cluster, endpoint) for line in self._late])
        )


class Edits:
    """The edits of requests and responses for all requests, or for those of a route."""

    def __init__(self, requests: Iterable[FieldEdits], responses: Iterable[FieldEdits]) -> None:
        self.request = HeadEdits(requests, in_cgi=True)
        self.response = HeadEdits(responses, in_cgi=False)

    def of_own(self, request: Request, client: Client, cluster: Cluster, endpoint: bytes = b"") -> BlockEdit:
        """Return the edit of a response that the balancer gives itself."""
        return lambda block: self.response.edited(block, request, client, cluster, endpoint)


def edits_of(headers: HeadersConfig, route: RouteConfig | None = None) -> Edits | None:
    """Return the edits of all requests and then of a route, None if there are none."""
    requests: list[FieldEdits] = [headers.request]
    responses: list[FieldEdits] = [headers.response]
    if route is not None:
        requests.append(route.request_fields)
        responses.append(route.response_fields)
    return Edits(requests, responses) if any((*requests, *responses)) else None


class EditedAttempt(Attempt):
    """An attempt that may name its endpoint in a field, and whose response is edited. All others are `Attempt`s."""

    is_read = True

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

    def _fields_of(self, exchange: ExchangeState, response: Response) -> bytes:
        fields, edits, status = super()._fields_of(exchange, response), self._edits.response, response.status
        if status < 200 and status != 101:
            return edits.kept(fields)
        client = exchange.downstream.client
        return edits.edited(fields, exchange.request, client, self.cluster, self._endpoint)

    def response_ended(self, trailers: bytes) -> None:
        super().response_ended(self._edits.response.kept(trailers) if trailers else trailers)
