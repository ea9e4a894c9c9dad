"""Access log of a running server: one entry for every outcome, and the log never delays or fails a request."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from balancer.config.schema.log import LogConfig
from balancer.log.access_log import AccessLog
from tests.support.admin_requests import status
from tests.support.frames import PREFACE, SETTINGS, frame, head
from tests.support.http2_client import fields as of_request
from tests.support.log_entries import LogRecord, written
from tests.support.stage import Stage
from tests.support.wire import Wire, answering_after, get, playing, post, post_chunked, response


class WatchedLog:
    """A stage whose server logs JSON to a file."""

    def __init__(self, stage: Stage, path: Path) -> None:
        self.stage = stage
        self.path = path

    async def serve(self, *workers: Any, log: dict[str, Any] | None = None, **settings: Any) -> None:
        settings["log"] = {"access": "json", "path": str(self.path), **(log or {})}
        await self.stage.serve(*workers, **settings)

    async def lines(self, count: int) -> list[LogRecord]:
        """Wait for `count` entries; there must be no others."""
        await self.stage.eventually(lambda: self.path.read_bytes().count(b"\n") >= count)
        lines = [json.loads(line) for line in self.path.read_text(encoding="ascii").splitlines()]
        assert len(lines) == count, lines
        return lines

    async def line(self) -> LogRecord:
        """The single entry."""
        (line,) = await self.lines(1)
        return line


@pytest.fixture
def watched(stage: Stage, tmp_path: Path) -> WatchedLog:
    return WatchedLog(stage, tmp_path / "access.log")


def stalls(data: bytes = b"") -> Callable[[Wire], Any]:
    """Send `data`, then nothing until the balancer closes the connection."""
    return playing(Wire.request, data, Wire.closed)


# --- successful exchanges


async def test_entries_of_a_new_and_a_reused_connection(stage: Stage, watched: WatchedLog) -> None:
    """The first request opens a connection, the second reuses it; both entries name endpoint, policy and sizes."""
    await watched.serve(await stage.worker(response(b"hello")), policy="least-in-flight")
    client = await stage.client()
    await client.ask(get(b"/a?b=c"))
    await client.ask(post(b"1234"))
    first, second = await watched.lines(2)
    assert (first["end"], first["status"], first["bytes"], first["bytes_in"]) == ("ok", 200, 5, 0)
    assert (first["method"], first["path"], first["host"]) == ("GET", "/a?b=c", "example.org")
    assert (first["endpoint"], first["region"], first["attempts"]) == ("w0", "r", 1)
    assert (first["client"], first["forwarded_for"]) == ("127.0.0.1", "127.0.0.1")
    assert (first["policy"], first["version"], first["protocol"]) == ("least-in-flight", "1.1", "http")
    assert first["request_id"] != second["request_id"]
    assert [line["connection"] for line in (first, second)] == ["new", "reused"]
    assert (second["method"], second["bytes_in"]) == ("POST", 4)


@pytest.mark.parametrize("sent", [get(), PREFACE + frame(SETTINGS) + head(1, *of_request())])
async def test_client_that_resets_before_it_is_accepted(
    stage: Stage, watched: WatchedLog, sent: bytes
) -> None:
    """Its socket has no address any more; that of the accept is logged."""
    await watched.serve(await stage.worker(stalls()))
    sock = socket.create_connection(("127.0.0.1", stage.running.listening.traffic[""].sock.getsockname()[1]))
    sock.sendall(sent)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()
    line = await watched.line()
    assert (line["client"], line["reason"]) == ("127.0.0.1", "client_left")


async def test_path_alone_turns_the_log_on(stage: Stage, watched: WatchedLog) -> None:
    """As text; with `access = "off"` beside it nothing is written."""
    await stage.serve(await stage.worker(response()), log={"path": str(watched.path)})
    await stage.ask(get(b"/logged"))
    await stage.eventually(lambda: watched.path.exists() and b'path="/logged" ' in watched.path.read_bytes())
    assert LogConfig.model_validate({"path": "a", "access": "off"}).access == "off"


async def test_durations_of_each_phase(stage: Stage, watched: WatchedLog) -> None:
    """3 s until the head is complete, 5 s until the first byte, 2 s more until the last."""
    go = asyncio.Event()
    worker = await stage.worker(playing(Wire.request, go, response(b"0123456789")[:-4], go, b"6789"))
    await watched.serve(worker, retries=0)  # else the head would wait for the rest
    client = await stage.sending(get()[:10])
    await stage.eventually(lambda: any(stage.heads_begun()))
    stage.clock.at += 3
    await client.send(get()[10:])
    await stage.eventually(lambda: worker.requests)
    stage.clock.at += 5
    go.set()
    go.clear()
    await client.until(b"012345")
    stage.clock.at += 2
    go.set()
    await client.until(b"6789")
    line = await watched.line()
    phases = {name: line[name] for name in ("head", "queue", "connect", "first_byte", "service", "total")}
    assert phases == {"head": 3, "queue": 0, "connect": 0, "first_byte": 5, "service": 7, "total": 10}


async def test_queue_time_of_a_full_endpoint(stage: Stage, watched: WatchedLog) -> None:
    """The second request queues for 4 s for the only slot and is then served on the same connection."""
    go = asyncio.Event()
    worker = await stage.worker(answering_after(go))
    await watched.serve(worker, max_in_flight=1)
    one, other = await stage.client(), await stage.client()
    await one.send(get(b"/one"))
    await stage.eventually(lambda: worker.requests)
    await other.send(get(b"/other"))
    await stage.eventually(lambda: len(stage.cluster.queue) == 1)
    stage.clock.at += 4
    go.set()
    await one.response()
    await other.response()
    first, second = await watched.lines(2)
    assert (first["path"], first["queue"], first["service"]) == ("/one", 0, 4)
    assert (second["path"], second["queue"], second["service"]) == ("/other", 4, 0)
    assert second["connection"] == "reused"


async def test_entry_names_the_policy_that_picked(stage: Stage, watched: WatchedLog) -> None:
    """The policy changes during a request and before another one: each entry names the one that picked."""
    from balancer.config.schema.policy_spec import PolicySpec

    go = asyncio.Event()
    worker = await stage.worker(answering_after(go))
    await watched.serve(worker, policy="random")
    client = await stage.asking(worker, get())
    stage.clock.at += 1
    stage.control_plane.apply_policy(PolicySpec(name="round-robin"))
    go.set()
    await client.response()
    await stage.ask(get())
    assert [line["policy"] for line in await watched.lines(2)] == ["random", "round-robin"]


async def test_timestamps_are_wall_time(stage: Stage, watched: WatchedLog) -> None:
    """Clock times are converted to wall time by one fixed offset."""
    await watched.serve(await stage.worker(response()))
    await stage.ask(get())
    stage.jump(3600)
    await stage.ask(get())
    first, second = (line["time"] for line in await watched.lines(2))
    hours = [int(time[11:13]) for time in (first, second)]
    assert (hours[1] - hours[0]) % 24 == 1
    assert first[14:] == second[14:]


# --- failures


async def test_connection_refused(stage: Stage, watched: WatchedLog) -> None:
    """Two attempts, no connection; `bytes` counts the balancer's own response."""
    await watched.serve(stage.dead_port(), stage.dead_port())
    answer = await stage.ask(get())
    line = await watched.line()
    assert (line["end"], line["reason"], line["status"]) == ("refused", "connect_failed", 502)
    assert (line["attempts"], line["connection"], line["service"]) == (2, None, None)
    assert line["bytes"] == len(answer.body)
    assert line["endpoint"] in ("w0", "w1")


