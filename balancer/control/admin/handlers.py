"""Handlers of admin requests: an aiohttp application for every request whose path begins with /-/.

`application.py` imports this module for the first admin request, or at the start where monitoring is expected, because
aiohttp takes long to import.
"""

from __future__ import annotations

import json
import os
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import HttpVersion11, web

from balancer.control.admin.access import BODY_LIMIT, READY, Entrance, has_token
from balancer.control.admin.channel import SiblingChannel, ways_of
from balancer.control.admin.cluster_routes import SplitRoutes, cluster_routes
from balancer.control.admin.merge import merged_status
from balancer.control.admin.metrics import metrics_text
from balancer.control.admin.page.routes import PageRoutes
from balancer.control.admin.policy_report import raw, summary
from balancer.control.admin.policy_routes import ORDER_LIMIT, PolicyRoutes, files_in, reload_order
from balancer.control.admin.requests import (
    DESCRIBE,
    ENTRANCE,
    FRONT,
    REFUSALS,
    is_from_sibling,
    json_of,
    plane_of,
    problem,
    refusal,
)
from balancer.control.admin.runtime_overrides import ORDERS, RuntimeOverrides
from balancer.control.admin.status import proxy_status, reload_status
from balancer.control.control_plane import ControlPlane
from balancer.control.reload import Reloads
from balancer.http.h1.client import Client
from balancer.log.formats import NOT_CONNECTED, TARGET_LIMIT, Entry

