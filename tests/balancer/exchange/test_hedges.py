"""Hedged requests: second endpoint, winner, the losing attempt, and requests that are never hedged."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from balancer.control.admin.metrics import metrics_text
from balancer.control.admin.status import proxy_status
from balancer.exchange.attempt import Attempt
from balancer.exchange.exchange import Exchange
from balancer.exchange.hedging import HedgeRace
from benchmarks.harness.open_load import without_collections
from policies import Available, EndpointState, Overloaded, RequestFacts
from policies.overload.hedging import TICK
from tests.support.scripts import LATE, QUICK, reset_after_request
from tests.support.stage import Stage
from tests.support.wire import (
    Script,
    ScriptedWorker,
    Wire,
    answering_after,
    get,
    playing,
    post,
    post_chunked,
    response,
)
from tests.support.wireless import Peer, Wireless

SLOW = response(b"slow")


class Hedged:
    """A slow worker, another worker, and a client whose request is late at the slow one."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.go = asyncio.Event()
        self.slow: ScriptedWorker
        self.other: ScriptedWorker
        self.client: Wire

    async def send(
        self, request: bytes, other: Script | bytes = QUICK, answer: bytes = SLOW, **more: Any
    ) -> None:
        """Send the request to the slow worker and let it become late."""
        stage = self.stage
        self.slow = await stage.worker(answering_after(self.go, answer))
        self.other = await stage.worker(other)
        hedging = {"enabled": True} | more.pop("hedging", {})
        await stage.serve(self.slow, self.other, hedging=hedging, **more)
        self.client = await stage.client()
        self.client.write(request)
        await stage.eventually(lambda: self.slow.received)
        await stage.turn()
        stage.advance(LATE)

    async def end(self) -> None:
        """Let the slow worker answer."""
        self.go.set()
        await self.stage.eventually(lambda: not self.stage.state("w0").in_flight)


@pytest.fixture
def hedged(stage: Stage) -> Hedged:
    return Hedged(stage)


async def test_hedge_wins(stage: Stage, hedged: Hedged) -> None:
    """The client gets one response; the loser's latency is recorded and its connection is reused."""
    await hedged.send(get())
    assert (await hedged.client.response()).body == b"quick"
    counts = stage.cluster.counts
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


async def test_first_attempt_wins(stage: Stage, hedged: Hedged) -> None:
    """The hedge is then not counted as won."""
    late = asyncio.Event()
    await hedged.send(get(), answering_after(late, QUICK))
    await stage.eventually(lambda: hedged.other.requests)
    await hedged.end()
    assert (await hedged.client.response()).body == b"slow"
    assert (stage.cluster.counts.hedged, stage.cluster.counts.hedges_won) == (1, 0)
    late.set()
    await stage.eventually(lambda: stage.outcomes("w1") == {"ok": 1})
    assert hedged.client.received.count(b"HTTP/1.1") == 1


CHUNKS = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nquick\r\n0\r\n\r\n"
HINT = b"HTTP/1.1 103 Early Hints\r\n\r\n"


@pytest.mark.parametrize("answer", [CHUNKS, b"HTTP/1.1 200 OK\r\n\r\nquick"])
async def test_head_of_a_streamed_response_wins(stage: Stage, hedged: Hedged, answer: bytes) -> None:
    """For every framing; a streamed loser ends with its head."""
    await hedged.send(get(), playing(Wire.request, answer), CHUNKS)
    assert (await hedged.client.response()).body == b"quick"
    await hedged.end()
    assert stage.outcomes("w0") == stage.outcomes("w1") == {"ok": 1}
    assert stage.pool("w0").idle == 0


async def test_interim_response_does_not_win(stage: Stage, hedged: Hedged) -> None:
    """It is passed on, and the final response may come from the other worker."""
    late = asyncio.Event()
    await hedged.send(get(), playing(Wire.request, HINT, late, QUICK))
    assert (await hedged.client.response()).status == 103
    await hedged.end()
    assert (await hedged.client.response()).body == b"slow"
    assert (stage.cluster.counts.hedged, stage.cluster.counts.hedges_won) == (1, 0)
    late.set()
    await stage.eventually(lambda: stage.outcomes("w1") == {"ok": 1})


