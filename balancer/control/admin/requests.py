"""Admin requests as the routes see them: the cluster they are about, their body, and errors as answers."""

from __future__ import annotations

import json
from typing import Any, Final, TypeVar

from aiohttp import web
from pydantic import ValidationError

from balancer.config.documents import MAX_DEPTH, TOO_DEEP, check_limits
from balancer.config.problems import ConfigError, first_problem
from balancer.config.schema.routes import DEFAULT
from balancer.config.schema.section import Section
from balancer.control.admin.access import Entrance
from balancer.control.admin.policy_report import Describe
from balancer.control.control_plane import ControlPlane
from balancer.errors import CommandRefused, LogFailed
from policies.errors import UnknownEndpoint

M = TypeVar("M", bound=Section)

ENTRANCE = web.AppKey("entrance", Entrance)
"""Application key: the entrance of its requests."""

FRONT: web.AppKey[Any] = web.AppKey("front", object)
"""Application key: the control plane of the default cluster."""

DESCRIBE: web.AppKey[Describe] = web.AppKey("describe")
"""Application key: how an answer shows histograms; raw if it will be merged with those of sibling processes."""


def is_from_sibling(request: web.Request) -> bool:
    """Return whether the request comes from a sibling process."""
    return request.app[ENTRANCE] is Entrance.PROCESS


def plane_of(request: web.Request) -> ControlPlane:
    """Return the control plane of the cluster that a request is about: that of `?cluster=NAME`, or the default one.

    Raises `CommandRefused`, which is answered before a handler is called.
    """
    front: ControlPlane = request.app[FRONT]
    return front.of_cluster(request.query.get("cluster"))


STATUSES: Final[dict[type[Exception], int]] = {
    ConfigError: 422,
    LogFailed: 409,
    UnknownEndpoint: 404,
}
"""Status of the answer to a request that ends with such an error."""

REFUSALS: Final[tuple[type[Exception], ...]] = (CommandRefused, *STATUSES)
"""Errors of handlers that are answered."""


def refusal(error: Exception, request: web.Request) -> web.Response:
    """Return the answer to a request that ends with one of `REFUSALS`."""
    status = error.status if isinstance(error, CommandRefused) else STATUSES[type(error)]
    line, front = str(error), request.app[FRONT]
    if isinstance(error, UnknownEndpoint):
        planes, name = ((DEFAULT, front), *front.named.items()), request.match_info.get("id")
        holders = [cluster for cluster, plane in planes if name in plane.registry.members]
        line += f"; clusters that have it: {', '.join(holders)}" if holders else ""
    return problem(status, line)


def problem(status: int, line: str) -> web.Response:
    """Return an error response with `line` as its message."""
    return web.json_response({"error": " ".join(line.split())}, status=status)


async def body_of(request: web.Request, model: type[M]) -> M:
    """Return the request's JSON body as a model. Raises `CommandRefused`."""
    document = await json_of(request)
    if not isinstance(document, dict):
        raise CommandRefused(f"must be a JSON object, got {json.dumps(document)[:60]}", 422)
    try:
        return model.model_validate(document)
    except ValidationError as error:
        raise CommandRefused(first_problem(error, model), 422) from None


async def json_of(request: web.Request) -> Any:
    """Return the request's body parsed as JSON, in UTF-8 whatever its Content-Type says (RFC 8259 § 8.1). Raises
    `CommandRefused`.
    """
    body = await request.read()
    try:
        document: Any = json.loads(body.decode())
    except RecursionError:
        raise CommandRefused("JSON is nested too deep", 400) from None
    except ValueError as error:
        raise CommandRefused(f"not JSON: {error}", 400) from None
    try:
        check_limits(document)  # validation and serialization recurse once per level
    except ValueError as error:
        is_deep = str(error) == TOO_DEEP
        problem = f"JSON is nested too deep: at most {MAX_DEPTH} levels" if is_deep else f"not JSON: {error}"
        raise CommandRefused(problem, 400) from None
    return document
