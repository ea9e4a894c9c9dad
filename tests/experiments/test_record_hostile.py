"""Malformed recordings: each is rejected in one line or read, within bounds of time and memory."""

from __future__ import annotations

import os
import struct
import tracemalloc
import zlib
from contextlib import suppress
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from experiments.errors import BadInputError
from experiments.recorded import recording as reader
from experiments.recorded.instants import recorded
from experiments.recorded.recording import LARGEST_BLOCK, read_recording
from experiments.what_if.fit import MIN_SUCCESSES, MOST_TRACED, busiest, estimated_slots, fit
from tests.experiments.tapes import Row, Tape, block

NAN, INF = float("nan"), float("inf")
GOOD = Tape([Row(0.0), Row(1.0)]).data
START = {"steelyard": "recording", "format": 1, "began": 1.7e9, "policy": {"name": "random"}}
NAMED = {"number": 0, "id": "w0", "region": "emea", "weight": 1.0, "connect": 0.08}


def raw(kind: bytes, data: bytes, size: int | None = None) -> bytes:
    """A block with these bytes, whatever they are, and this length."""
    return struct.pack("<cI", kind, len(data) if size is None else size) + data


def refused(path: Path, data: bytes) -> str:
    """What is said of a file with these bytes."""
    path.write_bytes(data)
    with pytest.raises(BadInputError) as raised:
        fit(read_recording([path]))
    message = str(raised.value)
    assert message.isprintable()
    assert len(message) < 400
    return message


# --- blocks

BLOCKS: dict[str, bytes] = {
    "a length of 4 GB": raw(b"R", b"x" * 100, 0xFFFF_FFFF),
    "more than is ever packed": raw(b"R", b"x" * (LARGEST_BLOCK + 1)),
    "a stream that does not end": raw(b"E", zlib.compress(b"{}" * 100)[:-4]),
    "no stream": raw(b"E", b"{}"),
    "half a row": block(b"R", bytes(17)),
    "deep": block(b"E", b'{"a":' * 100_000),
    "deep lists": block(b"E", b"[" * 100_000),
    "no JSON": block(b"E", b"\xff\xfe"),
    "a long number": block(b"Z", b'{"dropped":' + b"9" * 5000 + b"}"),
    "no document": block(b"E", b"[]"),
}


@pytest.mark.parametrize(("kind", "byte"), [(b"R", b"\0"), (b"E", b" ")])
def test_a_decompression_bomb_takes_no_memory(tmp_path: Path, kind: bytes, byte: bytes) -> None:
    """It is unpacked up to the size of the largest block."""
    data = GOOD + raw(kind, zlib.compress(byte * 32 * LARGEST_BLOCK, 9))
    tracemalloc.start()
    try:
        assert "is damaged: " in refused(tmp_path / "r", data)
        assert tracemalloc.get_traced_memory()[1] < 8 * LARGEST_BLOCK
    finally:
        tracemalloc.stop()


def test_a_block_before_the_start(tmp_path: Path) -> None:
    """A file must begin with a start."""
    empty = raw(b"S", zlib.compress(b"null"))
    assert "format None is not known" in refused(tmp_path / "r", empty + block(b"R", Row(0).packed))
    assert "is not a recording" in refused(tmp_path / "r", block(b"R", Row(0).packed) + GOOD)


