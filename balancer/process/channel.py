"""How the processes of one unit talk to each other: HTTP on a Unix socket of each, to the same control application.

Rule of this file: whichever process a control request reaches, it is the whole unit that answers or obeys. A route that
is given to `everywhere` is carried out by every process, and one given to `whole` answered by every process; the
answers are told as one. `gather` asks all the others for a document.

The sockets stand in a directory that only this user may enter, and that is all the proof they ask for.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import NamedTuple

from aiohttp import ClientError, ClientSession, ClientTimeout, UnixConnector, web

from balancer.admin.access import Entrance
from balancer.admin.merge import merged
from balancer.errors import ListenFailed
from balancer.process.member import Member

Handler = Callable[[web.Request], Awaitable[web.Response]]

ENTRANCE = web.AppKey("entrance", Entrance)
"""Of an application: where its requests come in."""

TO_ANSWER = 2.0
"""Seconds that a process of ours is waited for; one that hangs is left out."""

TO_OBEY = 10.0
"""The same for what it is to do: it must not be left out, or it would go on by other orders than the rest."""


class Answer(NamedTuple):
    """What another process said."""

    process: int
    status: int
    body: bytes
    content_type: str


class Channel:
    """The ends of all processes, as one of them has them."""

    def __init__(self, member: Member) -> None:
        self._member = member

    @property
    def processes(self) -> int:
        """How many the unit is to have."""
        return self._member.of

    def path(self, index: int) -> str:
        """Where process `index` listens."""
        return str(self._member.directory / f"{index}.sock")

    async def start(self, runner: web.AppRunner) -> None:
        """Answer the others. Raises `ListenFailed`."""
        own = self.path(self._member.index)
        self._member.directory.mkdir(mode=0o700, exist_ok=True)
        with suppress(FileNotFoundError):
            os.unlink(own)  # of one that was killed
        try:
            await web.UnixSite(runner, own).start()
        except OSError as error:
            raise ListenFailed(f"cannot listen on {own}: {error.strerror or error}") from None

    def stop(self) -> None:
        """Leave nothing behind; the last one takes the directory along."""
        with suppress(OSError):
            os.unlink(self.path(self._member.index))
        with suppress(OSError):
            self._member.directory.rmdir()

    # --- asking

    async def ask(
        self, method: str, target: str, body: bytes = b"", seconds: float = TO_OBEY
    ) -> list[Answer]:
        """Let all the others answer, at the same time. Who is not there does not; who takes longer counts as 504."""
        others = [index for index in range(self._member.of) if index != self._member.index]
        answers = await asyncio.gather(*(self._ask(index, method, target, body, seconds) for index in others))
        return [answer for answer in answers if answer is not None]

    async def gather(self, target: str) -> list[bytes]:
        """What GET of `target` gives at each of the others."""
        return [
            answer.body for answer in await self.ask("GET", target, b"", TO_ANSWER) if answer.status == 200
        ]

    async def _ask(
        self, index: int, method: str, target: str, body: bytes, seconds: float = TO_OBEY
    ) -> Answer | None:
        connector, timeout = UnixConnector(self.path(index)), ClientTimeout(total=seconds)
        try:
            async with (
                ClientSession(connector=connector, timeout=timeout) as session,
                session.request(method, f"http://process{target}", data=body) as response,
            ):
                return Answer(index, response.status, await response.read(), response.content_type)
        except TimeoutError:
            late = json.dumps({"error": f"process {index + 1} has not answered within {seconds:g} s"})
            return Answer(index, 504, late.encode(), "application/json")
        except (ClientError, OSError):
            return None

    # --- as one

    def whole(self, handler: Handler) -> Handler:
        """A document of all processes; `handler` gives this one's."""

        async def of_all(request: web.Request) -> web.Response:
            answer = await handler(request)
            if is_inner(request) or answer.status != 200:
                return answer
            return as_one(answer, await self.gather(request.raw_path))

        return of_all

    def everywhere(self, handler: Handler) -> Handler:
        """The same request at every process: carried out here first, and nowhere else if it fails here."""

        async def at_all(request: web.Request) -> web.Response:
            answer = await handler(request)
            if is_inner(request) or answer.status >= 400:
                return answer
            others = await self.ask(request.method, request.raw_path, await request.read())
            for other in others:
                if other.status >= 400:
                    return web.Response(status=other.status, body=other.body, content_type=other.content_type)
            return as_one(answer, [other.body for other in others])

        return at_all


def as_one(answer: web.Response, others: list[bytes]) -> web.Response:
    """What all of them say, with the status of the first."""
    own = answer.body if isinstance(answer.body, bytes) else b"{}"
    return web.json_response(merged([*map(json.loads, (own, *others))]), status=answer.status)


def is_inner(request: web.Request) -> bool:
    """Whether another process of the unit asks."""
    return request.app[ENTRANCE] is Entrance.PROCESS
