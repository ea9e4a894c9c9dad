"""Recordings made by hand, byte by byte as the documents have it."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from click.testing import CliRunner

from experiments.__main__ import cli

ROW = struct.Struct("<d5fQIIHHHBB")
NAN = float("nan")


def block(kind: bytes, content: bytes | dict[str, Any]) -> bytes:
    """One block, as it stands in a file."""
    payload = content if isinstance(content, bytes) else json.dumps(content).encode()
    data = zlib.compress(payload)
    return struct.pack("<cI", kind, len(data)) + data


@dataclass(frozen=True)
class Row:
    """A request, successful by default."""

    at: float
    endpoint: int = 0
    service: float = 0.1
    reported: float = NAN
    queue: float = 0.0
    connect: float = 0.0
    key: int = 7
    status: int = 200
    end: int = 0

    @property
    def packed(self) -> bytes:
        return ROW.pack(
            self.at, self.queue, self.connect, self.service, self.service, self.reported, self.key, 0, 17,
            self.endpoint, 0, self.status, 1, self.end,
        )  # fmt: skip


@dataclass
class Tape:
    """One recording; `endpoints` are (id, region, seconds of a handshake), with `more` of each."""

    rows: Sequence[Row]
    endpoints: Sequence[tuple[str, str, float]] = (("w0", "emea", 0.08),)
    began: float = 1_700_000_000.0
    about: dict[str, Any] = field(default_factory=dict)
    dropped: int = 0
    changes: Sequence[tuple[float, dict[str, Any]]] = ()
    more: Sequence[dict[str, Any]] = ()

    @property
    def data(self) -> bytes:
        start = {"steelyard": "recording", "format": 1, "began": self.began, "home_region": "emea",
                 "policy": {"name": "random"}, **self.about}  # fmt: skip
        more = [*self.more, *({} for _ in self.endpoints)]
        named = b"".join(
            block(b"E", {"number": number, "id": id_, "region": region, "weight": 1.0,
                         "max_in_flight": None, "connect": connect} | more[number])
            for number, (id_, region, connect) in enumerate(self.endpoints)
        )  # fmt: skip
        half = len(self.rows) // 2
        rows = b"".join(
            block(b"R", b"".join(row.packed for row in part)) for part in (self.rows[:half], self.rows[half:])
        )
        end = block(b"Z", {"written": len(self.rows), "dropped": self.dropped})
        changed = b"".join(block(b"C", {"at": at, "policy": policy}) for at, policy in self.changes)
        return block(b"S", start) + named + rows + changed + end

    def write(self, path: Path) -> Path:
        path.write_bytes(self.data)
        return path


def what_if(path: Path, *options: str) -> tuple[str, Any]:
    """What `experiments what-if` prints of a file, its lines joined, and the answer that it writes."""
    found = path.with_name("answer.json")
    ran = CliRunner().invoke(cli, ["what-if", str(path), *options, "--json", str(found)])
    assert ran.exit_code == 0, ran.output
    return " ".join(ran.output.split()), json.loads(found.read_text(encoding="utf-8"))


def served(rate: float, slots: int, rtt: float, means: list[float], *, reports: bool) -> list[Row]:
    """Poisson arrivals at workers of `slots` slots each, round robin, first come first served."""
    rng = np.random.default_rng(1)
    free = [[0.0] * slots for _ in means]
    rows, at = [], 0.0
    for number in range(6000):
        at += rng.exponential(1 / rate)
        worker = number % len(means)
        service = means[worker] * rng.uniform(0.8, 1.2)
        slot = int(np.argmin(free[worker]))
        start = max(at + rtt / 2, free[worker][slot])
        free[worker][slot] = start + service
        latency = start + service + rtt / 2 - at
        rows.append(Row(at, worker, latency, service if reports else float("nan")))
    return rows
