"""The control plane under /-/: an aiohttp application that gets its connections from the data path.

Rule of this file: it reads the unit and gives it orders, and is never on a forwarded request's way. Heroku gives
a process one port, so control and traffic share it; a request under /-/ is handed over with its connection.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import os
from collections.abc import Awaitable, Callable
from ipaddress import ip_address
from random import Random
from typing import TYPE_CHECKING, Any, Protocol

from aiohttp import HttpVersion11, web
from pydantic import ValidationError

from balancer.clients.client import Client
from balancer.control.endpoint_routes import EndpointRoutes
from balancer.control.live_routes import LiveRoutes
from balancer.control.merged import merged_metrics, merged_status
from balancer.control.metrics import metrics_text
from balancer.control.policy_report import policy_status, process_policy_status
from balancer.control.status import process_status, reload_status, unit_status
from balancer.errors import ForwardingError, RequestRejected
from balancer.log.lines import NOT_CONNECTED, TARGET_LIMIT, Entry
from balancer.messages.fields import without
from balancer.processes.channel import Channel, is_inner
from balancer.processes.channel import Handler as Route
from balancer.processes.standing_orders import ORDERS, StandingOrders
from balancer.settings.config import ConfigError, first_problem
from balancer.settings.sections import PolicySpec
from policies.errors import PoliciesError

if TYPE_CHECKING:
    from balancer.settings.reload import Reloads
    from balancer.unit import Unit

BODY_LIMIT = 1 << 20
"""Bytes of a control request's body; it is read whole before the hand-over."""

REFRAMED = (b"connection", b"content-length", b"transfer-encoding", b"expect", b"upgrade")
FORWARDED_BY_SOMEONE = ("X-Forwarded-For", "Forwarded", "Via", "X-Real-IP")

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class HandsOver(Protocol):
    """The client connection as far as a control request needs it."""

    def detach(self) -> asyncio.Transport: ...
    def turn_ended(self, stays: bool) -> None: ...
    def count_error(self, error: ForwardingError) -> None: ...
    def write_error(
        self, error: ForwardingError, request_id: bytes, *, stays: bool, is_head: bool
    ) -> None: ...
    def abort(self) -> None: ...


class ControlPlane:
    """The application and its aiohttp runner."""

    def __init__(
        self, unit: Unit, reloads: Reloads, token: bytes | None = None, channel: Channel | None = None
    ) -> None:
        self._unit = unit
        self._reloads = reloads
        self.token = token
        self._channel = channel
        self._orders = StandingOrders(unit, reloads, channel) if channel is not None else None
        app = web.Application(middlewares=[self._guard])
        app.add_routes(self._routes())
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)

    def _routes(self) -> list[web.RouteDef]:
        policy: Route = self._policy
        put_policy: Route = self._put_policy
        reload: Route = self._reload
        routes = [
            web.get("/-/health", self._health),
            web.get("/-/status", self._status),
            web.get("/-/metrics", self._metrics),
        ]
        if self._channel is not None and self._orders is not None:
            whole, everywhere = self._channel.whole, self._channel.everywhere
            policy, put_policy, reload = whole(policy), everywhere(put_policy), everywhere(reload)
            routes.append(web.get(ORDERS, self._orders.tell))
        return [
            *routes,
            web.get("/-/policy", policy),
            web.put("/-/policy", put_policy),
            web.post("/-/reload", reload),
            *EndpointRoutes(self._unit, self._channel).routes(),
            *LiveRoutes(self._unit, self._channel).routes(),
        ]

    async def start(self) -> None:
        """Get ready for connections; one of several processes does first what the others have been told."""
        await self._runner.setup()
        if self._channel is not None and self._orders is not None:
            await self._channel.start(self._runner)
            await self._orders.catch_up()

    async def stop(self) -> None:
        """Finish and close what was handed over."""
        await self._runner.cleanup()
        if self._channel is not None:
            self._channel.stop()

    def take_over(self, transport: asyncio.Transport, request: bytes) -> None:
        """Answer `request`, a whole HTTP message, on `transport`, and close it."""
        server = self._runner.server
        if server is None:
            transport.close()
            return
        protocol = server()
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        protocol.data_received(request)

    # --- who may

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """To others it looks as if there were nothing here."""
        began_at = self._unit.now()
        if not (self._has_token(request) or is_inner(request) or is_local(request)):
            handler = not_found
        try:
            if self._orders is not None:
                await self._orders.admit(request)
            response = await handler(request)
        except web.HTTPException as error:
            self._log(request, error, began_at)
            raise
        self._log(request, response, began_at)
        return response

    def _log(self, request: web.Request, response: web.StreamResponse, began_at: float) -> None:
        log = self._unit.access_log
        if is_inner(request):
            return
        if log is not None and log.logs_control and log.takes(response.status, None):
            log.add(control_entry(request, response, began_at, self._unit.now()))

    def _has_token(self, request: web.Request) -> bool:
        scheme, _, given = request.headers.get("Authorization", "").partition(" ")
        if self.token is None or scheme.lower() != "bearer":
            return False
        return hmac.compare_digest(given.strip().encode(), self.token)

    # --- routes

    async def _health(self, request: web.Request) -> web.Response:
        """200 while there is somebody to forward to, 503 otherwise and while draining."""
        is_up = not self._unit.is_draining and any(state.is_fit for state in self._unit.router.states)
        return web.json_response({"healthy": is_up}, status=200 if is_up else 503)

    async def _status(self, request: web.Request) -> web.Response:
        if self._channel is None:
            return web.json_response(unit_status(self._unit))
        own = process_status(self._unit)
        if is_inner(request):
            return web.json_response(own)
        told = [own, *map(json.loads, await self._channel.gather(request.path))]
        return web.json_response(merged_status(told, self._channel.processes, os.getppid()))

    async def _metrics(self, request: web.Request) -> web.Response:
        body, content_type = metrics_text(self._unit)
        if self._channel is not None and not is_inner(request):
            texts = [body, *await self._channel.gather(request.path)]
            body = await asyncio.to_thread(merged_metrics, [text.decode() for text in texts])
        return web.Response(body=body, headers={"Content-Type": content_type})

    async def _policy(self, request: web.Request) -> web.Response:
        return web.json_response(self._policy_status())

    def _policy_status(self) -> dict[str, Any]:
        alone = self._channel is None
        return policy_status(self._unit) if alone else process_policy_status(self._unit)

    async def _put_policy(self, request: web.Request) -> web.Response:
        """Body: "name", or {"name": …, option: value, …}, with `canary` and `shadow` as in the configuration. With
        `?check` in the target it is only looked whether that could be put in force."""
        try:
            spec = PolicySpec.model_validate(await request.json())
            if "check" in request.query:
                spec.make(Random(0))
            else:
                self._unit.use_policy(spec)
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            return web.json_response({"error": f"policy: not JSON: {error}"}, status=400)
        except ValidationError as error:
            return web.json_response({"error": first_problem(error)}, status=422)
        except PoliciesError as error:
            return web.json_response({"error": str(error)}, status=422)
        return web.json_response(self._policy_status())

    async def _reload(self, request: web.Request) -> web.Response:
        """The whole configuration again, as on SIGHUP; no body."""
        try:
            await self._reloads.run()
        except ConfigError as error:
            return web.json_response({"error": str(error)}, status=422)
        return web.json_response(reload_status(self._unit))


