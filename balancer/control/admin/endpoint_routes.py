"""/-/endpoints: list, add, change and remove endpoints at run time.

Bodies are validated by the models of the configuration. Every error is one line with a 4xx status and changes nothing.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable
from typing import Any, Final, Self, TypeVar

from aiohttp import web
from pydantic import ValidationError, model_validator

from balancer.config.problems import ConfigError, first_problem
from balancer.config.schema.endpoint import EndpointConfig
from balancer.config.schema.section import EndpointWeight, Section
from balancer.control.admin.channel import Handler, SiblingChannel
from balancer.control.admin.chosen_cluster import plane_of
from balancer.control.admin.status import (
    endpoint_status,
    leaving_status,
    panic_status,
    process_endpoint_status,
)
from balancer.errors import EndpointConflict, LogFailed, RecordingRefused, UnknownSplit
from balancer.tls.contexts import TlsProblem
from policies.errors import UnknownEndpoint
from policies.facts import AdminState

M = TypeVar("M", bound=Section)

JSON_DEPTH = 32
"""Depth limit of a request body's JSON: validation and serialization recurse once per level."""


class EndpointChange(Section):
    """Body of PATCH and PUT of an endpoint: the attributes that can be changed."""

    state: AdminState | None = None
    weight: EndpointWeight | None = None

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if self.state is None and self.weight is None:
            raise ValueError("state, weight: give one of them or both")
        return self


class AdminRefused(Exception):
    """An admin request was refused; has the message, one line, and the status."""

    def __init__(self, status: int, problem: str) -> None:
        super().__init__(problem)
        self.status = status


class EndpointRoutes:
    """Routes of /-/endpoints for the endpoints of a cluster."""

    def __init__(self, channel: SiblingChannel | None = None) -> None:
        self._channel = channel
        self._status = endpoint_status if channel is None else process_endpoint_status

    def routes(self) -> Iterable[web.RouteDef]:
        """Return the routes."""
        ask, tell = ways_of(self._channel)
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
        plane = plane_of(request)
        return web.json_response(
            {
                "panic": panic_status(plane.cluster),
                "endpoints": [self._status(plane, state) for state in plane.cluster.router.states],
                "leaving": leaving_status(plane),
            }
        )

    async def _get(self, request: web.Request) -> web.Response:
        return self._answer(request, request.match_info["id"])

    async def _add(self, request: web.Request) -> web.Response:
        """Body: the keys of an `[[endpoints]]`."""
        config = await body_of(request, EndpointConfig)
        # The first TLS context takes up to a quarter of a second to create.
        await asyncio.to_thread(plane_of(request).config.upstream_tls.of_these, [config])
        plane_of(request).registry.add(config)
        return self._answer(request, config.id, 201)

    async def _change(self, request: web.Request) -> web.Response:
        """Body: `state`, `weight` or both; an omitted key stays unchanged."""
        endpoint_id = request.match_info["id"]
        change = await body_of(request, EndpointChange)
        plane_of(request).registry.change(endpoint_id, change.state, change.weight)
        return self._answer(request, endpoint_id)

    async def _remove(self, request: web.Request) -> web.Response:
        endpoint_id = request.match_info["id"]
        in_flight = plane_of(request).registry.remove(endpoint_id)
        return web.json_response({"id": endpoint_id, "in_flight": in_flight})

    def _answer(self, request: web.Request, endpoint_id: str, status: int = 200) -> web.Response:
        plane = plane_of(request)
        plane.registry.member(endpoint_id)
        state = plane.cluster.router.find(endpoint_id)
        return web.json_response(self._status(plane, state), status=status)


STATUSES: Final[dict[type[Exception], int]] = {
    ConfigError: 422, TlsProblem: 422, EndpointConflict: 409, LogFailed: 409, UnknownEndpoint: 404, UnknownSplit: 404,
}  # fmt: skip
"""Status of the answer to a request that ends with such an error."""


def refusing(handler: Handler) -> Handler:
    """Wrap `handler` to answer with the errors that it raises."""

    async def answer(request: web.Request) -> web.Response:
        try:
            return await handler(request)
        except (AdminRefused, RecordingRefused) as error:
            return problem(error.status, str(error))
        except tuple(STATUSES) as error:
            return problem(STATUSES[type(error)], str(error))

    return answer


def ways_of(
    channel: SiblingChannel | None,
) -> tuple[Callable[[Handler], Handler], Callable[[Handler], Handler]]:
    """Return what wraps a handler that asks, and one that changes something: for one process, or to carry it out and
    merge the answers over all of them.
    """
    if channel is None:
        return refusing, refusing
    return lambda ask: channel.whole(refusing(ask)), lambda tell: channel.everywhere(refusing(tell))


async def body_of(request: web.Request, model: type[M]) -> M:
    """Return the request's JSON body as a model. Raises `AdminRefused`."""
    document = await json_of(request)
    if not isinstance(document, dict):
        raise AdminRefused(422, f"must be a JSON object, got {json.dumps(document)[:60]}")
    try:
        return model.model_validate(document)
    except ValidationError as error:
        raise AdminRefused(422, first_problem(error, model)) from None


async def json_of(request: web.Request) -> Any:
    """Return the request's body parsed as JSON, in UTF-8 whatever its Content-Type says (RFC 8259 § 8.1). Raises
    `AdminRefused`.
    """
    body = await request.read()
    try:
        document: Any = json.loads(body.decode())
    except RecursionError:
        raise AdminRefused(400, "JSON is nested too deep") from None
    except ValueError as error:
        raise AdminRefused(400, f"not JSON: {error}") from None
    if depth_of(document) > JSON_DEPTH:
        raise AdminRefused(400, f"JSON is nested too deep: at most {JSON_DEPTH} levels")
    return document


def depth_of(document: Any) -> int:
    """Return the nesting depth of a JSON document, counted up to `JSON_DEPTH` + 1."""
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
    """Return an error response with `line` as its message."""
    return web.json_response({"error": " ".join(line.split())}, status=status)
