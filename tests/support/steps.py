"""Requests stopped at each step of an exchange, with the outstanding bytes of client and worker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from balancer.clients.client_usage import ClientConnection
from tests.support.admin_requests import TOKEN
from tests.support.stage import Stage
from tests.support.wire import ScriptedWorker, Wire, get, post, post_chunked, response

MIB = 1 << 20
BODY = b"x" * 100
CHUNKED_RESPONSE = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
UNTIL_CLOSE_RESPONSE = b"HTTP/1.1 200 OK\r\n\r\n"


@dataclass(frozen=True)
class Step:
    """A request that has reached a certain step.

    The client has sent `sent` and will send `rest`; the worker has sent `before` and will send `after`. `deadline`
    names the timeout that limits the step; `arrives` is the end of what the worker must have received by now.
    """

    sent: bytes = field(default_factory=get)
    rest: bytes = b""
    before: bytes = b""
    after: bytes = field(default_factory=response)
    reads: Literal["request", "head", "nothing"] = "request"
    closes: bool = False
    deadline: str = "first_byte"
    arrives: bytes = b""
    is_there: Callable[[Stage], object] = lambda stage: True
    ahead: bytes = b""
    """A request that another client has sent before, and whose response is outstanding."""

    endpoints: tuple[Literal["worker", "dying", "hanging", "deaf", "dead"], ...] = ("worker",)
    receive_buffer: int | None = None
    max_in_flight: int | None = None
    timeouts: Mapping[str, float] = field(default_factory=dict)
    buffering: Mapping[str, int] = field(default_factory=dict)
    late: float = 0.0
    """Seconds that pass once the first endpoint has the request, so that it is hedged."""


def downstreams(stage: Stage) -> dict[ClientConnection, None]:
    return stage.downstreams


def half(data: bytes, short_of: int = 50) -> tuple[bytes, bytes]:
    """A message in two pieces."""
    return data[:-short_of], data[-short_of:]


def uploading(whole: bytes, rest: bytes) -> Step:
    """A request without its last bytes; the worker has all others."""
    return Step(
        sent=whole.removesuffix(rest),
        rest=rest,
        deadline="request_idle",
        is_there=lambda stage: stage.pool().leased,
    )


def answering(before: bytes, after: bytes, deadline: str = "body_idle", **more: Any) -> Step:
    """A POST, which must not be repeated, with an incomplete response."""
    return Step(sent=post(b"once"), before=before, after=after, arrives=b"once", deadline=deadline, **more)


LENGTH_BEGUN, LENGTH_REST = half(response(BODY))
LARGE = response(b"x" * (16 * MIB))
LARGE_POST = post(b"x" * (16 * MIB))
TRAILERS = post_chunked(b"hello").removesuffix(b"\r\n") + b"X-Sum: 1\r\n\r\n"
CHUNKS = post_chunked(b"hello")

STEPS: dict[str, Step] = {
    "connected": Step(sent=b"", rest=get(), deadline="keep_alive", is_there=downstreams),
    "amid the head": Step(sent=get()[:-20], rest=get()[-20:], deadline="head", is_there=downstreams),
    "after the head": uploading(post(BODY), BODY),
    "first bytes of a length": uploading(post(BODY), BODY[1:]),
    "amid a length": uploading(post(BODY), BODY[50:]),
    "before the chunks": uploading(CHUNKS, b"5\r\nhello\r\n0\r\n\r\n"),
    "amid a chunk size": uploading(CHUNKS, b"\r\nhello\r\n0\r\n\r\n"),
    "amid a chunk": uploading(CHUNKS, b"lo\r\n0\r\n\r\n"),
    "between chunks": uploading(CHUNKS, b"0\r\n\r\n"),
    "amid the last chunk": uploading(CHUNKS, b"\r\n\r\n"),
    "after the last chunk": uploading(CHUNKS, b"\r\n"),
    "amid request trailers": uploading(TRAILERS, b": 1\r\n\r\n"),
    "amid a kept body": Step(
        sent=post(BODY)[:-50],
        rest=BODY[50:],
        deadline="request_idle",
        buffering={"request": 1000},
        is_there=lambda stage: stage.cluster.process.buffer_budget.kept == 50,
    ),
    "in the queue": Step(
        ahead=post(b"ahead"),
        max_in_flight=1,
        deadline="queue",
        timeouts={"first_byte": 100.0},
        is_there=lambda stage: len(stage.cluster.queue) == 1,
    ),
    "connecting": Step(
        endpoints=("deaf",), timeouts={"connect": 0.2}, is_there=lambda stage: stage.pool().opening
    ),
    "refused": Step(endpoints=("dead",)),
    "a GET sent": Step(arrives=b"\r\n\r\n"),
    "a POST sent": answering(b"", response(), "first_byte"),
    "amid the answer's head": answering(*half(response(BODY), 110), "first_byte"),
    "after an interim answer": answering(b"HTTP/1.1 103 Early Hints\r\n\r\n", response(), "first_byte"),
    "after the answer's head": answering(*half(response(BODY), 100)),
    "amid an answer by length": answering(LENGTH_BEGUN, LENGTH_REST),
    "amid an answer's chunk": answering(CHUNKED_RESPONSE + b"5\r\nhel", b"lo\r\n0\r\n\r\n"),
    "between an answer's chunks": answering(CHUNKED_RESPONSE + b"5\r\nhello\r\n", b"0\r\n\r\n"),
    "amid an answer's trailers": answering(CHUNKED_RESPONSE + b"5\r\nhello\r\n0\r\nX-Sum", b": 1\r\n\r\n"),
    "amid an answer until close": answering(UNTIL_CLOSE_RESPONSE + b"hel", b"lo", closes=True),
    "the client reads no more": answering(
        LARGE,
        b"",
        receive_buffer=4096,
        is_there=lambda stage: [one.is_write_paused for one in downstreams(stage)] == [True],
    ),
    "a response taken over": answering(
        LARGE,
        b"",
        receive_buffer=4096,
        buffering={"response": 32 * MIB},
        is_there=lambda stage: stage.outcomes() == {"ok": 1} and stage.cluster.process.buffer_budget.kept,
    ),
    "the worker reads no more": Step(
        sent=LARGE_POST,
        reads="nothing",
        deadline="body_idle",
        is_there=lambda stage: any(one.is_held for one in downstreams(stage)) and stage.pool().leased,
    ),
    "pipelined": Step(
        sent=get(b"/1") + get(b"/2") + get(b"/3"),
        arrives=b"\r\n\r\n",
        is_there=lambda stage: any(one.is_held for one in downstreams(stage)),
    ),
    "lingering": Step(
        sent=post(BODY)[:-50],
        rest=BODY[50:],
        reads="head",
        before=response(status=b"413 Content Too Large"),
        deadline="linger",
        is_there=lambda stage: stage.outcomes(),
    ),
    "kept alive": Step(
        before=response(), after=b"", deadline="keep_alive", is_there=lambda stage: stage.outcomes()
    ),
    "amid an admin request": Step(
        sent=b"PUT /-/policy HTTP/1.1\r\nHost: localhost\r\nContent-Length: 8\r\nAuthorization: Bearer %b\r\n\r\n"
        % TOKEN.encode(),
        rest=b'"random"',
        deadline="request_idle",
        is_there=lambda stage: stage.cluster.process.in_flight,
    ),
    "a second attempt sent": Step(
        endpoints=("dying", "worker"),
        arrives=b"\r\n\r\n",
        is_there=lambda stage: stage.cluster.counts.retried,
    ),
    "a second attempt connecting": Step(
        endpoints=("dying", "deaf"),
        timeouts={"connect": 0.2},
        is_there=lambda stage: stage.cluster.counts.retried and stage.pool("w1").opening,
    ),
    "hedged": Step(
        endpoints=("hanging", "worker"),
        arrives=b"\r\n\r\n",
        late=1.1,
        is_there=lambda stage: stage.cluster.counts.hedged,
    ),
    "a hedge connecting": Step(
        endpoints=("hanging", "deaf"),
        timeouts={"connect": 0.2},
        late=1.1,
        is_there=lambda stage: stage.cluster.counts.hedged and stage.pool("w1").opening,
    ),
    "a hedge has won": Step(
        endpoints=("hanging", "worker"),
        before=response(),
        after=b"",
        late=1.1,
        is_there=lambda stage: stage.cluster.counts.hedges_won and stage.outcomes("w1"),
    ),
}


class Scene:
    """A stage with its request at a step."""

    def __init__(self, stage: Stage, step: Step) -> None:
        self.stage = stage
        self.step = step
        self.go = asyncio.Event()
        self.client: Wire
        self.ahead: Wire | None = None
        self.worker: ScriptedWorker
        self._all: list[ScriptedWorker] = []
        self.stopping: asyncio.Future[bool]

    async def _play(self, wire: Wire) -> None:
        """The script of the worker, the same on each connection."""
        step = self.step
        while True:
            if step.reads == "nothing":
                await self.go.wait()
            await (wire.head() if step.reads == "head" else wire.request())
            wire.write(step.before)
            await self.go.wait()
            if wire.is_closing:
                return
            await wire.send(step.after)
            if step.closes:
                return
            if step.reads == "head":
                await wire.closed()

    async def _die(self, wire: Wire) -> None:
        await wire.request()
        wire.reset()

    async def _hang(self, wire: Wire) -> None:
        while True:
            await wire.request()
            await self.go.wait()
            if wire.is_closing:
                return
            await wire.send(response())

    async def set_up(self, grace: float) -> None:
        """Bring the request to its step, in a balancer whose grace period is `grace` seconds."""
        stage, step = self.stage, self.step
        self.worker = await stage.worker(self._play)
        ports: list[ScriptedWorker | int] = []
        for kind in step.endpoints:
            if kind in ("deaf", "dead"):
                ports.append(stage.deaf_port() if kind == "deaf" else stage.dead_port())
            else:
                script = self._die if kind == "dying" else self._hang
                ports.append(self.worker if kind == "worker" else await stage.worker(script))
        self._all = [worker for worker in ports if isinstance(worker, ScriptedWorker)]
        timeouts = {"shutdown": grace, **step.timeouts}
        hedging = {"enabled": bool(step.late)}
        await stage.serve(
            *ports,
            max_in_flight=step.max_in_flight,
            timeouts=timeouts,
            hedging=hedging,
            buffering=step.buffering,
            admin={"token": TOKEN},
        )
        assert stage.running._sweep is not None
        stage.running._sweep.stop()  # it runs in real time, and would ask a client that has closed its half
        if step.ahead:
            self.ahead = await stage.client()
            await self.ahead.send(step.ahead)
            await stage.eventually(lambda: self.worker.requests)
        self.client = await stage.client(receive_buffer=step.receive_buffer)
        self.client.write(step.sent)
        if step.late:
            await stage.eventually(lambda: self._all[0].requests)
            stage.advance(step.late)
        await stage.eventually(lambda: step.is_there(stage))
        await stage.eventually(lambda: self.worker.received.endswith(step.arrives))
        await stage.turn()

    async def go_on(self) -> None:
        """Let the worker continue, and read the response of the request before."""
        self.go.set()
        if self.ahead is not None:
            await self.ahead.response()

    @property
    def connections(self) -> int:
        """The number of connections to all workers."""
        return sum(len(worker.connections) for worker in self._all)

    @property
    def upstream(self) -> Wire:
        """The worker's end of the latest connection."""
        return self.worker.connections[-1]
