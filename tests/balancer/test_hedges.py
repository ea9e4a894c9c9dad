"""Two attempts at one request: who is asked, who wins, what becomes of the loser, and what is never hedged."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from typing import Any

import pytest

from balancer.admin.metrics import metrics_text
from balancer.admin.status import proxy_status
from balancer.exchange.attempt import Attempt
from balancer.exchange.exchange import Exchange
from balancer.exchange.hedged_attempts import HedgeRace
from balancer.exchange.hedges import TICK
from tests.balancer.conftest import (
    Script,
    ScriptedWorker,
    Stage,
    Wire,
    answering,
    get,
    post,
    post_chunked,
    response,
)
from tests.balancer.wireless import Peer, Wireless

QUICK = response(b"quick")
SLOW = response(b"slow")
LATE = 1.1
"""Seconds: what is late where nothing has been measured, and a bit."""


def gated(go: asyncio.Event, answer: bytes = SLOW) -> Script:
    """Answers when it is told to."""

    async def script(wire: Wire) -> None:
        while True:
            await wire.request()
            await go.wait()
            await wire.send(answer)

    return script


class Hedged:
    """A slow worker and another, and a client whose request is late at the first."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.go = asyncio.Event()
        self.slow: ScriptedWorker
        self.other: ScriptedWorker
        self.client: Wire

    async def send(
        self, request: bytes, other: Script | bytes = QUICK, answer: bytes = SLOW, **more: Any
    ) -> None:
        """The request is at the slow one, and late."""
        stage = self.stage
        self.slow = await stage.worker(gated(self.go, answer))
        self.other = await stage.worker(other)
        hedging = {"enabled": True} | more.pop("hedging", {})
        await stage.serve(self.slow, self.other, hedging=hedging, **more)
        self.client = await stage.client()
        self.client.write(request)
        await stage.eventually(lambda: self.slow.received)
        await stage.turn()
        stage.advance(LATE)

    async def end(self) -> None:
        """The slow one answers, too."""
        self.go.set()
        await self.stage.eventually(lambda: not self.stage.state("w0").in_flight)


@pytest.fixture
def hedged(stage: Stage) -> Hedged:
    return Hedged(stage)


async def test_the_first_answer_wins(stage: Stage, hedged: Hedged) -> None:
    """The client gets the quick one, once; the slow one is learned from, and its connection is used again."""
    await hedged.send(get())
    assert (await hedged.client.response()).body == b"quick"
    counts = stage.proxy.counts
    assert (counts.hedged, counts.hedges_won, counts.retried) == (1, 1, 0)
    assert (stage.state("w0").in_flight, stage.outcomes("w0"), stage.outcomes("w1")) == (1, {}, {"ok": 1})
    stage.clock.at += 2.0
    await hedged.end()
    assert stage.outcomes("w0") == {"ok": 1}
    latency = stage.state("w0").histogram.quantile(0.5)
    assert latency == pytest.approx(LATE + 2.0, rel=0.05)
    assert stage.pool("w0").idle == stage.pool("w1").idle == 1
    await stage.turn()
    assert hedged.client.received.count(b"HTTP/1.1") == 1
    assert (await hedged.client.ask(get())).status == 200


async def test_the_slow_one_may_still_be_first(stage: Stage, hedged: Hedged) -> None:
    """Then nothing was won, and nothing is lost."""
    late = asyncio.Event()
    await hedged.send(get(), gated(late, QUICK))
    await stage.eventually(lambda: hedged.other.requests)
    await hedged.end()
    assert (await hedged.client.response()).body == b"slow"
    assert (stage.proxy.counts.hedged, stage.proxy.counts.hedges_won) == (1, 0)
    late.set()
    await stage.eventually(lambda: stage.outcomes("w1") == {"ok": 1})
    assert hedged.client.received.count(b"HTTP/1.1") == 1


CHUNKS = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nquick\r\n0\r\n\r\n"
HINT = b"HTTP/1.1 103 Early Hints\r\n\r\n"


