"""Recordings of a running balancer: rows, hashed keys, commands, bounds, several recordings in one file."""

from __future__ import annotations

import errno
import json
import os
import threading
from pathlib import Path
from random import Random
from typing import Any

import pytest

from balancer.config.schema.sections import RecordConfig
from balancer.errors import LogFailed
from balancer.recording.recorder import Recorder, RecordingMetadata
from balancer.recording.recording import ClusterRecording
from tests.support.admin_requests import local
from tests.support.log_entries import blocks, entry
from tests.support.stage import Stage, pool_of
from tests.support.wire import Message, get, post, response


class RecordedStage:
    """A stage whose balancer records to a file."""

    def __init__(self, stage: Stage, path: Path) -> None:
        self.stage = stage
        self.path = path

    async def serve(self, *workers: Any, record: dict[str, Any] | None = None, **settings: Any) -> None:
        record = {"enabled": True, "path": str(self.path), **(record or {})}
        await self.stage.serve(*workers, record=record, **settings)

    def blocks(self) -> list[tuple[str, Any]]:
        """End the recording and read it."""
        self.stage.control_plane.recording.close()
        return blocks(self.path.read_bytes())

    def rows(self) -> list[dict[str, Any]]:
        return [row for kind, rows in self.blocks() if kind == "R" for row in rows]

    async def control(self, method: bytes, body: bytes = b"") -> Message:
        return await self.stage.ask(local(b"/-/record", method=method, body=body))


@pytest.fixture
def recorded(stage: Stage, tmp_path: Path) -> RecordedStage:
    return RecordedStage(stage, tmp_path / "balancer.recording")


async def test_request_is_a_row(stage: Stage, recorded: RecordedStage) -> None:
    worker = await stage.worker(response(b"hello", b"X-Worker-Service-Time: 0.25"))
    await recorded.serve(worker, home_region="r")
    await stage.ask(get(b"/secret?token=1"))
    stage.clock.at += 2
    await stage.ask(post(b"123"))
    (start, about), (_, endpoint), (_, (first, second)), *rest = recorded.blocks()
    assert (start, about["steelyard"], about["home_region"]) == ("S", "recording", "r")
    assert about["policy"] == {"name": "round-robin"}
    assert about["endpoints"] == [{"id": "w0", "region": "r", "weight": 1.0}]
    assert (endpoint["id"], endpoint["region"], endpoint["number"]) == ("w0", "r", 0)
    assert (endpoint["priority"], endpoint["max_in_flight"]) == (0, None)
    assert (first["at"], second["at"]) == (0, 2)
    assert (first["status"], first["endpoint"], first["attempts"], first["end"]) == (200, 0, 1, 0)
    assert (first["reported"], first["bytes_out"], second["bytes_in"], first["path"]) == (0.25, 5, 3, 0)
    assert first["key"] == second["key"]  # one client
    assert [kind for kind, _ in rest] == ["E", "Z"]
    assert rest[-1][1] == {"written": 2, "dropped": 0}
    assert b"secret" not in b"".join(json.dumps(document).encode() for _, document in recorded.blocks())


async def test_denied_request_is_no_row(stage: Stage, recorded: RecordedStage) -> None:
    """It is not forwarded."""
    denies = pool_of(await stage.worker(response(b"no", status=b"401 Unauthorized")))
    await recorded.serve(
        await stage.worker(response()),
        routes=[
            {"prefix": "/closed", "cluster": "default", "auth": {"cluster": "auth", "path": "/"}},
            {"prefix": "/", "cluster": "default"},
        ],
        clusters={"auth": denies},
    )
    assert [(await stage.ask(get(path))).status for path in (b"/closed", b"/")] == [401, 200]
    assert [row["status"] for row in recorded.rows()] == [200]


async def test_change_of_the_policy_is_a_block(stage: Stage, recorded: RecordedStage) -> None:
    await recorded.serve(await stage.worker(response()))
    await stage.ask(get())
    stage.clock.at += 3
    body = b'{"name": "least-in-flight", "choices": 3}'
    put = b"PUT /-/policy HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
    assert (await stage.ask(put)).status == 200
    stage.clock.at += 1
    await stage.ask(get())
    changes = [content for kind, content in recorded.blocks() if kind == "C"]
    assert changes == [{"at": 3, "policy": {"name": "least-in-flight", "choices": 3}}]


@pytest.mark.parametrize("salt", [{}, {"salt": "sixteen or more characters"}])
async def test_keys_are_hashed_with_a_salt_per_recording(
    stage: Stage, recorded: RecordedStage, salt: dict[str, str]
) -> None:
    """A user has the same key within a recording, and another in the next unless the salt is given."""
    await recorded.serve(await stage.worker(response()), sticky={"header": "X-User"}, record=salt)
    for user in (b"ann", b"bob", b"ann"):
        await stage.ask(get(b"/", b"X-User: " + user))
    await recorded.control(b"DELETE")
    await recorded.control(b"POST")
    await stage.ask(get(b"/", b"X-User: ann"))
    ann, bob, ann_again, later = (row["key"] for row in recorded.rows())
    assert ann == ann_again != bob
    assert later != bob
    assert (later == ann) is bool(salt)


