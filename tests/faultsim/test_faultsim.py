"""The balancer under seeded faults, and the reproducibility of a seed.

Invariants are in `simulation.py`, `ledger.py` and in both ends; the seeds are here. A failure is printed with the
command that replays it. STEELYARD_SEEDS=5000 tries more, `--seed=N` begins at another.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace

import pytest

from tests.faultsim.draw import draw
from tests.faultsim.plan import Plan, PlannedClient, PlannedRequest, Reply
from tests.faultsim.reading import Content, Reader, Violation, content
from tests.faultsim.search import fault_of, kind_of
from tests.faultsim.shrink import shrunk
from tests.support.root import ROOT

COUNT = int(os.environ.get("STEELYARD_SEEDS", "500"))
SLICES = 50

FIRST = 1000
"""First seed of a run without `--seed`."""

IN_FIRST_TIER = 1
"""Number of slices in the first tier."""


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "part",
    [
        pytest.param(part, marks=() if part < IN_FIRST_TIER else pytest.mark.second_tier)
        for part in range(SLICES)
    ],
)
def test_seeds(part: int, pytestconfig: pytest.Config, capsys: pytest.CaptureFixture[str]) -> None:
    """All invariants hold."""
    given = pytestconfig.getoption("--seed")
    first = FIRST if given is None else given
    size = -(-COUNT // SLICES)
    seeds = range(first + part * size, first + (part + 1) * size)
    with capsys.disabled():
        print(f"\nfault simulation: seeds {seeds.start} to {seeds.stop - 1}", end=" ", flush=True)
    faults = {seed: fault for seed in seeds if (fault := fault_of(draw(seed))) is not None}
    failed = [f"python -m tests.faultsim {seed} --journal   # {fault}" for seed, fault in faults.items()]
    assert not failed, "\n".join(failed)


def journals_of(seeds: Sequence[int], hash_seed: str) -> bytes:
    """The journals of seeds, from another process."""
    return subprocess.run(
        [sys.executable, "-m", "tests.faultsim", *map(str, seeds), "--journal"],
        cwd=ROOT,
        capture_output=True,
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        timeout=60,
        check=True,
    ).stdout


@pytest.mark.second_tier
def test_seeds_give_the_same_run_in_any_process() -> None:
    """Byte for byte, for any addresses in memory and hashes of strings: the journal has a checksum of every piece
    received."""
    journals = [journals_of((1, 5, 15, 171), hash_seed) for hash_seed in ("1", "2")]
    assert journals[0] == journals[1]
    assert journals[0].count(b"\n") > 2000


def test_seeds_differ() -> None:
    assert draw(1) != draw(2)
    assert draw(1) == draw(1)


def test_seeds_have_http2_at_both_sides() -> None:
    plans = [draw(seed) for seed in range(40)]
    has_clients = [any(client.is_http2 for client in plan.clients) for plan in plans]
    assert 10 < sum(has_clients) < 30
    assert any(plan.http2_hosts and len(plan.http2_hosts) < len(plan.hosts) for plan in plans)
    requests = [request for plan in plans for request in plan.requests]
    assert any(request.is_rpc and request.reply.is_trailers_only for request in requests)
    assert any(any(request.stream_damage) for request in requests)


def plan_of_requests(*numbers: int) -> Plan:
    """A plan with these requests, one client each, and no faults."""
    plan = replace(draw(3), faults=[], idle_closes={}, stops_at=None)
    clients = [
        PlannedClient(n, 0.0, 1, 1 << 20, 0.0, [PlannedRequest(n, b"GET", Reply(size=10))]) for n in numbers
    ]
    return replace(plan, clients=clients)


def test_plan_is_shrunk_to_the_failing_requests() -> None:
    small = shrunk(
        plan_of_requests(*range(20)), lambda plan: {5, 11} <= {request.number for request in plan.requests}
    )
    assert [request.number for request in small.requests] == [5, 11]


def test_kind_of_a_violation_ignores_numbers() -> None:
    assert kind_of("Violation: POST /12 was executed twice") == kind_of(
        "Violation: POST /34 was executed twice"
    )


class RecordingReader(Reader):
    """A reader that records what it reads."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.seen: list[bytes] = []
        self._size = size

    def head(self, head: bytes) -> int:
        self.seen.append(head)
        return self._size

    def piece(self, data: bytes) -> None:
        self.seen.append(data)

    def whole(self) -> None:
        self.seen.append(b"whole")


@pytest.mark.parametrize(
    ("size", "data"), [(3, b"a\r\n\r\nabc"), (-1, b"a\r\n\r\n2\r\nab\r\n1\r\nc\r\n0\r\n\r\n")]
)
def test_reader_accepts_messages_in_any_pieces(size: int, data: bytes) -> None:
    for step in (1, 2, 5, 100):
        reader = RecordingReader(size)
        for at in range(0, len(data), step):
            reader.feed(data[at : at + step])
        assert b"".join(reader.seen[1:-1]) == b"abc"
        assert (reader.seen[-1], reader.is_amid) == (b"whole", False)


def test_changed_byte_of_a_body_is_found() -> None:
    body = bytearray(content(7, 1, 5000))
    Content(7, 1).add(bytes(body))
    body[4000] ^= 1
    with pytest.raises(Violation, match="not its own"):
        Content(7, 1).add(bytes(body))
