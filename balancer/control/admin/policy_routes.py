"""/-/policy: show, check and replace the policy.

With several processes, the one that gets the request reads the policy's files and sends their contents to the others:
its order. A sibling makes its policy of these contents and not of the disk, so a file that is edited meanwhile cannot
give two processes two versions.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, Final

from aiohttp import web
from pydantic import ValidationError

from balancer.config.problems import first_problem
from balancer.config.schema.policy_spec import PolicySpec
from balancer.control.admin.access import Entrance
from balancer.control.admin.channel import SiblingChannel, ways_of
from balancer.control.admin.policy_report import policy_status
from balancer.control.admin.requests import (
    DESCRIBE,
    ENTRANCE,
    is_from_sibling,
    json_of,
    plane_of,
    problem,
)
from balancer.control.control_plane import ControlPlane
from balancer.errors import CommandRefused
from policies.errors import PoliciesError
from policies.loading.source import Source

ORDER_LIMIT: Final = 64 << 20
"""Limit in bytes of a request of a sibling process: ten policies of `LARGEST` bytes each, escaped as JSON."""

Order = dict[str, Any]


def order_of(spec: PolicySpec) -> Order:
    """Return the specification and the contents of its files, for JSON."""
    return {"spec": spec.spec, "files": [source.as_dict() for source in spec.library.sources]}


def reload_order(control_plane: ControlPlane) -> bytes:
    """Return the policy in force with the files of all clusters' policies, each once, as the body of a sibling's
    reload."""
    order = order_of(control_plane.policy)
    for plane in control_plane.named.values():
        order["files"] += [file for file in order_of(plane.policy)["files"] if file not in order["files"]]
    return json.dumps(order, ensure_ascii=False).encode()


def encoded(spec: PolicySpec) -> bytes:
    """Return the order as the body of a request."""
    return json.dumps(order_of(spec), ensure_ascii=False).encode()


def spec_in(order: Mapping[str, Any]) -> PolicySpec:
    """Return the specification of an order; its library has the contents that were sent."""
    spec = PolicySpec.model_validate(order["spec"])
    spec.library.give(files_in(order))
    return spec


def files_in(order: Mapping[str, Any]) -> list[Source]:
    """Return the contents of the files in an order."""
    return [Source.of(document) for document in order["files"]]


FILES_REFUSED = (
    "a file or module can be named on the admin socket only; over TCP only one that the configuration or a "
    "request on the socket has named before"
)


class PolicyRoutes:
    """Routes of /-/policy for one process."""

    def __init__(self, channel: SiblingChannel | None = None) -> None:
        self._channel = channel
        self._files_named: set[str] = set()

    def routes(self) -> Iterable[web.RouteDef]:
        """Return the routes. With several processes a change is carried out, and each answer merged, over all of
        them.
        """
        ask, tell = ways_of(self._channel)
        replace = tell(partial(self._carried_out, is_applied=True), self.order)
        check = partial(self._carried_out, is_applied=False)  # only in this process

        async def put(request: web.Request) -> web.Response:
            return await (check if "check" in request.query else replace)(request)

        return [web.get("/-/policy", ask(self._show)), web.put("/-/policy", put)]

    async def order(self, request: web.Request) -> bytes:
        """Return the policy in force with its files, as the body of a sibling's request."""
        return encoded(plane_of(request).policy)

    async def _show(self, request: web.Request) -> web.Response:
        return self._answer(request)

    def _answer(self, request: web.Request) -> web.Response:
        return web.json_response(policy_status(plane_of(request), request.app[DESCRIBE]))

    async def _carried_out(self, request: web.Request, *, is_applied: bool) -> web.Response:
        """Validate the body, "name", or {"name": …, option: value, …}, with `canary` and `shadow` as in the
        configuration, and perhaps apply it."""
        try:
            document = await json_of(request)
            spec = await asyncio.to_thread(self._spec, request, document)  # a file's code may take its time
            plane = plane_of(request)
            endpoints = [state.endpoint for state in plane.cluster.router.states]
            region = plane.config.settings.home_region
            await asyncio.to_thread(spec.require_picks, endpoints, region)
            if is_applied:
                plane.apply_policy(spec)
        except CommandRefused as error:
            return problem(error.status, f"policy: {error}")
        except ValidationError as error:
            return problem(422, first_problem(error, PolicySpec))
        except PoliciesError as error:
            return problem(422, str(error))
        return self._answer(request)

    def _spec(self, request: web.Request, document: Any) -> PolicySpec:
        """Return the specification in a request. Raises `CommandRefused` if it may not load the files that it names."""
        if is_from_sibling(request):
            spec = spec_in(document)
            self._files_named.update(spec.named)
            return spec
        spec = PolicySpec.model_validate(document)
        if not self._may_load(request, spec):
            raise CommandRefused(FILES_REFUSED, 403)
        return spec

    def _may_load(self, request: web.Request, spec: PolicySpec) -> bool:
        """Return whether a request may load the files and modules that its policy names, as their code is executed.

        On the admin socket it may name any. Over TCP, where other users of the machine and remote holders of the token
        are admitted, only those that the configuration or a request on the socket has named before.
        """
        plane = plane_of(request)
        is_on_socket = request.app[ENTRANCE] is Entrance.SOCKET
        for policy in (plane.config.settings.policy, plane.policy, *([spec] if is_on_socket else [])):
            self._files_named.update(policy.named)
        return all(name in self._files_named for name in spec.named)