def test_the_number_of_requests_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over all files together: empty rows are compressed a thousand to one."""
    monkeypatch.setattr(reader, "MOST_ROWS", 3)
    files = [Tape([Row(0), Row(1)]).write(tmp_path / name) for name in ("a", "b")]
    with pytest.raises(BadInputError, match="holds more than 3 requests"):
        read_recording(files)


# --- what blocks say

STARTS: dict[str, dict[str, Any]] = {
    "an instant that is none": {"began": "x"},
    "no number": {"began": NAN},
    "never": {"began": INF},
    "no policy": {"policy": None},
    "a policy without a name": {"policy": {}},
    "a policy with a list for a name": {"policy": {"name": []}},
    "a home of control characters": {"home_region": "\x1b[31m"},
}
ENDPOINTS: dict[str, dict[str, Any]] = {
    "a list for a number": {"number": []},
    "a number beyond": {"number": 70_000},
    "the number of nowhere": {"number": 0xFFFF},
    "a negative number": {"number": -1},
    "a text for a number": {"number": "0"},
    "no name": {"id": None},
    "control characters": {"id": "\x1b]0;x\x07"},
    "a long name": {"region": "x" * 1000},
    "a text for a weight": {"weight": "1"},
    "an infinite weight": {"weight": INF},
    "no weight": {"weight": 0},
    "a negative priority": {"priority": -1},
    "a limit without room": {"max_in_flight": 0},
    "a negative handshake": {"connect": -1.0},
    "an endless handshake": {"connect": 1e300},
}


REQUESTS = (
    *(Row(NAN), Row(INF), Row(-1.0), Row(1e300)),
    *(Row(0, service=INF), Row(0, queue=-1.0), Row(0, reported=-1e30), Row(0, connect=1e30)),
    Row(0, end=200),
)
REST = block(b"R", Row(0).packed)
DAMAGED = [
    *((GOOD + data, "") for data in BLOCKS.values()),
    *((block(b"S", START | change) + block(b"E", NAMED) + REST, "start: ") for change in STARTS.values()),
    *((block(b"S", START) + block(b"E", NAMED | change) + REST, "named: ") for change in ENDPOINTS.values()),
    *((GOOD + block(b"Z", {"dropped": dropped}), "end: ") for dropped in (-1, "1", None, 1e300)),
    *((Tape([Row(0), row]).data, "a request") for row in REQUESTS),
]


@pytest.mark.parametrize(("data", "problem"), DAMAGED, ids=count())
def test_damage_is_one_line(tmp_path: Path, data: bytes, problem: str) -> None:
    assert f"is damaged: {problem}" in refused(tmp_path / "r", data)


# --- work


def test_time_does_not_grow_with_the_number_of_endpoints(tmp_path: Path) -> None:
    """Requests are sorted once, not once for each endpoint."""
    count = 2000
    endpoints = [(f"w{number}", f"r{number}", 0.01) for number in range(count)]
    rows = [Row(0.1 * turn, endpoint=number) for turn in range(MIN_SUCCESSES) for number in range(count)]
    path = Tape([], endpoints=endpoints).write(tmp_path / "r")
    packed = [row.packed for row in rows]
    parts = [block(b"R", b"".join(packed[at : at + 512])) for at in range(0, len(packed), 512)]
    path.write_bytes(path.read_bytes() + b"".join(parts))
    assert len(fit(read_recording([path]))) == count


def test_time_of_slots_with_many_in_flight() -> None:
    """A part of a long recording is used, and the number of slots is found by bisection."""
    begin = np.arange(300_000.0)
    part = busiest(begin)
    assert len(begin[part]) == MOST_TRACED
    assert estimated_slots(begin[part], begin[part] + 1e6, None) == 1


@pytest.mark.parametrize("seed", range(4))
def test_damaged_recordings(tmp_path: Path, seed: int) -> None:
    """Bytes changed, cut out and doubled, packed and unpacked: one line, or a recording."""
    rng = Random(seed)
    rows = [Row(0.01 * number, endpoint=number % 3) for number in range(120)]
    whole = Tape(rows, endpoints=[("a", "x", 0.1), ("b", "y", 0.2), ("c", "y", 0.0)]).data
    path = tmp_path / "r"
    for _ in range(150):
        path.write_bytes(damaged(whole, rng))
        with suppress(BadInputError):
            fit(read_recording([path]))


def damaged(data: bytes, rng: Random) -> bytes:
    """A block with other content, or other bytes anywhere."""
    if rng.random() < 0.5:
        return altered(data, rng)
    parts, at = [], 0
    while at < len(data):
        kind, size = struct.unpack_from("<cI", data, at)
        payload = zlib.decompress(data[at + 5 : at + 5 + size])
        parts.append(block(kind, altered(payload, rng) if rng.random() < 0.4 else payload))
        at += 5 + size
    return b"".join(parts)


def altered(data: bytes, rng: Random) -> bytes:
    """Some bytes are others, some are gone, some are there again."""
    changed = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(changed) or 1)
        piece = rng.choice(
            (rng.randbytes(1), rng.randbytes(8), b"\xff" * 8, b"1e999", b"-", b'"', b"{[", b"")
        )
        changed[at : at + rng.choice((0, 1, 8, 40))] = piece
    return bytes(changed)


# --- instants as text


def test_special_files_are_rejected(tmp_path: Path) -> None:
    """A scenario may name any file: a device, a pipe, a directory, one of a terabyte."""
    os.mkfifo(tmp_path / "pipe")
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(1 << 40)
    for path in (Path("/dev/zero"), tmp_path / "pipe", tmp_path, tmp_path / "sparse"):
        with pytest.raises(BadInputError, match="must be a file of at most 256 MiB"):
            recorded(str(path))
