"""/-/endpoints: who takes requests, changed while requests pass.

Rule of this file: a body is checked by the same models as the configuration, and whatever is wrong is told in one line
with a status of 4xx; then nothing has changed.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any, Self, TypeVar

from aiohttp import web
from pydantic import Field, ValidationError, model_validator

from balancer.admin.status import endpoint_status, leaving_status, process_endpoint_status
from balancer.config.load import first_problem
from balancer.config.sections import MOST_WEIGHT, EndpointConfig, Section
from balancer.errors import EndpointConflict
from balancer.process.channel import Channel, Handler
from balancer.tls.contexts import TlsProblem
from policies.errors import UnknownEndpoint
from policies.routing.facts import AdminState

if TYPE_CHECKING:
    from balancer.proxy import Proxy

M = TypeVar("M", bound=Section)

JSON_DEPTH = 32
"""Levels of lists and objects in a control request's body: what checks and shows it calls itself for each."""


class EndpointChange(Section):
    """What may be changed of an endpoint that there is."""

    state: AdminState | None = None
    weight: Annotated[float, Field(gt=0, le=MOST_WEIGHT, allow_inf_nan=False)] | None = None

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if self.state is None and self.weight is None:
            raise ValueError("state, weight: give one of them or both")
        return self


class Refused(Exception):
    """One line for the caller, and its status."""

    def __init__(self, status: int, problem: str) -> None:
        super().__init__(problem)
        self.status = status


class EndpointRoutes:
    """The endpoints of `proxy`, for aiohttp."""

    def __init__(self, proxy: Proxy, channel: Channel | None = None) -> None:
        self._proxy = proxy
        self._channel = channel
        self._status = endpoint_status if channel is None else process_endpoint_status

    def routes(self) -> Iterable[web.RouteDef]:
        """What to add to the application; what one process of several does, or says, all of them do and say."""
        ask, tell = alone, alone
        if self._channel is not None:
            ask, tell = self._channel.whole, self._channel.everywhere
        one, change = "/-/endpoints/{id}", tell(self._change)
        return [
            web.get("/-/endpoints", ask(self._list)),
            web.post("/-/endpoints", tell(self._add)),
            web.get(one, ask(self._get)),
            web.delete(one, tell(self._remove)),
            web.patch(one, change),
            web.put(one, change),
        ]

    async def _list(self, request: web.Request) -> web.Response:
        states = self._proxy.router.states
        return web.json_response(
            {
                "endpoints": [self._status(self._proxy, state) for state in states],
                "leaving": leaving_status(self._proxy),
            }
        )

    async def _get(self, request: web.Request) -> web.Response:
        return self._answer(request.match_info["id"])

    async def _add(self, request: web.Request) -> web.Response:
        """Body: the keys of an `[[endpoints]]`."""
        try:
            config = await body_of(request, EndpointConfig)
            # A context for TLS may take a quarter of a second to make, for the first one that speaks it.
            await asyncio.to_thread(self._proxy.terms.upstream_tls.of_these, [config])
            self._proxy.roster.add(config)
        except Refused as error:
            return problem(error.status, str(error))
        except TlsProblem as error:
            return problem(422, str(error))
        except EndpointConflict as error:
            return problem(409, str(error))
        return self._answer(config.id, 201)

    async def _change(self, request: web.Request) -> web.Response:
        """Body: `state`, `weight` or both; what is not said stays."""
        endpoint_id = request.match_info["id"]
        try:
            change = await body_of(request, EndpointChange)
            self._proxy.roster.change(endpoint_id, change.state, change.weight)
        except Refused as error:
            return problem(error.status, str(error))
        except UnknownEndpoint as error:
            return problem(404, str(error))
        return self._answer(endpoint_id)

    async def _remove(self, request: web.Request) -> web.Response:
        endpoint_id = request.match_info["id"]
        try:
            in_flight = self._proxy.roster.remove(endpoint_id)
        except UnknownEndpoint as error:
            return problem(404, str(error))
        except EndpointConflict as error:
            return problem(409, str(error))
        return web.json_response({"id": endpoint_id, "in_flight": in_flight})

    def _answer(self, endpoint_id: str, status: int = 200) -> web.Response:
        try:
            self._proxy.roster.member(endpoint_id)
        except UnknownEndpoint as error:
            return problem(404, str(error))
        state = self._proxy.router.find(endpoint_id)
        return web.json_response(self._status(self._proxy, state), status=status)


def alone(handler: Handler) -> Handler:
    """There are no other processes."""
    return handler


async def body_of(request: web.Request, model: type[M]) -> M:
    """The request's JSON as a model. Raises `Refused`."""
    document = await json_of(request)
    if not isinstance(document, dict):
        raise Refused(422, f"must be a JSON object, got {json.dumps(document)[:60]}")
    try:
        return model.model_validate(document)
    except ValidationError as error:
        raise Refused(422, first_problem(error)) from None


async def json_of(request: web.Request) -> Any:
    """The request's body as JSON, which is UTF-8 whatever its Content-Type says (RFC 8259 § 8.1). Raises `Refused`."""
    body = await request.read()
    try:
        document: Any = json.loads(body.decode())
    except RecursionError:
        raise Refused(400, "JSON is nested too deep") from None
    except ValueError as error:
        raise Refused(400, f"not JSON: {error}") from None
    if depth_of(document) > JSON_DEPTH:
        raise Refused(400, f"JSON is nested too deep: at most {JSON_DEPTH} levels")
    return document


def depth_of(document: Any) -> int:
    """Levels of lists and objects in a JSON document, counted up to one more than `JSON_DEPTH`."""
    depth, level = 0, [document]
    while level and depth <= JSON_DEPTH:
        inner = [
            each.values() if isinstance(each, dict) else each
            for each in level
            if isinstance(each, dict | list)
        ]
        depth += bool(inner)
        level = [one for each in inner for one in each]
    return depth


def problem(status: int, line: str) -> web.Response:
    """What was wrong."""
    return web.json_response({"error": " ".join(line.split())}, status=status)
