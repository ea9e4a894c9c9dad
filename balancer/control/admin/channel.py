"""Communication between sibling processes: HTTP on a Unix socket of each, served by the same admin application.

An admin request that reaches any process applies to all of them. A route wrapped in `everywhere` is carried out by
every process, one wrapped in `whole` is answered by every process; the answers are merged. `gather` gets a document
from all siblings.

The sockets are in a directory that only this user may enter; there is no other authentication.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from aiohttp import ClientError, ClientSession, ClientTimeout, UnixConnector, web
from prometheus_client.core import Metric

from balancer.control.admin.merge import counters_in, merged, merged_metrics
from balancer.control.admin.requests import is_from_sibling
from balancer.errors import ListenFailed
from balancer.log.output import try_lock

Handler = Callable[[web.Request], Awaitable[web.Response]]

Order = Callable[[web.Request], Awaitable[bytes]]
"""Function that returns the body of the request to the siblings, once the change is carried out here."""

READ_TIMEOUT = 2.0
"""Timeout in seconds for a document from a sibling process; one that hangs is left out."""

CHANGE_TIMEOUT = 10.0
"""Timeout in seconds for a change at a sibling process; it must not be left out, or the processes would diverge."""


TURN_TIMEOUT = 2 * CHANGE_TIMEOUT
"""Timeout in seconds for changes that other processes carry out: a process that hangs must not block them for ever."""

TURN_PERIOD = 0.01
"""Seconds between two tries to begin a change while another process carries one out."""


class SiblingResponse(NamedTuple):
    """Response of sibling process `process` to a request on the channel."""

    process: int
    status: int
    body: bytes
    content_type: str

    @property
    def problem(self) -> str:
        """The message of a response that refuses a change."""
        with suppress(ValueError, KeyError, TypeError):
            return str(json.loads(self.body)["error"])
        return f"status {self.status}"


class SiblingChannel:
    """Channel of process `index` (from 0) of `processes` to its siblings; `directory` holds the socket of each."""

    def __init__(self, directory: Path, index: int, processes: int) -> None:
        self._directory = directory
        self._index = index
        self.processes = processes
        self._before: list[Metric] | None = None
        self._lock = asyncio.Lock()

    def path(self, index: int) -> str:
        """Return the path of the socket of process `index`."""
        return str(self._directory / f"{index}.sock")

    async def start(self, runner: web.AppRunner) -> None:
        """Listen for requests of the siblings. Raises `ListenFailed`."""
        own = self.path(self._index)
        self._directory.mkdir(mode=0o700, exist_ok=True)
        with suppress(FileNotFoundError):
            os.unlink(own)  # left by a killed process
        try:
            await web.UnixSite(runner, own).start()
        except OSError as error:
            raise ListenFailed(f"cannot listen on {own}: {error.strerror or error}") from None

    def stop(self) -> None:
        """Remove this process's socket; the last process removes the directory."""
        with suppress(OSError):
            os.unlink(self.path(self._index))
        with suppress(FileNotFoundError):  # another process was the last
            if not any(self._directory.glob("*.sock")):
                shutil.rmtree(self._directory, ignore_errors=True)

    # --- metrics

    async def metrics(self, own: bytes) -> bytes:
        """Return the metrics of this process with the counters of those that it replaces, and keep them in a file:
        they count on when it does not answer, and when it has ended."""
        async with self._lock:
            return await asyncio.to_thread(self._keep, own)

    def _keep(self, text: bytes) -> bytes:
        if self._before is None:
            self._before = self._last(self._index)
        if self._before:
            text = merged_metrics([text.decode()], [self._before], is_one=True)
        path = self._directory / f"{self._index}.metrics"
        with suppress(OSError):
            path.with_suffix(".new").write_bytes(text)
            path.with_suffix(".new").replace(path)
        return text

    def _last(self, index: int) -> list[Metric]:
        """Return the counters that process `index` has rendered last."""
        with suppress(OSError):
            return counters_in((self._directory / f"{index}.metrics").read_text())
        return []

    async def all_metrics(self, own: bytes, target: str) -> bytes:
        """Return the metrics of all processes."""
        answers = [each for each in await self.ask("GET", target, b"", READ_TIMEOUT) if each.status == 200]
        texts = [own.decode(), *(each.body.decode() for each in answers)]
        silent = {*range(self.processes)} - {self._index, *(each.process for each in answers)}
        return await asyncio.to_thread(lambda: merged_metrics(texts, map(self._last, silent)))

    # --- requests to siblings

    async def ask(
        self, method: str, target: str, body: bytes = b"", seconds: float = CHANGE_TIMEOUT
    ) -> list[SiblingResponse]:
        """Send a request to all siblings concurrently and return their answers.

        A sibling that is not running gives no answer; a timeout counts as 504.
        """
        others = [index for index in range(self.processes) if index != self._index]
        answers = await asyncio.gather(*(self._ask(index, method, target, body, seconds) for index in others))
        return [answer for answer in answers if answer is not None]

    async def gather(self, target: str) -> list[bytes]:
        """Return the bodies of successful GET requests of `target` at all siblings."""
        return [
            answer.body for answer in await self.ask("GET", target, b"", READ_TIMEOUT) if answer.status == 200
        ]

    async def _ask(
        self, index: int, method: str, target: str, body: bytes, seconds: float = CHANGE_TIMEOUT
    ) -> SiblingResponse | None:
        connector, timeout = UnixConnector(self.path(index)), ClientTimeout(total=seconds)
        try:
            async with (
                ClientSession(connector=connector, timeout=timeout) as session,
                session.request(method, f"http://process{target}", data=body) as response,
            ):
                return SiblingResponse(index, response.status, await response.read(), response.content_type)
        except TimeoutError:
            late = json.dumps({"error": f"process {index + 1} has not answered within {seconds:g} s"})
            return SiblingResponse(index, 504, late.encode(), "application/json")
        except (ClientError, OSError):
            return None

    # --- wrappers of handlers

    def whole(self, handler: Handler) -> Handler:
        """Wrap `handler`, which returns this process's document, to return the merged document of all processes."""

        async def of_all(request: web.Request) -> web.Response:
            answer = await handler(request)
            if is_from_sibling(request) or answer.status != 200:
                return answer
            return merged_answer(answer, await self.gather(request.raw_path))

        return of_all

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Carry out one change of all processes at a time, in whichever process it begins.

        Two at once could reach two processes in different orders, which would then differ. The lock is the kernel's,
        so that it ends with the process. After `TURN_TIMEOUT` the change goes ahead.
        """
        self._directory.mkdir(mode=0o700, exist_ok=True)
        descriptor = os.open(self._directory, os.O_RDONLY | os.O_CLOEXEC)
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(TURN_TIMEOUT):
                    while not try_lock(descriptor):  # noqa: ASYNC110 - another process unlocks it
                        await asyncio.sleep(TURN_PERIOD)
            yield
        finally:
            os.close(descriptor)

    def everywhere(self, handler: Handler, order: Order = web.Request.read) -> Handler:
        """Wrap `handler` to carry the request out at every process: here first, and nowhere else if it fails here."""

        async def at_all(request: web.Request) -> web.Response:
            if is_from_sibling(request):
                return await handler(request)
            async with self.turn():
                return await here_and_there(request)

        async def here_and_there(request: web.Request) -> web.Response:
            answer = await handler(request)
            if answer.status >= 400:
                return answer
            others = await self.ask(request.method, request.raw_path, await order(request))
            for other in others:
                if other.status >= 400:
                    return web.Response(status=other.status, body=other.body, content_type=other.content_type)
            return merged_answer(answer, [other.body for other in others])

        return at_all


def merged_answer(answer: web.Response, others: list[bytes]) -> web.Response:
    """Merge the answers of all processes, with the status of this process's answer. An empty one has nothing to say."""
    own = answer.body if isinstance(answer.body, bytes) else b"{}"
    documents = filter(None, map(json.loads, (own, *others)))
    return web.json_response(merged([*documents]) or {}, status=answer.status)


def ways_of(channel: SiblingChannel | None) -> tuple[Callable[[Handler], Handler], Callable[..., Handler]]:
    """Return what wraps a handler that asks, and one that changes something; one process needs no wrapper."""
    if channel is None:
        return _as_it_is, _as_it_is
    return channel.whole, channel.everywhere


def _as_it_is(handler: Handler, order: Order = web.Request.read) -> Handler:
    return handler