@pytest.mark.parametrize(
    "answer", [b"HTTP/1.1 101 S\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n", b"SSH-2.0\r\n"]
)
async def test_malformed_response_does_not_win(stage: Stage, hedged: Hedged, answer: bytes) -> None:
    """Nor does a 101, since no hedged request offers an upgrade."""
    await hedged.send(get(), playing(Wire.request, answer))
    await stage.eventually(lambda: stage.outcomes("w1") == {"reset": 1})
    await hedged.end()
    assert (await hedged.client.response()).body == b"slow"


async def test_both_attempts_fail(stage: Stage, hedged: Hedged) -> None:
    """A third endpoint is tried, and neither of the two again."""
    go = asyncio.Event()
    bad = [await stage.worker(playing(Wire.request, go, Wire.reset)), await stage.worker(reset_after_request)]
    await stage.serve(*bad, await stage.worker(QUICK), hedging={"enabled": True}, retries=2)
    client = await stage.sending(get())
    await stage.eventually(lambda: bad[0].requests)
    stage.advance(LATE)
    await stage.eventually(lambda: stage.cluster.counts.hedged)
    await stage.turn()
    go.set()
    assert (await client.response()).body == b"quick"
    assert len(bad[0].requests) == 1
    assert len(bad[1].requests) <= 1


async def test_timeout_of_the_loser(stage: Stage, hedged: Hedged) -> None:
    """It stays in flight until the timeout, then its connection is closed."""
    await hedged.send(get())
    assert (await hedged.client.response()).body == b"quick"
    stage.advance(20.0)
    assert stage.state("w0").in_flight == 1
    stage.advance(5.0)
    assert (stage.state("w0").in_flight, stage.outcomes("w0")) == (0, {"timeout": 1})
    assert stage.cluster.hedges is not None
    assert not stage.cluster.hedges.losers


async def test_failure_of_the_loser(stage: Stage, hedged: Hedged) -> None:
    await hedged.send(get(), answer=b"SSH-2.0-OpenSSH_9.2\r\n")
    assert (await hedged.client.response()).body == b"quick"
    await hedged.end()
    assert stage.outcomes("w0") == {"reset": 1}


# --- requests that are not hedged


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
async def test_requests_that_are_not_hedged(stage: Stage, hedged: Hedged, request_bytes: bytes) -> None:
    """Not idempotent, too large to repeat, incomplete, or an upgrade."""
    await hedged.send(request_bytes, retry={"idempotency_key": True})
    for _ in range(4):
        stage.advance(LATE)
    await stage.turn()
    assert (stage.cluster.counts.hedged, hedged.other.requests) == (0, [])
    hedged.client.reset()
    await stage.eventually(lambda: not stage.downstreams)


@contextmanager
def hedging(*rules: tuple[str, float], endpoints: int = 2, **options: Any) -> Iterator[Wireless]:
    """A balancer that hedges by these rules; at the end nothing is in flight or left behind."""
    with Wireless(endpoints, hedging=(("enabled", True), *rules), **options) as stage:
        yield stage
        stage.leave()
        stage.advance(90.0)
        assert [state.in_flight for state in stage.cluster.router.states] == [0] * endpoints
        assert stage.left_behind() == []


@pytest.mark.parametrize(("kept", "hedges"), [(4, 1), (3, 0)])
def test_body_that_is_not_kept_is_not_hedged_before_it_is_sent(kept: int, hedges: int) -> None:
    """The first attempt has no connection yet: it would send the head alone after the hedge has used the body."""
    with hedging(retry=(("body", kept),)) as stage:
        stage.dialling = "hang"
        client = stage.client()
        client.send(post(b"body", method=b"PUT"))
        stage.turn()
        stage.dialling = "accept"
        stage.loop.advance(LATE)
        assert (stage.cluster.counts.hedged, len(stage.workers)) == (hedges, hedges)


@pytest.mark.parametrize("method", [b"GET", b"HEAD", b"OPTIONS", b"PUT", b"DELETE"])
async def test_idempotent_requests_are_hedged(stage: Stage, hedged: Hedged, method: bytes) -> None:
    """Idempotent methods, with a buffered body."""
    request = post(b"body", method=method)
    await hedged.send(request, QUICK[: -len(b"quick")] if method == b"HEAD" else QUICK)
    assert (await hedged.client.response(to_head=method == b"HEAD")).status == 200
    assert (stage.cluster.counts.hedges_won, hedged.other.requests[0].body) == (1, b"body")
    await hedged.end()


