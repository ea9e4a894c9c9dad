"""CPU time of processes and cores, and pinning of processes to cores."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import pairwise

import pytest

from experiments.platform import cpu_time
from experiments.platform.cpu_time import Cpu

pytestmark = pytest.mark.skipif(not cpu_time.is_known_here(), reason="processor time is read on Linux only")

TURNS = """
import sys
for line in sys.stdin:
    sum(range(int(line)))
    print("done", flush=True)
"""
PARENT = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {TURNS!r}])"


@contextmanager
def child(program: str) -> Iterator[subprocess.Popen[str]]:
    """A Python child that works as much as each line on its standard input says."""
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield process
        assert process.stdin is not None
        process.stdin.close()


def work(process: subprocess.Popen[str], turns: int) -> None:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(f"{turns}\n")
    process.stdin.flush()
    assert process.stdout.readline() == "done\n"


@pytest.mark.parametrize("program", [TURNS, PARENT], ids=["child", "grandchild"])
def test_cpu_time_grows_with_the_work_of_a_process(program: str) -> None:
    """It never decreases, and its parts add up to the total."""
    with child(program) as process:
        work(process, 1)
        seen = [cpu_time.cpu_of(process.pid)]
        for turns in (1, 20_000_000, 1):
            work(process, turns)
            seen.append(cpu_time.cpu_of(process.pid))
    spent = [later - earlier for earlier, later in pairwise(seen)]
    assert all(step.total >= 0 and step.user >= 0 and step.system >= 0 for step in spent)
    assert spent[1].total > max(spent[0].total, spent[2].total)
    assert 0 <= spent[1].user_share <= 1


def test_cpu_time_of_a_waiting_process_does_not_grow() -> None:
    """While this process works."""
    with child(TURNS) as process:
        work(process, 1)
        before = cpu_time.cpu_of(process.pid)
        sum(range(2_000_000))
        assert cpu_time.cpu_of(process.pid).total - before.total < 0.01


def test_cpu_time_of_an_ended_process_is_an_error() -> None:
    with child(TURNS) as process:
        pass
    with pytest.raises(OSError, match=r".*"):
        cpu_time.cpu_of(process.pid)


def test_busy_time_of_a_core_includes_its_processes() -> None:
    """But for a few clock ticks."""
    core = cpu_time.cores()[0]
    with cpu_time.pinned_to(core), ExitStack() as stack:
        process = stack.enter_context(child(TURNS))
        work(process, 1)
        used, busy = cpu_time.cpu_of(process.pid), cpu_time.busy_seconds(core)
        work(process, 10_000_000)
        used, busy = cpu_time.cpu_of(process.pid) - used, cpu_time.busy_seconds(core) - busy
    assert busy > used.total / 2


def test_cpu_time_includes_ended_children() -> None:
    before = cpu_time.cpu_of_ended_children()
    with child(TURNS) as process:
        work(process, 10_000_000)
    process.wait()
    assert cpu_time.cpu_of_ended_children() > before


def test_readings_add_and_subtract() -> None:
    assert Cpu(3.0, 4, 2) - Cpu(1.0, 1, 1) + Cpu(0.5, 0, 1) == Cpu(2.5, 3, 2)
    assert Cpu(1.0, 3, 1).user_share == 0.75
    assert Cpu(0.001, 0, 0).user_share == 0.0


def test_pinning_a_child_leaves_this_process_unpinned() -> None:
    """The child inherits the core; this process's own set is as before."""
    own, core = os.sched_getaffinity(0), cpu_time.cores()[-1]
    with ExitStack() as stack:
        with cpu_time.pinned_to(core):
            process = stack.enter_context(child(TURNS))
        assert os.sched_getaffinity(process.pid) == {core}
        assert os.sched_getaffinity(0) == own