@pytest.mark.parametrize("answer", [CHUNKS, b"HTTP/1.1 200 OK\r\n\r\nquick"])
async def test_an_answer_in_pieces_wins_by_its_head(stage: Stage, hedged: Hedged, answer: bytes) -> None:
    """Whatever frames it, and the loser's answer in pieces ends with its head."""

    async def script(wire: Wire) -> None:
        await wire.request()
        await wire.send(answer)

    await hedged.send(get(), script, CHUNKS)
    assert (await hedged.client.response()).body == b"quick"
    await hedged.end()
    assert stage.outcomes("w0") == stage.outcomes("w1") == {"ok": 1}
    assert stage.pool("w0").idle == 0


async def test_an_interim_answer_wins(stage: Stage, hedged: Hedged) -> None:
    """It is a head, and what follows it must be of the same worker."""
    await hedged.send(get(), answering(HINT + QUICK), HINT + SLOW)
    assert (await hedged.client.response()).status == 103
    assert (await hedged.client.response()).body == b"quick"
    await hedged.end()
    assert stage.outcomes("w0") == {"ok": 1}
    assert hedged.client.received.count(b"103") == 1


REFUSAL = response(b"no", status=b"503 No")


@pytest.mark.parametrize(
    "refusal", [REFUSAL, b"HTTP/1.1 503 No\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"]
)
async def test_a_refusal_does_not_win(stage: Stage, hedged: Hedged, refusal: bytes) -> None:
    """It is quick because it does nothing: the slow one answers, and nobody hears of the 503."""
    await hedged.send(get(), refusal)
    await stage.eventually(lambda: stage.outcomes("w1") == {"error_status": 1})
    assert not hedged.client.received
    hedged.go.set()
    assert (await hedged.client.response()).body == b"slow"
    assert stage.proxy.counts.hedges_won == 0


async def dies(wire: Wire) -> None:
    await wire.request()
    wire.reset()


async def garbles(wire: Wire) -> None:
    await wire.request()
    await wire.send(b"SSH-2.0-OpenSSH_9.2\r\n")


@pytest.mark.parametrize("script", [dies, garbles])
async def test_a_failure_leaves_it_to_the_other(stage: Stage, hedged: Hedged, script: Script) -> None:
    """It is charged; no error reaches the client, and no retry is needed."""
    await hedged.send(get(), script)
    await stage.eventually(lambda: stage.outcomes("w1") == {"reset": 1})
    hedged.go.set()
    assert (await hedged.client.response()).body == b"slow"
    assert (stage.proxy.counts.retried, stage.proxy.counts.errors) == (0, {})


async def test_a_hedge_that_is_refused(stage: Stage) -> None:
    """No connection: the first goes on, and may stream its answer."""
    go = asyncio.Event()
    slow = await stage.worker(gated(go, CHUNKS))
    await stage.serve(slow, stage.dead_port(), hedging={"enabled": True})
    client = await stage.client()
    await client.send(get())
    await stage.eventually(lambda: slow.requests)
    stage.advance(LATE)
    await stage.eventually(lambda: stage.outcomes("w1") == {"refused": 1})
    go.set()
    assert (await client.response()).body == b"quick"


async def test_both_fail(stage: Stage, hedged: Hedged) -> None:
    """A third endpoint is asked, if there is one: neither of the two again."""
    go = asyncio.Event()

    async def dies_late(wire: Wire) -> None:
        await wire.request()
        await go.wait()
        wire.reset()

    bad = [await stage.worker(dies_late), await stage.worker(dies)]
    well = await stage.worker(QUICK)
    await stage.serve(*bad, well, hedging={"enabled": True}, retries=2)
    client = await stage.client()
    await client.send(get())
    await stage.eventually(lambda: bad[0].requests)
    stage.advance(LATE)
    await stage.eventually(lambda: stage.proxy.counts.hedged)
    await stage.turn()
    go.set()
    assert (await client.response()).body == b"quick"
    assert len(bad[0].requests) == 1
    assert len(bad[1].requests) <= 1