async def test_tunnel(stage: Stage, watched: WatchedLog) -> None:
    """One entry at the end, with the bytes of each direction without the heads."""

    async def talks(wire: Wire) -> None:
        await wire.head()
        await wire.send(b"HTTP/1.1 101 Switching\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n")
        assert await wire.exactly(4) == b"ping"
        await wire.send(b"a pong")

    await watched.serve(await stage.worker(talks))
    client = await stage.sending(get(b"/chat", b"Connection: upgrade", b"Upgrade: x"))
    assert (await client.head()).status == 101
    await client.send(b"ping")
    assert await client.rest() == b"a pong"
    await client.close()
    line = await watched.line()
    assert (line["end"], line["status"], line["path"], line["endpoint"]) == ("tunnel", 101, "/chat", "w0")
    assert (line["bytes_in"], line["bytes"]) == (4, 6)


async def test_shed_and_expired_requests(stage: Stage, watched: WatchedLog) -> None:
    """Neither was queued nor routed."""
    worker = await stage.worker(stalls())
    levels = [{"name": "high"}, {"name": "low", "in_flight": 0.5}]
    shedding = {"header": "X-Priority", "trust": "all", "default": "low", "levels": levels}
    await watched.serve(worker, max_in_flight=2, queue={"timeout_header": "X-Timeout-Ms"}, admission=shedding)
    first, second = await stage.client(), await stage.client()
    await first.send(get())
    await stage.eventually(lambda: worker.requests)
    for fields in ([], [b"X-Timeout-Ms: 0"]):
        assert (await second.ask(get(b"/", *fields))).status == 503
    for line, reason in zip(await watched.lines(2), ("shed", "deadline_passed"), strict=True):
        outcome = (
            line["end"],
            line["status"],
            line["reason"],
            line["endpoint"],
            line["attempts"],
            line["queue"],
        )
        assert outcome == ("unavailable", 503, reason, None, 0, 0)
    first.reset()


