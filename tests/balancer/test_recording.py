"""What a running unit records: every ending is a row, no secret is written, and no request waits for it."""

from __future__ import annotations

import json
import struct
import threading
import zlib
from pathlib import Path
from random import Random
from typing import Any

import pytest

from balancer.config.record import RecordConfig
from balancer.errors import LogFailed
from balancer.recording.recorder import Recorder, RecordingMetadata
from tests.balancer.conftest import Message, Stage, get, post, response
from tests.balancer.test_log_lines import entry

ROW = struct.Struct("<d5fQIIHHHBB")
NAMES = (
    *("at", "queue", "connect", "first_byte", "service", "reported", "key", "bytes_in", "bytes_out"),
    *("endpoint", "path", "status", "attempts", "end"),
)


def blocks(data: bytes) -> list[tuple[str, Any]]:
    """Kind and content of each, by the documented format alone."""
    found: list[tuple[str, Any]] = []
    while data:
        kind, size = struct.unpack("<cI", data[:5])
        payload, data = zlib.decompress(data[5 : 5 + size]), data[5 + size :]
        if kind == b"R":
            rows = [dict(zip(NAMES, row, strict=True)) for row in ROW.iter_unpack(payload)]
            found.append(("R", rows))
        else:
            found.append((kind.decode(), json.loads(payload)))
    return found


class Taped:
    """A stage whose unit records to a file."""

    def __init__(self, stage: Stage, path: Path) -> None:
        self.stage = stage
        self.path = path

    async def serve(self, *workers: Any, record: dict[str, Any] | None = None, **settings: Any) -> None:
        record = {"enabled": True, "path": str(self.path), **(record or {})}
        await self.stage.serve(*workers, record=record, **settings)

    def blocks(self) -> list[tuple[str, Any]]:
        """All of it, when the recording has ended."""
        self.stage.control_plane.recording.close()
        return blocks(self.path.read_bytes())

    def rows(self) -> list[dict[str, Any]]:
        return [row for kind, rows in self.blocks() if kind == "R" for row in rows]

    async def control(self, method: bytes, body: bytes = b"") -> Message:
        return await self.stage.ask(
            b"%b /-/record HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: %d\r\n\r\n%b"
            % (method, len(body), body)
        )


@pytest.fixture
def taped(stage: Stage, tmp_path: Path) -> Taped:
    return Taped(stage, tmp_path / "unit.recording")


def test_it_is_off_unless_asked_for() -> None:
    assert not RecordConfig().enabled


async def test_off_there_is_nothing_of_it(stage: Stage) -> None:
    await stage.serve(await stage.worker(response()))
    await stage.ask(get())
    assert (stage.proxy.journal, stage.control_plane.recorder, stage.proxy.reads_load) == (None, None, False)
    assert "recorder" not in [thread.name for thread in threading.enumerate()]


async def test_a_request_is_a_row(stage: Stage, taped: Taped) -> None:
    worker = await stage.worker(response(b"hello", b"X-Worker-Service-Time: 0.25"))
    await taped.serve(worker, home_region="r")
    await stage.ask(get(b"/secret?token=1"))
    stage.clock.at += 2
    await stage.ask(post(b"123"))
    (start, about), (_, endpoint), (_, (first, second)), *rest = taped.blocks()
    assert (start, about["steelyard"], about["home_region"]) == ("S", "recording", "r")
    assert about["policy"] == {"name": "round-robin"}
    assert about["endpoints"] == [{"id": "w0", "region": "r", "weight": 1.0}]
    assert (endpoint["id"], endpoint["region"], endpoint["number"]) == ("w0", "r", 0)
    assert (first["at"], second["at"]) == (0, 2)
    assert (first["status"], first["endpoint"], first["attempts"], first["end"]) == (200, 0, 1, 0)
    assert (first["reported"], first["bytes_out"], second["bytes_in"], first["path"]) == (0.25, 5, 3, 0)
    assert first["key"] == second["key"]  # one client
    assert [kind for kind, _ in rest] == ["E", "Z"]
    assert rest[-1][1] == {"written": 2, "dropped": 0}
    assert b"secret" not in b"".join(json.dumps(told).encode() for _, told in taped.blocks())


