"""Writer of the access log: queue, thread, sampling, output file."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from random import Random
from typing import Any

import pytest

from balancer.config.schema.log import LogConfig
from balancer.downstream.dispatch import NO_ROUTE
from balancer.errors import LogFailed, QueueTimeout
from balancer.log.access_log import AccessLog
from balancer.log.formats import Context, Entry, fault_of
from balancer.log.output import LogOutput
from tests.support.log_entries import entry, written


def log_to(output: LogOutput, **options: Any) -> AccessLog:
    config = LogConfig(access="json", **options)
    return AccessLog(output, config, offset=0.0, rng=Random(1))


def test_stop_writes_queued_entries(tmp_path: Path) -> None:
    """All entries in order, behind what the file had; a second stop has no effect."""
    path = tmp_path / "log"
    for first in (0, 1000):
        log = log_to(LogOutput(str(path)))
        log.start()
        for number in range(first, first + 1000):
            log.add(entry(bytes_out=number))
        log.stop()
        log.stop()
        assert (log.counts.written, log.waiting) == (1000, 0)
    assert [line["bytes"] for line in written(path)] == list(range(2000))


def test_full_queue_drops_and_counts(tmp_path: Path) -> None:
    """The newest entries are dropped; those already queued are written."""
    path = tmp_path / "log"
    log = log_to(LogOutput(str(path)), queue=10)
    for number in range(25):  # before the thread takes any
        log.add(entry(bytes_out=number))
    assert (log.waiting, log.counts.dropped) == (10, 15)
    log.start()
    log.stop()
    assert [line["bytes"] for line in written(path)] == list(range(10))


def test_sampling_of_successes_only(tmp_path: Path) -> None:
    """A quarter of the successes, the same ones for the same seed; every failure, but not a missing route."""
    log = log_to(LogOutput(str(tmp_path / "log")), sample=0.25)
    rng = Random(1)
    assert [log.takes(200, None) for _ in range(1000)] == [rng.random() < 0.25 for _ in range(1000)]
    assert all(log.takes(503, None) and log.takes(0, QueueTimeout("full")) for _ in range(100))
    log.stop()
    nothing = log_to(LogOutput(str(tmp_path / "log")), sample=0.0)
    assert not any(nothing.takes(200, None) or nothing.takes(404, NO_ROUTE) for _ in range(1000))
    nothing.stop()


def test_entry_has_its_sampling_rate(tmp_path: Path) -> None:
    """The sampling rate of a drawn entry, 1 of one that is always logged."""
    path = tmp_path / "log"
    log = log_to(LogOutput(str(path)), sample=0.25)
    log.start()
    log.add(entry())
    log.add(entry(status=503))
    log.add(entry(status=0, fault=fault_of(NO_ROUTE)))
    log.stop()
    assert [line["sample"] for line in written(path)] == [0.25, 1, 0.25]


def test_old_file_is_kept_if_reopening_fails(tmp_path: Path) -> None:
    """One message; entries still go to the old file."""
    problems: list[str] = []
    directory = tmp_path / "logs"
    directory.mkdir()
    output = LogOutput(str(directory / "log"), problems.append)
    moved = directory.rename(tmp_path / "moved")
    output.reopen()
    assert output.write(b"a line\n") == 0
    output.close()
    assert (moved / "log").read_bytes() == b"a line\n"
    assert len(problems) == 1
    assert "log.path" in problems[0]
    assert "No such file or directory" in problems[0]


def test_unusable_path_is_an_error(tmp_path: Path) -> None:
    """The message names the key."""
    with pytest.raises(LogFailed, match=r"log\.path: cannot open /.*: Is a directory"):
        LogOutput(str(tmp_path))


def test_new_output_gets_later_entries_only(tmp_path: Path) -> None:
    """With and without whole blocks of lines; each line is in the format of its output."""
    log = log_to(LogOutput(str(tmp_path / "0")))
    log.start()
    for number, entries in enumerate((5, 100, 0, 33), 1):
        for at in range(entries):
            log.add(entry(bytes_out=at))
        log.apply(LogOutput(str(tmp_path / str(number))), LogConfig(access="json", sample=1 / (number + 1)))
    log.stop()
    for number, entries in enumerate((5, 100, 0, 33, 0)):
        lines = written(tmp_path / str(number))
        assert [line["bytes"] for line in lines] == list(range(entries))
        assert {line["sample"] for line in lines} <= {float(f"{1 / (number + 1):g}")}
    assert (log.counts.written, log.waiting) == (138, 0)


def test_broken_pipe_is_reported_once(tmp_path: Path) -> None:
    """The reader has closed the pipe; the thread keeps running."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    problems: list[str] = []
    log = log_to(LogOutput(str(path), problems.append))
    os.close(reader)
    for _ in range(100):
        log.add(entry())
    log.start()
    log.stop()
    assert (log.counts.lost, log.counts.written, len(problems)) == (100, 0, 1)
    assert "Broken pipe" in problems[0]


def test_line_that_was_begun_is_finished(tmp_path: Path) -> None:
    """After a partial write, as to a full disk: before the next entry, whatever fails in between. It is not lost."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    problems: list[str] = []
    output = LogOutput(str(path), problems.append)
    os.set_blocking(reader, True)
    writer = next(fd for fd in range(reader + 1, reader + 50) if _is_same(fd, path) and fd != reader)
    os.set_blocking(writer, False)
    line = b"x" * 998 + b"\n"
    lost = output.write(line * 1000)
    assert output.write(b"lost\n") == 1
    taken = os.read(reader, 1 << 20)
    assert output.write(b"next\n") == 0
    output.close()
    taken += os.read(reader, 1 << 20)
    os.close(reader)
    whole = taken.count(line)
    assert 0 < whole == 1000 - lost < 1000
    assert taken == line * whole + b"next\n"
    assert len(problems) == 1


def _is_same(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), path.stat())
    except OSError:
        return False


def test_unread_pipe_does_not_block_the_event_loop(tmp_path: Path) -> None:
    """The thread blocks on a full pipe; the queue fills, further entries are dropped, and stop returns in time."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    log = log_to(LogOutput(str(path)), queue=100)
    for _ in range(100):
        log.add(entry(target=b"/" + b"a" * 2000))
    log.start()
    for _ in range(1000):
        log.add(entry(target=b"/" + b"a" * 2000))
    assert log.counts.dropped + log.waiting + log.counts.written > 0
    while (
        log.waiting + log.counts.written < 100
    ):  # the thread has taken a batch, which the pipe does not hold
        log.add(entry())
    log.stop()
    assert log.counts.dropped > 0
    os.set_blocking(reader, True)
    while os.read(reader, 1 << 20):  # the thread continues once the pipe is read, and ends
        pass
    os.close(reader)


def test_writer_thread_is_woken_for_every_entry(tmp_path: Path) -> None:
    """An entry that arrives just as the thread empties the queue wakes it again."""
    path = tmp_path / "log"
    done = threading.Event()
    seen: list[int] = []

    def line(one: Entry, context: Context) -> str:
        seen.append(one.bytes_out)
        done.set()
        return ""

    log = log_to(LogOutput(str(path)))
    log._lines.line = line
    log.start()
    for number in range(5):
        log.add(entry(bytes_out=number))
        assert done.wait(5)
        done.clear()
    log.stop()
    assert seen == list(range(5))