DRAIN_TIME = 1.0
"""Seconds for which aiohttp continues to read after a response that did not wait for the request's body."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class AdminHandlers:
    """The routes of the admin interface, with an aiohttp runner for each entrance that was used."""

    def __init__(
        self,
        token: Callable[[], bytes | None],
        log: Callable[[Entry, bytes | None], None],
        control_plane: ControlPlane,
        reloads: Reloads,
        channel: SiblingChannel | None = None,
    ) -> None:
        self._token, self._log_entry = token, log
        self._control_plane = control_plane
        self._cluster = control_plane.cluster
        self._reloads = reloads
        self._channel = channel
        self._orders = RuntimeOverrides(control_plane, reloads, channel) if channel is not None else None
        self._policy = PolicyRoutes(channel)
        self._page = PageRoutes(control_plane, channel)
        self._splits = SplitRoutes(control_plane, channel)
        self._runners: dict[Entrance, web.AppRunner] = {}

    def _runner(self, entrance: Entrance) -> web.AppRunner:
        """Return the runner of an entrance. It is made for the first connection: its routes take milliseconds."""
        if entrance not in self._runners:
            runner = self._runners[entrance] = self._new_runner(entrance)
            try:
                runner.setup().send(None)
            except StopIteration:
                return runner
            raise RuntimeError("a start-up handler waits: set the runner up in `start`")
        return self._runners[entrance]

    def protocol(self, entrance: Entrance) -> web.RequestHandler:
        """Return the protocol of a new connection."""
        server = self._runner(entrance).server
        assert server is not None  # its runner is set up
        return server()

    def _new_runner(self, entrance: Entrance) -> web.AppRunner:
        limit = ORDER_LIMIT if entrance is Entrance.PROCESS else BODY_LIMIT
        app = web.Application(middlewares=[self._guard], client_max_size=limit)
        app[ENTRANCE] = entrance
        app[FRONT] = self._control_plane
        app[DESCRIBE] = summary if self._channel is None else raw
        app.add_routes(self._routes())
        return web.AppRunner(
            app, access_log=None, shutdown_timeout=1.0, auto_decompress=False, lingering_time=DRAIN_TIME
        )

    def _routes(self) -> list[web.RouteDef]:
        _, tell = ways_of(self._channel)
        return [
            *self._probes(),
            web.get("/-/status", self._status),
            web.get("/-/metrics", self._metrics),
            *([web.get(ORDERS, self._orders.tell)] if self._orders is not None else []),
            web.post("/-/reload", tell(self._reload, self._reload_order)),
            *self._policy.routes(),
            *cluster_routes(self._channel),
            *self._splits.routes(),
            *self._page.routes(),
        ]

    def _probes(self) -> list[web.RouteDef]:
        return [
            web.get("/-/live", self._live),
            *(web.get(path.decode(), self._ready) for path in sorted(READY)),
        ]

    async def join_siblings(self) -> None:
        """Listen for the sibling processes, and apply their runtime overrides."""
        if self._channel is not None and self._orders is not None:
            async with self._channel.turn():
                await self._channel.start(self._runner(Entrance.PROCESS))
                await self._orders.catch_up()

    async def stop(self) -> None:
        """Finish open requests and close."""
        self._page.close()
        for runner in [*self._runners.values()]:
            await runner.cleanup()
        if self._channel is not None:
            self._channel.stop()

    async def reload_everywhere(self) -> list[str]:
        """Reload the configuration here and then in the sibling processes; return what those have refused.

        Raises `ConfigError` if it is refused here, and then nothing has changed anywhere.
        """
        channel = self._channel
        assert channel is not None  # one of several processes
        async with channel.turn():
            await self._reloads.run()
            answers = await channel.ask("POST", "/-/reload", reload_order(self._control_plane))
        return [
            f"process {answer.process + 1} keeps the configuration that it has: {answer.problem}"
            for answer in answers
            if answer.status >= 400
        ]

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Answer 404 to every request that is not admitted, and the errors of handlers."""
        began_at = self._cluster.now()
        try:
            if not self._may(request):
                response: web.StreamResponse = web.Response(status=404, text="404: Not Found")
            elif "Content-Encoding" in request.headers:  # a megabyte may decompress to a gigabyte
                response = problem(415, "Content-Encoding: an admin request's body must be plain JSON")
            else:
                plane_of(request)
                if self._orders is not None:
                    await self._orders.admit(request)
                response = await handler(request)
        except REFUSALS as error:
            response = refusal(error, request)
        except web.HTTPException as error:
            self._log(request, error, began_at)
            raise
        self._log(request, response, began_at)
        return response

    def _may(self, request: web.Request) -> bool:
        token = self._token()
        if token is None or request.app[ENTRANCE] is not Entrance.SOCKET:
            return True  # from a sibling process, or already admitted by its head
        given = request.headers.getall("Authorization", [])
        return has_token([value.encode("utf-8", "surrogateescape") for value in given], token)

    def _log(self, request: web.Request, response: web.StreamResponse, began_at: float) -> None:
        if not is_from_sibling(request):
            lines = [b"\r\n%b: %b" % field for field in request.raw_headers]
            entry = admin_entry(request, response, began_at, self._cluster.now())
            self._log_entry(entry, b"".join([*lines, b"\r\n"]))

    # --- routes

    async def _ready(self, request: web.Request) -> web.Response:
        """Answer an admitted request with the counts of endpoints by condition, too."""
        health = (await self._whole_status(request))["health"]
        return web.json_response(health, status=200 if health["healthy"] else 503)

    async def _live(self, request: web.Request) -> web.Response:
        return web.json_response({"live": True})

    async def _status(self, request: web.Request) -> web.Response:
        return web.json_response(await self._whole_status(request))

    async def _whole_status(self, request: web.Request) -> dict[str, Any]:
        """Return the status of all processes; to a sibling that of this process."""
        if self._channel is None:
            return proxy_status(self._control_plane)
        own = proxy_status(self._control_plane, raw)
        if is_from_sibling(request):
            return own
        documents = [own, *map(json.loads, await self._channel.gather("/-/status"))]
        return merged_status(documents, self._channel.processes, os.getppid())

    async def _metrics(self, request: web.Request) -> web.Response:
        body, content_type = metrics_text(self._control_plane)
        if self._channel is not None:
            body = await self._channel.metrics(body)
            if not is_from_sibling(request):
                body = await self._channel.all_metrics(body, request.path)
        return web.Response(body=body, headers={"Content-Type": content_type})

    async def _reload_order(self, request: web.Request) -> bytes:
        return reload_order(self._control_plane)

    async def _reload(self, request: web.Request) -> web.Response:
        """Reload the whole configuration, as on SIGHUP; no body. A sibling sends its policy with the files."""
        if is_from_sibling(request):
            await self._reloads.run(files_in(await json_of(request)))
        else:
            await self._reloads.run()
        front = self._control_plane
        sources = (source for plane in (front, *front.named.values()) for source in plane.discovery.sources)
        unanswered = [source.source for source in sources if source.problem is not None]
        return web.json_response({**reload_status(front), "unanswered": unanswered})


def admin_entry(
    request: web.Request, response: web.StreamResponse, began_at: float, ended_at: float
) -> Entry:
    """Return the access log entry of an admin request, without the phases of a forwarded one."""
    host = b"\r\nHost: %b\r\n" % request.host.encode("latin-1", "replace")
    target = request.raw_path.encode("latin-1", "replace")[:TARGET_LIMIT]
    client = Client((request.remote or "unknown").encode(), b"", request.scheme.encode())
    return Entry(
        ended_at, None, response.status, request.method.encode(), target, b"", host,
        request.version < HttpVersion11, client, None, 0, NOT_CONNECTED, (0.0, began_at), 0.0, 0.0, None,
        request.content_length or 0, response.content_length or 0,
    )  # fmt: skip