async def test_who_sends_is_a_hash_with_a_salt_of_its_own(stage: Stage, taped: Taped) -> None:
    """The same user is the same within a recording, and nobody's in the next."""
    await taped.serve(await stage.worker(response()), sticky={"header": "X-User"})
    for user in (b"ann", b"bob", b"ann"):
        await stage.ask(get(b"/", b"X-User: " + user))
    await taped.control(b"DELETE")
    await taped.control(b"POST")
    await stage.ask(get(b"/", b"X-User: ann"))
    ann, bob, again, later = (row["key"] for row in taped.rows())
    assert ann == again != bob
    assert later not in (ann, bob)


async def test_a_salt_that_is_given_joins_recordings(stage: Stage, taped: Taped) -> None:
    await taped.serve(await stage.worker(response()), record={"salt": "sixteen or more characters"})
    await stage.ask(get())
    await taped.control(b"DELETE")
    await taped.control(b"POST")
    await stage.ask(get())
    one, other = taped.rows()
    assert one["key"] == other["key"]


async def test_paths_are_kept_where_they_are_asked_for(stage: Stage, taped: Taped) -> None:
    await taped.serve(await stage.worker(response()), record={"paths": True})
    for target in (b"/a?x=1", b"/b", b"/a?x=2"):
        await stage.ask(get(target))
    named = {told["number"]: told["path"] for kind, told in taped.blocks() if kind == "P"}
    assert [named[row["path"]] for row in taped.rows()] == ["/a", "/b", "/a"]


async def test_what_does_not_end_well_is_a_row_too(stage: Stage, taped: Taped) -> None:
    await taped.serve(stage.dead_port(), retries=0, outlier_detection={"failures": 0})
    assert (await stage.ask(get())).status == 502
    (row,) = taped.rows()
    assert (row["status"], row["end"], row["endpoint"]) == (502, 2, 0)
    assert row["service"] != row["service"]  # nan: it was never sent


async def test_it_begins_and_ends_by_command(stage: Stage, taped: Taped) -> None:
    await taped.serve(await stage.worker(response()), record={"enabled": False})
    assert json.loads((await taped.control(b"GET")).body)["recording"] is False
    began = await taped.control(b"POST", b'{"seconds": 60}')
    assert (began.status, json.loads(began.body)["seconds_left"]) == (201, 60)
    assert (await taped.control(b"POST")).status == 409
    await stage.ask(get())
    stage.advance(60)
    stage.control_plane.recording.tick(stage.clock.at)
    assert stage.proxy.journal is None
    await stage.ask(get())
    assert len(taped.rows()) == 1


async def test_there_must_be_somewhere_to_record_to(stage: Stage, taped: Taped) -> None:
    await taped.serve(await stage.worker(response()), record={"enabled": False, "path": None})
    refused = await taped.control(b"POST")
    assert (refused.status, b"record.path" in refused.body) == (409, True)
    assert (await taped.control(b"POST", b'{"path": "/tmp/x"}')).status == 422


async def test_a_log_and_a_recording_at_the_same_time(stage: Stage, taped: Taped, tmp_path: Path) -> None:
    """The log samples, the recording has all."""
    log = {"access": "json", "path": str(tmp_path / "log"), "sample": 0}
    await taped.serve(await stage.worker(response()), log=log)
    await stage.ask(get())
    assert len(taped.rows()) == 1
    await stage.server.stop() if stage.server else None
    assert (tmp_path / "log").read_text() == ""


async def test_a_reload_turns_it_on_and_off(stage: Stage, taped: Taped) -> None:
    await stage.serve(await stage.worker(response()))
    await stage.reload(record={"enabled": True, "path": str(taped.path)})
    await stage.ask(get())
    await stage.reload(record={})
    await stage.ask(get())
    assert stage.proxy.journal is None
    assert len(taped.rows()) == 1


async def test_a_path_that_cannot_be_written_ends_the_start(stage: Stage, tmp_path: Path) -> None:
    with pytest.raises(LogFailed, match=r"record\.path: cannot open"):
        await stage.serve(
            await stage.worker(response()), record={"enabled": True, "path": str(tmp_path / "no" / "x")}
        )
    stage.server = None


# --- bounds