async def test_a_loser_that_hangs_is_charged_its_timeout(stage: Stage, hedged: Hedged) -> None:
    """It stays in flight until then, and so draws no requests; then its connection is closed."""
    await hedged.send(get())
    assert (await hedged.client.response()).body == b"quick"
    stage.advance(20.0)
    assert stage.state("w0").in_flight == 1
    stage.advance(5.0)
    assert (stage.state("w0").in_flight, stage.outcomes("w0")) == (0, {"timeout": 1})
    assert stage.proxy.hedges is not None
    assert not stage.proxy.hedges.losers


async def test_a_loser_that_breaks_is_charged(stage: Stage, hedged: Hedged) -> None:
    """It is no less broken for having lost."""
    await hedged.send(get(), answer=b"SSH-2.0-OpenSSH_9.2\r\n")
    assert (await hedged.client.response()).body == b"quick"
    await hedged.end()
    assert stage.outcomes("w0") == {"reset": 1}


# --- who is not hedged


LONG = b"x" * 100_000


@pytest.mark.parametrize(
    "request_bytes",
    [
        post(b"once"),
        post(b"once", b"Idempotency-Key: 1"),
        post_chunked(b"once"),
        post(LONG, method=b"PUT"),
        post(b"half", method=b"PUT")[:-2],
        get(b"/", b"Connection: Upgrade", b"Upgrade: websocket"),
    ],
)
async def test_what_is_never_hedged(stage: Stage, hedged: Hedged, request_bytes: bytes) -> None:
    """What may not be done twice, is not kept, has not come whole, or becomes a tunnel."""
    await hedged.send(request_bytes, retry={"idempotency_key": True})
    for _ in range(4):
        stage.advance(LATE)
    await stage.turn()
    assert (stage.proxy.counts.hedged, hedged.other.requests) == (0, [])
    hedged.client.reset()
    await stage.eventually(lambda: not stage.proxy.downstreams)


@pytest.mark.parametrize("method", [b"GET", b"HEAD", b"OPTIONS", b"PUT", b"DELETE"])
async def test_what_is_hedged(stage: Stage, hedged: Hedged, method: bytes) -> None:
    """Idempotent methods, with a body that is kept."""
    request = post(b"body", method=method)
    await hedged.send(request, QUICK[: -len(b"quick")] if method == b"HEAD" else QUICK)
    assert (await hedged.client.response(to_head=method == b"HEAD")).status == 200
    assert (stage.proxy.counts.hedges_won, hedged.other.requests[0].body) == (1, b"body")
    await hedged.end()


async def test_an_answer_that_has_begun_is_not_hedged(stage: Stage, hedged: Hedged) -> None:
    """Not even where only an interim one has come: the rest must be of the same worker."""

    async def hints(wire: Wire) -> None:
        await wire.request()
        await wire.send(HINT)
        await hedged.go.wait()
        await wire.send(SLOW)

    worker = await stage.worker(hints)
    await stage.serve(worker, await stage.worker(QUICK), hedging={"enabled": True})
    client = await stage.client()
    assert (await client.ask(get())).status == 103
    stage.advance(LATE)
    assert stage.proxy.counts.hedged == 0
    hedged.go.set()
    assert (await client.response()).body == b"slow"


async def test_nobody_else_to_ask(stage: Stage) -> None:
    """A lone endpoint is not asked twice."""
    go = asyncio.Event()
    worker = await stage.worker(gated(go))
    await stage.serve(worker, hedging={"enabled": True})
    client = await stage.client()
    await client.send(get())
    await stage.eventually(lambda: worker.requests)
    stage.advance(LATE)
    assert stage.proxy.counts.hedged == 0
    go.set()
    assert (await client.response()).body == b"slow"


async def test_the_budget(stage: Stage, hedged: Hedged) -> None:
    """One is there to begin with; the next needs twenty requests."""
    await hedged.send(get())
    assert (await hedged.client.response()).body == b"quick"
    second = await stage.client()
    stage.proxy.router.set_enabled("w1", False)
    await second.send(get())
    await stage.eventually(lambda: stage.state("w0").in_flight == 2)
    stage.proxy.router.set_enabled("w1", True)
    stage.advance(5.0)
    assert stage.proxy.hedges is not None
    assert (stage.proxy.counts.hedged, stage.proxy.hedges.hedging.denied) == (1, 1)
    hedged.go.set()
    assert (await second.response()).body == b"slow"