async def test_late_request_is_not_hedged(stage: Stage, hedged: Hedged) -> None:
    """No endpoint could answer within the time that the client has stated."""
    await hedged.send(get(b"/", b"X-Timeout: 10"), queue={"timeout_header": "X-Timeout"})
    await hedged.end()
    assert (await hedged.client.response()).body == b"slow"
    assert (stage.cluster.counts.hedged, hedged.other.requests) == (0, [])


async def test_hedge_after_an_interim_response(stage: Stage, hedged: Hedged) -> None:
    """A worker that sends hints and then hangs is as late as one that sends nothing."""
    worker = await stage.worker(playing(Wire.request, HINT, hedged.go, HINT, SLOW))
    await stage.serve(worker, await stage.worker(QUICK), hedging={"enabled": True})
    client = await stage.client()
    assert (await client.ask(get())).status == 103
    stage.advance(LATE)
    assert (await client.response()).body == b"quick"
    hedged.go.set()
    await stage.eventually(lambda: not stage.state("w0").in_flight)
    assert (stage.cluster.counts.hedges_won, stage.outcomes("w0")) == (1, {"ok": 1})
    assert client.received.count(b"103") == 1


async def test_single_endpoint_is_not_hedged(stage: Stage) -> None:
    go = asyncio.Event()
    worker = await stage.serve_worker(answering_after(go, SLOW), hedging={"enabled": True})
    client = await stage.asking(worker, get())
    stage.advance(LATE)
    assert stage.cluster.counts.hedged == 0
    go.set()
    assert (await client.response()).body == b"slow"


async def test_budget(stage: Stage, hedged: Hedged) -> None:
    """One hedge is available at the start; the next needs twenty requests."""
    await hedged.send(get())
    assert (await hedged.client.response()).body == b"quick"
    second = await stage.client()
    stage.cluster.router.set_enabled("w1", False)
    await second.send(get())
    await stage.eventually(lambda: stage.state("w0").in_flight == 2)
    stage.cluster.router.set_enabled("w1", True)
    stage.advance(5.0)
    assert stage.cluster.hedges is not None
    assert (stage.cluster.counts.hedged, stage.cluster.hedges.hedging.denied) == (1, 1)
    hedged.go.set()
    assert (await second.response()).body == b"slow"


async def test_status_and_metrics(stage: Stage, hedged: Hedged) -> None:
    await hedged.send(get())
    assert (await hedged.client.response()).body == b"quick"
    report = proxy_status(stage.control_plane)["hedging"]
    late_after = report.pop("late_after")
    assert late_after == {"r": pytest.approx(1.1, rel=0.01)}
    assert report == {"hedged": 1, "won": 1, "denied": 0, "withheld": 0, "losers": 1}
    text = metrics_text(stage.control_plane)[0].decode()
    for line in (
        "steelyard_hedges_total 1.0",
        "steelyard_hedges_won_total 1.0",
        'steelyard_hedges_withheld_total{reason="budget"} 0.0',
        "steelyard_retries_denied_total 0.0",
    ):
        assert f"{line}\n" in text
    await hedged.end()


# --- timing and memory


def answers(latency: Callable[[], float], stage: Wireless) -> Callable[[Peer], None]:
    """Answer each request after `latency()` seconds."""
    seen: dict[int, int] = {}

    def script(peer: Peer) -> None:
        begun = peer.received.count(b"\r\n\r\n")
        for _ in range(begun - seen.get(id(peer), 0)):
            stage.loop.call_later(latency(), peer.send, QUICK)
        seen[id(peer)] = begun

    return script


def is_first(peer: Peer) -> bool:
    """Whether it is a connection to the first worker."""
    return peer.address.endswith("10")


def test_delay_of_a_hedge() -> None:
    """Within a tick after the request is late; nothing is left at the end."""
    with hedging(("minimum", 0.05)) as stage:
        hedges = stage.cluster.hedges
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
        assert stage.cluster.counts.hedged == 1


