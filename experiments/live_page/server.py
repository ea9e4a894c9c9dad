"""The process of an experiment's page: `python -m experiments.live_page.server HOST PORT`, started by `LivePage`.

A process of its own, so that viewers take no time from the load generator's event loop. It reads commands from standard
input, one JSON object a line, and ends with it: also when the experiment is killed. It changes nothing at a balancer.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from aiohttp import web

from balancer.control.admin.access import is_from_this_machine
from balancer.control.admin.page.document import page
from balancer.control.admin.page.sampler import EventStreams
from experiments.live_page.follower import Feed, Follower

BETWEEN, ENDED = "between runs", "ended"
READ_ONLY = "read-only: an experiment measures this balancer, and a change would count as its result"
COMMAND_LIMIT = 1 << 20


class PageServer:
    """Routes and commands. A note is what the experiment reports, with the state of its balancer."""

    def __init__(self) -> None:
        self.feed = Feed()
        self._follower = Follower(self.feed, self._followed)
        self._streams = EventStreams()
        self._note: dict[str, Any] = {"title": "Experiment", "text": "starting"}
        self._event = ""
        self._state: str | None = BETWEEN
        self._timers: list[asyncio.TimerHandle] = []
        self._show()

    def application(self) -> web.Application:
        """The page, its stream, and no policies, as none can be chosen."""
        app = web.Application(middlewares=[only_from_this_machine])
        app.add_routes(
            [
                web.get("/", self._to_page),
                web.get("/-/", self._page),
                web.get("/-/stream", self._stream, allow_head=False),
                web.get("/-/policies", self._policies),
            ]
        )
        return app

    def obey(self, command: dict[str, Any]) -> None:
        """Carry out a command: any of `follow`, `note`, `events` and `end`."""
        if "note" in command:
            self._note = command["note"]
        if "follow" in command:
            self._forget_events()
            if (target := command["follow"]) is None:
                self._follower.leave()
                self._state = BETWEEN
            else:
                self._state = None
                self._follower.follow(target["url"], target["token"], target["cluster"])
        if "events" in command:
            self._forget_events()
            loop = asyncio.get_running_loop()
            self._timers = [loop.call_later(at, self._happen, text) for at, text in command["events"]]
        if "end" in command:
            self._forget_events()
            self._follower.leave()
            self._state = ENDED
        self._show()

    def close(self) -> None:
        """End all streams after the last note."""
        self.obey({"end": True})
        self.feed.close()
        self._streams.close()

    def _followed(self, problem: str | None) -> None:
        state = None if problem is None else "no data"
        if state != self._state:
            self._state = state
            self._show()

    def _happen(self, text: str) -> None:
        self._event = text
        self._show()

    def _forget_events(self) -> None:
        for timer in self._timers:
            timer.cancel()
        self._timers, self._event = [], ""

    def _show(self) -> None:
        parts = [self._note.get("text", ""), self._event]
        text = " · ".join(part for part in parts if part)
        self.feed.show_note({**self._note, "text": text, "state": self._state, "read_only": True})

    async def _to_page(self, request: web.Request) -> web.Response:
        raise web.HTTPFound("/-/")

    async def _page(self, request: web.Request) -> web.Response:
        body, fields = page()
        return web.Response(body=body, content_type="text/html", charset="utf-8", headers=fields)

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        return await self._streams.respond(request, self.feed.events())

    async def _policies(self, request: web.Request) -> web.Response:
        return web.json_response([])


@web.middleware
async def only_from_this_machine(request: web.Request, handler: Any) -> web.StreamResponse:
    """Refuse requests that another site's page or name has led here, and all that could change something."""
    head = {name.encode(): [*map(str.encode, request.headers.getall(name))] for name in request.headers}
    if not is_from_this_machine({name.lower(): values for name, values in head.items()}):
        return web.json_response({"error": "only for programs on this machine"}, status=403)
    if request.method != "GET":
        return web.json_response({"error": READ_ONLY}, status=405, headers={"Allow": "GET"})
    answer: web.StreamResponse = await handler(request)
    return answer


async def serve(host: str, port: int) -> int:
    """Serve until standard input ends; returns the exit code."""
    server = PageServer()
    runner = web.AppRunner(server.application(), access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
    except OSError as error:
        print(f"cannot listen on {host}:{port}: {error.strerror or error}", file=sys.stderr)
        return 2
    shown = f"[{host}]" if ":" in host else host
    print(f"page ready on http://{shown}:{runner.addresses[0][1]}/-/", flush=True)
    reader = asyncio.StreamReader(limit=COMMAND_LIMIT)
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
    )
    async for line in reader:
        server.obey(json.loads(line))
    server.close()
    await runner.cleanup()
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(serve(sys.argv[1], int(sys.argv[2]))))
