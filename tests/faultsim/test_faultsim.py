"""The unit under seeded faults, and that a seed is its run.

Rule of this file: what must hold stands in `simulation.py`, `ledger.py` and at the ends; here are the seeds. Whatever
fails is printed with what replays it. STEELYARD_SEEDS=5000 tries more, `--seed=N` begins at another.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.faultsim.draw import draw
from tests.faultsim.plan import Ask, Caller, Plan, Reply
from tests.faultsim.reading import Content, Reader, Wrong, content
from tests.faultsim.search import fault_of, kind_of
from tests.faultsim.shrink import shrunk

ROOT = Path(__file__).resolve().parent.parent.parent
COUNT = int(os.environ.get("STEELYARD_SEEDS", "500"))
SLICES = 20

FIRST = 1000
"""First seed of a run without `--seed`."""

IN_FIRST_TIER = 5
"""Of the slices."""


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "part",
    [
        pytest.param(part, marks=() if part < IN_FIRST_TIER else pytest.mark.second_tier)
        for part in range(SLICES)
    ],
)
def test_seeds(part: int, pytestconfig: pytest.Config, capsys: pytest.CaptureFixture[str]) -> None:
    """All that must hold does."""
    given = pytestconfig.getoption("--seed")
    first = FIRST if given is None else given
    size = -(-COUNT // SLICES)
    seeds = range(first + part * size, first + (part + 1) * size)
    with capsys.disabled():
        print(f"\nfault simulation: seeds {seeds.start} to {seeds.stop - 1}", end=" ", flush=True)
    faults = {seed: fault for seed in seeds if (fault := fault_of(draw(seed))) is not None}
    failed = [f"python -m tests.faultsim {seed} --journal   # {fault}" for seed, fault in faults.items()]
    assert not failed, "\n".join(failed)


def journal_of(seed: int, hash_seed: str) -> bytes:
    """What another process says of a seed."""
    return subprocess.run(
        [sys.executable, "-m", "tests.faultsim", str(seed), "--journal"],
        cwd=ROOT,
        capture_output=True,
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        timeout=60,
        check=True,
    ).stdout


@pytest.mark.parametrize("seed", [1, 15, 171])
def test_a_seed_is_its_run_in_any_process(seed: int) -> None:
    """Byte for byte, whatever the addresses in memory and the hashes of texts: every byte that anybody received is in
    the journal, as a sum."""
    journals = [journal_of(seed, hash_seed) for hash_seed in ("1", "2")]
    assert journals[0] == journals[1]
    assert journals[0].count(b"\n") > 500


def test_seeds_differ() -> None:
    assert draw(1) != draw(2)
    assert draw(1) == draw(1)


def asks_of(*numbers: int) -> Plan:
    """A plan in which these are asked, one client each, and nothing goes wrong."""
    plan = replace(draw(3), faults=[], idle_closes={}, stops_at=None)
    callers = [Caller(n, 0.0, 1, 1 << 20, 0.0, [Ask(n, b"GET", Reply(size=10))]) for n in numbers]
    return replace(plan, callers=callers)


def test_a_plan_is_shrunk_to_what_fails() -> None:
    """Whatever is not needed goes: the order in which it is tried does not matter."""
    small = shrunk(asks_of(*range(20)), lambda plan: {5, 11} <= {ask.number for ask in plan.asks})
    assert [ask.number for ask in small.asks] == [5, 11]


def test_faults_of_one_kind_are_told_by_their_words() -> None:
    assert kind_of("Wrong: POST /12 was executed twice") == kind_of("Wrong: POST /34 was executed twice")


class Kept(Reader):
    """A reader that keeps what it reads."""

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
def test_the_other_ends_read_messages_however_they_come(size: int, data: bytes) -> None:
    for step in (1, 2, 5, 100):
        reader = Kept(size)
        for at in range(0, len(data), step):
            reader.feed(data[at : at + step])
        assert b"".join(reader.seen[1:-1]) == b"abc"
        assert (reader.seen[-1], reader.is_amid) == (b"whole", False)


def test_a_body_is_known_by_every_byte() -> None:
    body = bytearray(content(7, 1, 5000))
    Content(7, 1).add(bytes(body))
    body[4000] ^= 1
    with pytest.raises(Wrong, match="not its own"):
        Content(7, 1).add(bytes(body))