async def test_client_disconnects_while_its_retry_is_queued(stage: Stage, watched: WatchedLog) -> None:
    """A queued request gets the slot while the first one fails: one attempt, and no endpoint in the entry."""
    go = asyncio.Event()

    async def script(wire: Wire) -> None:
        request = await wire.request()
        await go.wait()
        if b"/waits" in request.line:
            await wire.closed()
        wire.reset()

    worker = await stage.worker(script)
    await watched.serve(worker, max_in_flight=1)
    fails, waits = await stage.client(), await stage.client()
    await fails.send(get(b"/fails"))
    await stage.eventually(lambda: worker.requests)
    await waits.send(get(b"/waits"))
    await stage.eventually(lambda: len(stage.cluster.queue) == 1)
    go.set()
    await stage.eventually(lambda: len(worker.requests) == 2)
    assert len(stage.cluster.queue) == 1
    fails.reset()
    line = await watched.line()
    assert (line["path"], line["end"]) == ("/fails", "abandoned")
    assert (line["attempts"], line["endpoint"], line["connect"]) == (1, None, None)
    waits.reset()


@pytest.mark.parametrize(
    ("data", "status", "reason", "method", "path"),
    [
        (b"GET /x HTTP/1.1\r\n\r\n", 400, "bad_host", "GET", "/x"),
        (b"GET /x HTTP/1.1\r\nHost : a\r\n\r\n", 400, "malformed_request", "GET", "/x"),
        (b"\x16\x03\x01\x02\x00\r\n\r\n", 400, "malformed_request", None, "\x16\x03\x01\x02\x00"),
        (
            b"GET /x HTTP/1.1\r\nHost: a\r\nA: " + b"a" * 2000 + b"\r\n\r\n",
            431,
            "head_too_large",
            "GET",
            "/x",
        ),
        (b"TRACE /x HTTP/1.1\r\nHost: a\r\n\r\n", 405, "method_not_allowed", "TRACE", "/x"),
    ],
)
async def test_rejected_request(
    stage: Stage, watched: WatchedLog, data: bytes, status: int, reason: str, method: str | None, path: str
) -> None:
    """Rejected before it reaches a worker; method and path are logged if they can be parsed."""
    await watched.serve(await stage.worker(response()), limits={"head": 1024})
    answer = await stage.ask(data)
    line = await watched.line()
    assert (line["end"], line["status"], line["reason"]) == ("rejected", status, reason)
    assert (line["method"], line["path"], line["endpoint"]) == (method, path, None)
    assert (line["attempts"], line["bytes"]) == (0, len(answer.body))


# --- admin requests


CONTROL = b"GET /-/%b HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"