@pytest.mark.parametrize(
    ("key", "targets"),
    [
        ({"by": "header", "name": "X-User"}, [(b"/", b"ann"), (b"/", b"bob"), (b"/other", b"ann")]),
        ({"by": "path"}, [(b"/a?1", b"ann"), (b"/b", b"ann"), (b"/a?2", b"bob")]),
    ],
)
async def test_key_that_the_policy_sees_is_recorded(
    stage: Stage, recorded: RecordedStage, key: dict[str, str], targets: list[tuple[bytes, bytes]]
) -> None:
    """For which a what-if picks again; a request without one has the client's address."""
    await recorded.serve(await stage.worker(response()), key=key)
    for target, user in targets:
        await stage.ask(get(target, b"X-User: " + user))
    one, other, again = (row["key"] for row in recorded.rows())
    assert one == again != other
    assert [content["keyed"] for kind, content in recorded.blocks() if kind == "S"] == [True]


async def test_another_key_begins_another_recording(stage: Stage, recorded: RecordedStage) -> None:
    """In which a key means the same throughout; a request has the key by which it was routed, however late its row is
    written. Another reload goes on with the recording."""
    await recorded.serve(await stage.worker(response()), record={"enabled": False})
    assert (await recorded.control(b"POST", b'{"seconds": 60}')).status == 201
    ann, bob, record = b"X-User: ann", b"X-User: bob", {"path": str(recorded.path)}
    for keys in ({}, {"key": {"by": "header", "name": "X-User"}}, {"key": {"by": "path"}}):
        await stage.reload(record=record, **keys)
        for user in (ann, bob):
            await stage.ask(get(b"/", user))
        stage.advance(1)
    await stage.reload(record=record, key={"by": "path"}, retries=1)
    assert json.loads((await recorded.control(b"GET")).body)["seconds_left"] == 57
    found = recorded.blocks()
    assert [content["keyed"] for kind, content in found if kind == "S"] == [False, True, True]
    rows = [row["key"] for kind, rows in found if kind == "R" for row in rows]
    assert [one == other for one, other in zip(rows[::2], rows[1::2], strict=True)] == [True, False, True]


async def test_processes_hash_keys_alike(stage: Stage, recorded: RecordedStage) -> None:
    """A user has one key in the files of all of them."""
    await recorded.serve(await stage.worker(response()), key={"by": "path"})
    await stage.ask(get())
    await recorded.control(b"DELETE")
    of_sibling = ClusterRecording(stage.control_plane, stage.control_plane.cluster.process.clock)
    of_sibling.apply(RecordConfig.model_validate({"enabled": True, "path": f"{recorded.path}.2"}))
    await stage.ask(get())
    of_sibling.close()
    (row,) = recorded.rows()
    (other,) = RecordedStage(stage, Path(f"{recorded.path}.2")).rows()
    assert row["key"] == other["key"]


async def test_paths_are_recorded_if_configured(stage: Stage, recorded: RecordedStage) -> None:
    await recorded.serve(await stage.worker(response()), record={"paths": True})
    for target in (b"/a?x=1", b"/b", b"/a?x=2"):
        await stage.ask(get(target))
    named = {document["number"]: document["path"] for kind, document in recorded.blocks() if kind == "P"}
    assert [named[row["path"]] for row in recorded.rows()] == ["/a", "/b", "/a"]


async def test_failed_request_is_a_row(stage: Stage, recorded: RecordedStage) -> None:
    await recorded.serve(stage.dead_port(), retries=0, outlier_detection={"failures": 0})
    assert (await stage.ask(get())).status == 502
    (row,) = recorded.rows()
    assert (row["status"], row["end"], row["endpoint"]) == (502, 2, 0)
    assert row["service"] != row["service"]  # NaN: the request was not sent


async def test_recording_starts_by_command_and_ends_in_time(stage: Stage, recorded: RecordedStage) -> None:
    await recorded.serve(await stage.worker(response()), record={"enabled": False})
    assert json.loads((await recorded.control(b"GET")).body)["recording"] is False
    began = await recorded.control(b"POST", b'{"seconds": 60}')
    assert (began.status, json.loads(began.body)["seconds_left"]) == (201, 60)
    assert (await recorded.control(b"POST")).status == 409
    await stage.ask(get())
    stage.advance(60)
    stage.control_plane.recording.tick(stage.clock.at)
    assert stage.cluster.journal is None
    await stage.ask(get())
    assert len(recorded.rows()) == 1