async def not_found(request: web.Request) -> web.StreamResponse:
    """What somebody sees who may not look."""
    return web.Response(status=404, text="404: Not Found")


def control_entry(
    request: web.Request, response: web.StreamResponse, began_at: float, ended_at: float
) -> Entry:
    """For the access log, without the phases of a request that is forwarded."""
    host = b"\r\nHost: %b\r\n" % request.host.encode("latin-1", "replace")
    target = request.raw_path.encode("latin-1", "replace")[:TARGET_LIMIT]
    client = Client((request.remote or "unknown").encode(), b"", request.scheme.encode())
    return Entry(
        ended_at, None, response.status, request.method.encode(), target, b"", host,
        request.version < HttpVersion11, client, None, 0, NOT_CONNECTED, (0.0, began_at), 0.0, 0.0, None,
        request.content_length or 0, response.content_length or 0,
    )  # fmt: skip


def is_local(request: web.Request) -> bool:
    """From this machine, on its own behalf.

    A proxy on this machine speaks for others, and so does a browser that was led here under another site's name
    (DNS rebinding): neither counts. Nor does another site's page that has the browser send something here: browsers
    name its origin (Fetch § 3.2) with whatever may change something.
    """
    if any(name in request.headers for name in FORWARDED_BY_SOMEONE):
        return False
    if request.headers.get("Origin", f"://{request.host}").partition("://")[2] != request.host:
        return False
    host = request.url.host or ""
    return _is_loopback(request.remote or "") and (host == "localhost" or _is_address(host))


def _is_loopback(address: str) -> bool:
    return _is_address(address) and ip_address(address).is_loopback


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


class ControlTurn:
    """A request under /-/: gathered whole, then handed over with its connection when its turn has come."""

    def __init__(self, downstream: HandsOver, control: ControlPlane, head: bytes, has_body: bool) -> None:
        self._downstream = downstream
        self._control = control
        self.head = head
        self._body = bytearray()
        self._is_up = False
        self._is_complete = not has_body

    def start(self) -> None:
        self._is_up = True
        self._hand_over()

    def request_body(self, data: bytes) -> None:
        self._body += data
        if len(self._body) > BODY_LIMIT:
            self._downstream.abort()

    def request_ended(self, trailers: bytes) -> None:
        self._is_complete = True
        self._hand_over()

    def pause_response(self) -> None:
        """The answer is aiohttp's."""

    def resume_response(self) -> None:
        """The answer is aiohttp's."""

    def abandon(self) -> None:
        """Nothing was begun."""

    def reject(self, error: RequestRejected) -> None:
        """It cannot be completed."""
        self._downstream.count_error(error)
        self._downstream.write_error(error, b"", stays=False, is_head=False)
        self._downstream.turn_ended(stays=False)

    def check(self, now: float) -> None:
        """The client's own timeouts bound it."""

    def _hand_over(self) -> None:
        if self._is_up and self._is_complete:
            self._control.take_over(self._downstream.detach(), self._message())

    def _message(self) -> bytes:
        """The request as one message, to be answered and then closed."""
        head = without(REFRAMED, self.head[:-2])
        return head + b"Content-Length: %d\r\nConnection: close\r\n\r\n%b" % (
            len(self._body),
            bytes(self._body),
        )