async def test_it_is_off_by_default(stage: Stage) -> None:
    """And then nothing of it exists."""
    await stage.serve(await stage.worker(QUICK))
    assert stage.proxy.hedges is None


async def test_it_is_reported(stage: Stage, hedged: Hedged) -> None:
    """In status and metrics."""
    await hedged.send(get())
    assert (await hedged.client.response()).body == b"quick"
    told = proxy_status(stage.control_plane)["hedging"]
    late_after = told.pop("late_after")
    assert late_after == {"r": pytest.approx(1.1, rel=0.01)}
    assert told == {"hedged": 1, "won": 1, "denied": 0, "withheld": 0, "losers": 1}
    text = metrics_text(stage.control_plane)[0].decode()
    for line in (
        "steelyard_hedges_total 1.0",
        "steelyard_hedges_won_total 1.0",
        'steelyard_hedges_withheld_total{reason="budget"} 0.0',
        "steelyard_retries_denied_total 0.0",
    ):
        assert f"{line}\n" in text
    await hedged.end()


async def test_the_unit_stops_while_a_loser_runs(stage: Stage, hedged: Hedged) -> None:
    """Nobody waits for it; it is not blamed."""
    await hedged.send(get())
    assert (await hedged.client.response()).body == b"quick"
    await hedged.client.close()
    server = stage.server
    assert server is not None
    assert await server.stop()
    assert stage.outcomes("w0") == {"abandoned": 1}
    stage.server = None


# --- the wheel


def answers(latency: Callable[[], float], stage: Wireless) -> Callable[[Peer], None]:
    """A worker's part: each request is answered after so many seconds."""
    seen: dict[int, int] = {}

    def script(peer: Peer) -> None:
        begun = peer.received.count(b"\r\n\r\n")
        for _ in range(begun - seen.get(id(peer), 0)):
            stage.loop.call_later(latency(), peer.send, QUICK)
        seen[id(peer)] = begun

    return script


def test_a_hedge_goes_out_within_a_tick() -> None:
    """Of the instant when its request is late; and nothing is left of it when all is over."""
    with Wireless(2, hedging=(("enabled", True), ("minimum", 0.05))) as stage:
        hedges = stage.proxy.hedges
        assert hedges is not None
        stage.worker_script = answers(lambda: 0.02, stage)
        client = stage.client()
        for _ in range(1400):
            client.send(get())
            stage.loop.advance(0.03)
        wait = hedges.hedging.usual["r"]
        assert wait == 0.05
        sent: list[float] = []
        stage.worker_script = lambda peer: sent.append(stage.loop.now())
        for peer in stage.workers:
            peer.on_received = stage.worker_script
        client.send(get())
        stage.loop.advance(0.2)
        assert len(sent) == 2
        assert wait <= sent[1] - sent[0] <= wait + TICK + 0.001
        assert stage.proxy.counts.hedged == 1
        stage.leave()
        stage.advance(30.0)
        assert [state.in_flight for state in stage.proxy.router.states] == [0, 0]
        assert stage.left_behind() == []


def test_a_race_leaves_no_cycle() -> None:
    """Nobody has to wait for the collector."""
    gc.collect()  # what other tests have left
    with Wireless(2, hedging=(("enabled", True),)) as stage:
        stage.worker_script = answers(iter((3.0, 0.1)).__next__, stage)
        client = stage.client()
        client.send(get())
        stage.loop.advance(1.5)
        assert stage.proxy.counts.hedges_won == 1
        stage.loop.advance(3.0)
        gc.disable()
        try:
            assert not [
                found for found in gc.get_objects() if isinstance(found, (Exchange, HedgeRace, Attempt))
            ]
        finally:
            gc.enable()


def test_the_wheel_keeps_no_request_that_is_answered() -> None:
    """A bucket holds what is to be learned from, never a request or its connections."""
    with Wireless(1, hedging=(("enabled", True),)) as stage:
        stage.worker_script = answers(lambda: 0.001, stage)
        client = stage.client()
        for _ in range(50):
            client.send(get())
            stage.loop.advance(0.002)
        stage.leave()
        assert stage.left_behind() == []