async def test_command_without_path_is_refused(stage: Stage, recorded: RecordedStage) -> None:
    await recorded.serve(await stage.worker(response()), record={"enabled": False, "path": None})
    refused = await recorded.control(b"POST")
    assert (refused.status, b"record.path" in refused.body) == (409, True)
    assert (await recorded.control(b"POST", b'{"path": "/tmp/x"}')).status == 422


async def test_recording_and_access_log_together(
    stage: Stage, recorded: RecordedStage, tmp_path: Path
) -> None:
    """Sampling applies to the log only."""
    log = {"fields": ["route"], "path": str(tmp_path / "log"), "sample": 0}
    await recorded.serve(await stage.worker(response()), log=log)
    await stage.ask(get())
    assert len(recorded.rows()) == 1
    await stage.server.stop() if stage.server else None
    assert (tmp_path / "log").read_text() == ""


async def test_reload_turns_recording_on_and_off(stage: Stage, recorded: RecordedStage) -> None:
    await stage.serve(await stage.worker(response()))
    await stage.reload(record={"enabled": True, "path": str(recorded.path)})
    await stage.ask(get())
    await stage.reload(record={})
    await stage.ask(get())
    assert stage.cluster.journal is None
    assert len(recorded.rows()) == 1


async def test_unwritable_path_fails_the_start(stage: Stage, tmp_path: Path) -> None:
    with pytest.raises(LogFailed, match=r"record\.path: cannot open"):
        await stage.serve(
            await stage.worker(response()), record={"enabled": True, "path": str(tmp_path / "no" / "x")}
        )
    stage.server = None


# --- bounds


ABOUT = RecordingMetadata(1000.0, 0.0, {}, lambda endpoint: 0.1, lambda entry: entry.client.address)


def recorder(
    path: Path, limit: int = 1 << 20, queue: int = 10_000, about: RecordingMetadata = ABOUT
) -> Recorder:
    return Recorder(str(path), about, salt=b"salt", limit=limit, queue=queue)


def test_full_file_drops_rows(tmp_path: Path) -> None:
    """It drops and counts further rows; the file stays readable."""
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


def test_full_disk_leaves_whole_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A part of one would hide all recordings behind it."""
    path, write, is_full = tmp_path / "r", os.write, False

    def written(fd: int, data: bytes) -> int:
        nonlocal is_full
        if path.stat().st_ino != os.fstat(fd).st_ino:
            return write(fd, data)
        if is_full:
            raise OSError(errno.ENOSPC, "No space left on device")
        is_full = True
        return write(fd, data[:20])

    first = recorder(path)
    assert first.begun.wait(20)
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", written)
        first.add(entry())
        first.stop()
    assert (first.problem, first.counts.dropped) == ("No space left on device", 1)
    second = recorder(path)
    second.add(entry())
    second.stop()
    assert "".join(kind for kind, _ in blocks(path.read_bytes())) == "SSEREZ"


def test_new_file_is_readable_by_its_owner_only(tmp_path: Path) -> None:
    """An existing file keeps its mode."""
    (tmp_path / "there").touch(0o644)
    for name in ("new", "there"):
        recorder(tmp_path / name).stop()
    assert [(tmp_path / name).stat().st_mode & 0o777 for name in ("new", "there")] == [0o600, 0o644]


def test_full_queue_drops_rows(tmp_path: Path) -> None:
    held = threading.Event()
    about = RecordingMetadata(1000.0, 0.0, {}, lambda endpoint: 0.1, lambda entry: (held.wait(20), b"")[1])
    one = recorder(tmp_path / "r", queue=3, about=about)
    for _ in range(10):
        one.add(entry())
    assert one.counts.dropped >= 6  # three wait in the queue, and the thread may hold one
    held.set()
    one.stop()
    assert one.counts.written + one.counts.dropped == 10


def test_row_after_the_end_is_dropped(tmp_path: Path) -> None:
    """The row is counted as dropped."""
    one = recorder(tmp_path / "r")
    one.add(entry())
    one.stop()
    one.add(entry())
    assert (one.counts.written, one.counts.dropped, one.waiting) == (1, 1, 0)


def test_second_recorder_waits_for_the_file(tmp_path: Path) -> None:
    """As at a hot restart: rows wait in the queue while another process has the file."""
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


def test_recorder_without_the_file_counts_its_rows_as_dropped(tmp_path: Path) -> None:
    first = recorder(tmp_path / "r")
    assert first.begun.wait(20)
    second = recorder(tmp_path / "r")
    second.add(entry())
    second.stop()
    assert (second.counts.written, second.counts.dropped) == (0, 1)
    first.stop()


def test_second_recording_is_appended(tmp_path: Path) -> None:
    path = tmp_path / "r"
    first = recorder(path)
    first.add(entry())
    first.retire()
    second = Recorder(str(path), ABOUT, salt=b"salt", limit=1 << 20, queue=10, before=first.thread)
    second.add(entry())
    second.stop()
    assert "".join(kind for kind, _ in blocks(path.read_bytes())) == "SEREZSEREZ"