def recorder(path: Path, limit: int = 1 << 20, queue: int = 10_000) -> Recorder:
    about = RecordingMetadata(1000.0, 0.0, {}, lambda endpoint: 0.1, lambda entry: entry.client.address)
    return Recorder(str(path), about, salt=b"salt", limit=limit, queue=queue)


def test_a_full_file_takes_no_more(tmp_path: Path) -> None:
    """And says so; the file stays whole."""
    path = tmp_path / "r"
    one = recorder(path, limit=2000)
    rng = Random(1)
    for _ in range(2000):
        one.add(entry(ended_at=1000 + rng.random()))
    one.stop()
    assert one.is_full
    assert one.counts.written + one.counts.dropped == 2000
    kind, counts = blocks(path.read_bytes())[-1]
    assert (kind, counts["dropped"]) == ("Z", one.counts.dropped)
    one.add(entry())
    assert one.counts.dropped == counts["dropped"] + 1


def test_a_new_file_is_the_owner_s_alone(tmp_path: Path) -> None:
    """One that is there keeps its mode."""
    (tmp_path / "there").touch(0o644)
    for name in ("new", "there"):
        recorder(tmp_path / name).stop()
    assert [(tmp_path / name).stat().st_mode & 0o777 for name in ("new", "there")] == [0o600, 0o644]


def test_a_full_queue_drops(tmp_path: Path) -> None:
    one = recorder(tmp_path / "r", queue=3)
    held = threading.Event()
    one._about = RecordingMetadata(
        1000.0, 0.0, {}, lambda endpoint: 0.1, lambda entry: (held.wait(20), b"")[1]
    )
    for _ in range(10):
        one.add(entry())
    assert one.counts.dropped >= 6  # three wait; one may be in the thread's hands
    held.set()
    one.stop()
    assert one.counts.written + one.counts.dropped == 10


def test_who_ends_later_is_too_late(tmp_path: Path) -> None:
    """A request that began while it was recorded still knows the recording; that it is missing is counted."""
    one = recorder(tmp_path / "r")
    one.add(entry())
    one.stop()
    one.add(entry())
    assert (one.counts.written, one.counts.dropped, one.waiting) == (1, 1, 0)


def test_blocks_of_two_recordings_do_not_mix(tmp_path: Path) -> None:
    """Another process has the file, as the predecessor does in a restart: rows wait in the queue meanwhile."""
    path = tmp_path / "r"
    first = recorder(path)
    assert first.begun.wait(20)
    first.add(entry())
    second = recorder(path)
    second.add(entry())
    first.stop()
    assert second.begun.wait(20)
    second.stop()
    kinds = "".join(kind for kind, _ in blocks(path.read_bytes()))
    assert kinds == "SEREZSEREZ"


def test_who_never_gets_the_file_counts_what_is_lost(tmp_path: Path) -> None:
    first = recorder(tmp_path / "r")
    assert first.begun.wait(20)
    second = recorder(tmp_path / "r")
    second.add(entry())
    second.stop()
    assert (second.counts.written, second.counts.dropped) == (0, 1)
    first.stop()


def test_a_second_recording_follows_the_first_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "r"
    first = recorder(path)
    first.add(entry())
    first.retire()
    second = Recorder(str(path), first._about, salt=b"salt", limit=1 << 20, queue=10, before=first.thread)
    second.add(entry())
    second.stop()
    assert "".join(kind for kind, _ in blocks(path.read_bytes())) == "SEREZSEREZ"


async def test_every_bucket_is_told_to_who_asks(stage: Stage) -> None:
    """/-/latency: two readings of it are what a comparison of policies is made of."""
    await stage.serve(await stage.worker(response()), policy={"name": "region-aware", "margin": 0.5})
    await stage.ask(get())
    told = json.loads((await stage.ask(get(b"/-/latency").replace(b"example.org", b"127.0.0.1"))).body)
    assert (told["requests"], told["errors"], told["shortest"], told["ratio"]) == (1, {}, 1e-4, 1.1)
    assert (told["policy"]["name"], told["policy"]["options"]) == ("region-aware", {"margin": 0.5})
    (endpoint,) = told["endpoints"]
    assert (endpoint["id"], sum(endpoint["buckets"]), endpoint["outcomes"]["ok"]) == ("w0", 1, 1)