async def test_bytes_of_a_probe_on_the_traffic_port(stage: Stage, watched: WatchedLog) -> None:
    """Those of the body, of which HEAD gets none."""
    await watched.serve(await stage.worker(response()))
    sizes = []
    for method in (b"GET", b"HEAD"):
        client = await stage.client()
        ready = b"%b /-/ready HTTP/1.1\r\nHost: a\r\n\r\n" % method
        sizes.append(len((await client.ask(ready, to_head=method == b"HEAD")).body))
    assert sizes[0] > 0
    assert [line["bytes"] for line in await watched.lines(2)] == sizes


@pytest.mark.parametrize("request_data", [post(b"x" * 11), post_chunked(b"x" * 11)], ids=["length", "chunks"])
async def test_body_that_is_too_long_for_an_admin_request(
    stage: Stage, watched: WatchedLog, request_data: bytes
) -> None:
    await watched.serve(await stage.worker(response()), limits={"body": 10})
    answer = await (await stage.client()).ask(request_data.replace(b" / ", b" /-/policy "))
    line = await watched.line()
    assert (line["end"], line["status"], line["reason"]) == ("rejected", 413, "body_too_large")
    assert (line["method"], line["path"], line["bytes"]) == ("POST", "/-/policy", len(answer.body))


async def test_admin_requests_can_be_excluded(stage: Stage, watched: WatchedLog) -> None:
    """`log.admin = false`."""
    await watched.serve(await stage.worker(response()), log={"admin": False})
    await stage.ask(CONTROL % b"health")
    await stage.ask(get(b"/seen"))
    assert (await watched.line())["path"] == "/seen"


async def test_status_and_metrics_count_entries(stage: Stage, watched: WatchedLog) -> None:
    """Written, dropped (queue full) and lost (write failed)."""
    await watched.serve(await stage.worker(response()), log={"admin": False})
    await stage.ask(get())
    log = stage.cluster.process.access_log
    assert log is not None
    await stage.eventually(lambda: log.counts.written)  # the thread counts after it has written
    assert (await status(stage))["access_log"] == {"waiting": 0, "written": 1, "dropped": 0, "lost": 0}
    metrics = (await stage.ask(CONTROL % b"metrics")).body
    assert b'steelyard_log_entries_total{result="written"} 1.0' in metrics
    assert b'steelyard_log_entries_total{result="dropped"} 0.0' in metrics


# --- sampling, rotation, shutdown, errors


async def test_stopped_server_has_written_everything(stage: Stage, watched: WatchedLog) -> None:
    """Including the entry of the request that the stop aborts."""
    left = asyncio.Event()

    async def script(wire: Wire) -> None:
        await wire.request()
        await wire.closed()
        left.set()

    worker = await stage.worker(script)
    await watched.serve(worker, timeouts={"shutdown": 0.01})
    await stage.asking(worker, get())
    assert not await stage.running.stop()
    stage.server = None
    assert [line["reason"] for line in written(watched.path)] == ["shutting_down"]
    await left.wait()
    await stage.turn()


async def test_reopen_after_rotation(stage: Stage, watched: WatchedLog) -> None:
    """Reopen after rename, as logrotate does."""
    await watched.serve(await stage.worker(response()))
    await stage.ask(get(b"/old"))
    await watched.lines(1)
    old = watched.path.rename(watched.path.with_suffix(".1"))
    assert stage.cluster.process.access_log is not None
    stage.cluster.process.access_log.reopen()
    await stage.eventually(watched.path.exists)
    await stage.ask(get(b"/new"))
    assert (await watched.line())["path"] == "/new"
    assert [line["path"] for line in written(old)] == ["/old"]


def lost_more_than(log: AccessLog, number: int) -> bool:
    return log.counts.lost > number


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
async def test_full_disk_fails_no_request(stage: Stage, capsys: pytest.CaptureFixture[str]) -> None:
    """Requests are served, entries are counted as lost, one message."""
    await stage.serve(await stage.worker(response()), log={"access": "json", "path": "/dev/full"})
    log = stage.cluster.process.access_log
    assert log is not None
    for _ in range(3):
        lost = log.counts.lost
        assert (await stage.ask(get())).status == 200
        await stage.eventually(partial(lost_more_than, log, lost))
    assert log.counts.written == 0
    stderr = capsys.readouterr().err
    assert stderr.count("\n") == 1
    assert "/dev/full: No space left on device" in stderr