def test_requests_at_a_silent_endpoint_are_hedged_before_they_are_late() -> None:
    """Both workers answer in 20 ms; then one stops, and the other answers on. Late requests wait a second."""
    with hedging(("minimum", 1.0), ("share", 0.5)) as stage:
        stage.worker_script = answers(lambda: 0.02, stage)
        clients = [stage.client() for _ in range(4)]
        for _ in range(20):
            for client in clients:
                client.send(get())
            stage.loop.advance(0.05)
        for peer in filter(is_first, stage.workers):
            peer.on_received = None
        for client in clients:
            client.send(get())
        stage.loop.advance(0.06)
        assert stage.cluster.counts.hedged == 0
        stage.loop.advance(0.05)
        assert stage.cluster.counts.hedged == 2
        stage.loop.advance(0.03)
        assert stage.cluster.counts.hedges_won == 2
        assert [client.received.count(b"quick") for client in clients] == [21] * 4


def test_trial_of_a_failed_endpoint_is_hedged_at_once() -> None:
    """It breaks connections, then hangs; a second later it gets a trial, whose client has the other's answer."""
    with hedging(("minimum", 1.0), ("share", 0.5), policy="steelyard") as stage:
        stage.worker_script = answers(lambda: 0.02, stage)
        client = stage.client()
        for _ in range(6):
            client.send(get())
            stage.loop.advance(0.05)
        for peer in filter(is_first, stage.workers):
            peer.on_received = Peer.vanish
        answer = stage.worker_script
        stage.worker_script = lambda peer: None if is_first(peer) else answer(peer)
        for number in range(7, 40):
            client.send(get())
            stage.loop.advance(0.05)
            assert client.received.count(b"quick") == number
            assert stage.cluster.counts.hedged == (number > 28)
        assert stage.cluster.router.doubts(stage.cluster.router.states[0])


def test_request_is_hedged_once() -> None:
    """The first worker hangs and the hedge's breaks; the first attempt is still late, and is not hedged again."""
    with hedging(("share", 0.5), endpoints=3, retries=0) as stage:
        stage.worker_script = answers(lambda: 0.02, stage)
        client = stage.client()
        for _ in range(60):
            client.send(get())
            stage.loop.advance(0.05)
        before = stage.cluster.counts.hedged
        fates: list[Callable[[Peer], None]] = [lambda peer: None, Peer.vanish]

        def next_fate(peer: Peer) -> None:
            (fates.pop(0) if fates else answers(lambda: 0.02, stage))(peer)

        stage.worker_script = next_fate
        for peer in stage.workers:
            peer.on_received = next_fate
        client.send(get())
        stage.loop.advance(1.0)
        assert not fates
        assert stage.cluster.counts.hedged == before + 1


def test_hedged_request_leaves_no_cycle() -> None:
    """All objects are freed by reference counting."""
    with without_collections(), Wireless(2, hedging=(("enabled", True),)) as stage:
        stage.worker_script = answers(iter((3.0, 0.1)).__next__, stage)
        client = stage.client()
        client.send(get())
        stage.loop.advance(1.5)
        assert stage.cluster.counts.hedges_won == 1
        stage.loop.advance(3.0)
        kinds = Exchange, HedgeRace, Attempt
        assert not [found for found in gc.get_objects() if isinstance(found, kinds)]


def test_timer_wheel_keeps_no_answered_request() -> None:
    """A bucket holds latencies, not requests or connections."""
    with hedging(endpoints=1) as stage:
        stage.worker_script = answers(lambda: 0.001, stage)
        client = stage.client()
        for _ in range(50):
            client.send(get())
            stage.loop.advance(0.002)


class OnlyFirstAttempts:
    """Rejects further attempts; `rejected` counts them."""

    rejected = 0

    def pick(self, facts: RequestFacts, available: Available, now: float) -> EndpointState:
        if facts.attempt:
            self.rejected += 1
            raise Overloaded()
        return available[0]


async def test_hedge_that_the_policy_rejects_is_not_sent(stage: Stage) -> None:
    go = asyncio.Event()
    slow, other = await stage.worker(answering_after(go, SLOW)), await stage.worker(QUICK)
    await stage.serve(slow, other, hedging={"enabled": True})
    policy = OnlyFirstAttempts()
    stage.cluster.router.set_policy(policy)
    client = await stage.client()
    client.write(get())
    await stage.eventually(lambda: slow.received)
    stage.advance(LATE)
    await stage.eventually(lambda: policy.rejected)
    go.set()
    assert (await client.response()).body == b"slow"
    assert (stage.cluster.counts.hedged, other.received) == (0, b"")
