"""gRPC with a real client and real servers, those of `grpcio`, in clear text and over TLS."""

from __future__ import annotations

import asyncio
import gc
import struct
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from balancer.http.h1.client import OWN_NAME
from policies.facts import ReportedLoad
from tests.support.certificates import Shelf
from tests.support.grpc_peers import Context, GrpcWorker, channel_to, endpoints
from tests.support.log_entries import RecordingLog
from tests.support.stage import Stage

pytestmark = [pytest.mark.second_tier]

MIB = 1 << 20
PATIENCE = 20.0
UNARY, ECHO = (f"/steelyard.Test/{name}" for name in ("Unary", "Echo"))


class Peers:
    """Servers behind the stage's balancer, and a channel to it."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.workers: list[GrpcWorker] = []
        self.channels: list[grpc.aio.Channel] = []

    async def serve(self, number: int = 1, **settings: Any) -> grpc.aio.Channel:
        for i in range(number):
            worker = GrpcWorker(f"w{i}")
            await worker.start()
            self.workers.append(worker)
        await self.stage.serve(**{"endpoints": endpoints(self.workers), **settings})
        return self.channel()

    def channel(self, credentials: grpc.ChannelCredentials | None = None) -> grpc.aio.Channel:
        assert self.stage.server is not None
        channel = channel_to(self.stage.server.address.port, credentials)
        self.channels.append(channel)
        return channel

    async def close(self) -> None:
        for channel in self.channels:
            await channel.close()
        for worker in self.workers:
            await worker.stop()
        self.channels.clear()
        gc.collect()  # a call of a finished test keeps its channel's connection open


@pytest.fixture
async def peers(stage: Stage) -> AsyncIterator[Peers]:
    peers = Peers(stage)
    yield peers
    await peers.close()


async def code_and_details(call: Any) -> tuple[str, str]:
    async with asyncio.timeout(PATIENCE):
        return (await call.code()).name, await call.details()


async def test_unary_with_metadata_both_ways(peers: Peers) -> None:
    channel = await peers.serve()
    (worker,) = peers.workers

    async def answer(message: bytes, context: Context) -> bytes:
        await context.send_initial_metadata((("x-head", "1"), ("x-head-bin", b"\0\xff")))
        context.set_trailing_metadata((("x-trailer", "2"), ("x-trailer-bin", b"\xfe")))
        return message[::-1]

    worker.answers["Unary"] = answer
    call = channel.unary_unary(UNARY)(
        b"abc", metadata=(("x-own", "3"), ("x-own-bin", b"\1\2")), timeout=PATIENCE
    )
    assert await call == b"cba"
    assert dict(await call.initial_metadata())["x-head-bin"] == b"\0\xff"
    assert dict(await call.trailing_metadata()) == {"x-trailer": "2", "x-trailer-bin": b"\xfe"}
    ((_, metadata),) = worker.called
    assert (metadata["x-own"], metadata["x-own-bin"]) == ("3", b"\1\2")
    assert metadata["via"] == f"2 {OWN_NAME.decode()}"
    assert peers.stage.outcomes() == {"ok": 1}


async def test_streaming_in_both_directions_is_interleaved(peers: Peers) -> None:
    """Each message is answered before the next one is written, and after the half-close one more comes."""
    channel = await peers.serve()
    call = channel.stream_stream(ECHO)(timeout=PATIENCE)
    assert dict(await call.initial_metadata())["x-initial"] == "w0"  # before the first message
    for number in range(50):
        await call.write(b"%d" % number)
        assert await call.read() == b"%d" % number
    await call.done_writing()
    assert await call.read() == b"half-closed"
    assert await call.read() == grpc.aio.EOF
    assert await code_and_details(call) == ("OK", "")


@pytest.mark.parametrize(
    "name", ["INVALID_ARGUMENT", "NOT_FOUND", "UNAVAILABLE", "DATA_LOSS", "RESOURCE_EXHAUSTED"]
)
async def test_errors_with_details(peers: Peers, name: str) -> None:
    channel = await peers.serve()

    async def abort(message: bytes, context: Context) -> bytes:
        await context.abort(grpc.StatusCode[name], "100 % wrong: ü\n", (("x-more-bin", b"\0"),))
        raise AssertionError

    peers.workers[0].answers["Unary"] = abort
    call = channel.unary_unary(UNARY)(b"", timeout=PATIENCE)
    assert await code_and_details(call) == (name, "100 % wrong: ü\n")
    trailers = dict(await call.trailing_metadata())
    assert trailers.pop("date").endswith(" GMT")  # a response without a body has one head, which gets a Date
    assert trailers == {"x-more-bin": b"\0"}


async def test_deadline_of_the_client(peers: Peers) -> None:
    """The worker learns it, and is cancelled; the endpoint is not charged."""
    channel = await peers.serve()
    left: list[float] = []
    cancelled = asyncio.Event()

    async def wait(message: bytes, context: Context) -> bytes:
        left.append(context.time_remaining())
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise
        raise AssertionError

    peers.workers[0].answers["Unary"] = wait
    call = channel.unary_unary(UNARY)(b"", timeout=0.5)
    assert (await code_and_details(call))[0] == "DEADLINE_EXCEEDED"
    assert 0 < left[0] <= 0.5
    async with asyncio.timeout(PATIENCE):
        await cancelled.wait()
    await peers.stage.eventually(peers.stage.outcomes)
    assert set(peers.stage.outcomes()) <= {"abandoned", "timeout"}


async def test_large_messages(peers: Peers) -> None:
    """Beyond all windows, in both directions, on ten streams at once."""
    channel = await peers.serve()
    bodies = [bytes([number]) * (4 * MIB) for number in range(10)]
    unary = channel.unary_unary(UNARY)
    async with asyncio.timeout(50):
        answers = await asyncio.gather(*(unary(body) for body in bodies))
    assert answers == bodies


async def test_streams_of_one_channel_are_spread(peers: Peers) -> None:
    """100 RPCs at once on one connection: the policy distributes each."""
    channel = await peers.serve(2)
    calls = [channel.stream_stream(ECHO)(timeout=PATIENCE) for _ in range(100)]
    initial = await asyncio.gather(*(call.initial_metadata() for call in calls))
    assert Counter(dict(metadata)["x-initial"] for metadata in initial) == {"w0": 50, "w1": 50}
    assert len(peers.stage.downstreams) == 1
    for call in calls:
        await call.done_writing()
        assert await call.read() == b"half-closed"
        assert (await call.code()).name == "OK"


async def test_no_unary_rpc_fails_while_servers_restart(peers: Peers) -> None:
    """A server that stops sends GOAWAY and finishes its RPCs; what it has not processed goes to the other one.

    The asyncio server of grpcio ends RPCs that it has received but not begun with CANCELLED.
    """
    channel = await peers.serve(2, retry={"grpc_statuses": ["UNAVAILABLE", "CANCELLED"]})
    unary = channel.unary_unary(UNARY)
    answered = Counter[str]()
    is_over = False

    async def ask() -> None:
        while not is_over:
            call = unary(b"x", timeout=PATIENCE)
            await call
            answered[str(dict(await call.trailing_metadata())["x-worker"])] += 1

    asking = [asyncio.ensure_future(ask()) for _ in range(8)]
    for number in (0, 1, 0, 1):
        worker = peers.workers[number]
        before = answered[worker.name]
        await worker.stop(grace=5.0)
        port = worker.port
        await peers.stage.turn(200)
        await worker.start(port)
        assert worker.port == port
        async with asyncio.timeout(PATIENCE):
            while answered[worker.name] <= before + 10:
                peers.stage.advance(0.25)
                await asyncio.sleep(0.01)
    is_over = True
    await asyncio.gather(*asking)  # raises if one has failed


async def test_load_report_in_trailers(peers: Peers) -> None:
    """As the ORCA service of gRPC sends it: the message, in metadata that gRPC encodes."""
    channel = await peers.serve(policy="reported-load")
    peers.stage.cluster.journal = log = RecordingLog()

    async def answer(message: bytes, context: Any) -> bytes:
        half = b"\x49" + struct.pack("<d", 0.5)  # application_utilization
        context.set_trailing_metadata((("endpoint-load-metrics-bin", half),))
        return message

    peers.workers[0].answers["Unary"] = answer
    await channel.unary_unary(UNARY)(b"x", timeout=PATIENCE)
    assert [entry.load for entry in log.entries] == [ReportedLoad(None, None, 0.5)]


async def test_health_check(peers: Peers) -> None:
    """NOT_SERVING: no traffic; SERVING again: traffic."""
    checks = {"grpc": "", "interval": 1, "fast_interval": 1, "rise": 1, "fall": 1}
    channel = await peers.serve(2, health_checks=checks)
    stage, (first, second) = peers.stage, peers.workers

    async def until_healthy(is_healthy: bool) -> None:
        async with asyncio.timeout(PATIENCE):
            while stage.state("w0").passes_checks is not is_healthy or not stage.state("w1").passes_checks:
                stage.advance(0.5)
                await asyncio.sleep(0.02)

    async def workers_of(number: int) -> set[str]:
        calls = [channel.unary_unary(UNARY)(b"", timeout=PATIENCE) for _ in range(number)]
        return {str(dict(await call.trailing_metadata())["x-worker"]) for call in calls}

    for worker in (first, second):
        await worker.set_health(is_serving=True)
    await until_healthy(True)
    assert await workers_of(10) == {"w0", "w1"}
    await first.set_health(is_serving=False)
    await until_healthy(False)
    assert stage.control_plane.checks.by_id["w0"].state.last_fault == "NOT_SERVING"
    assert await workers_of(10) == {"w1"}
    await first.set_health(is_serving=True)
    await until_healthy(True)
    assert await workers_of(10) == {"w0", "w1"}


def server_credentials(pair: dict[str, str]) -> grpc.ServerCredentials:
    key, certificate = (Path(pair[name]).read_bytes() for name in ("key", "certificate"))
    return grpc.ssl_server_credentials([(key, certificate)])


async def test_over_tls(peers: Peers, tmp_path: Path) -> None:
    """ALPN chooses h2 on both sides."""
    shelf = Shelf(tmp_path)
    pair, of_worker = shelf.pair("localhost"), shelf.pair("localhost")
    worker = GrpcWorker("tls")
    await worker.start(credentials=server_credentials(of_worker))
    peers.workers.append(worker)
    await peers.stage.serve(
        endpoints=endpoints([worker], "https"),
        tls={"certificates": [pair]},
        upstream_tls={"ca": str(shelf.ca)},
    )
    channel = peers.channel(grpc.ssl_channel_credentials(shelf.ca.read_bytes()))
    assert await channel.unary_unary(UNARY)(b"abc", timeout=PATIENCE) == b"abc"
    call = channel.stream_stream(ECHO)(timeout=PATIENCE)
    await call.write(b"a")
    assert await call.read() == b"a"
    await call.done_writing()
    assert await call.read() == b"half-closed"
    assert await code_and_details(call) == ("OK", "")
    assert dict(worker.called[0][1])["x-forwarded-proto"] == "https"
