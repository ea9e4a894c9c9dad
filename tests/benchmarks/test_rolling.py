"""Rolling restarts: verdicts on stages, processes of a session, and all three stages once."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.rolling.command import verdict
from benchmarks.rolling.process_session import end, is_alive, members, wait_for_end
from benchmarks.rolling.stages import QUICK, STAGES, Stage, StageTiming, seconds_of
from experiments.errors import FleetFailedError
from experiments.platform import cpu_time
from tests.benchmarks.commands import measured

STAGE = Stage("reload", requests=100, steps="3 reloads")
LINUX = pytest.mark.skipif(not cpu_time.is_known_here(), reason="processes are read on Linux only")


@pytest.mark.parametrize(
    ("changed", "is_met"),
    [
        ({}, True),
        ({"failed": 1, "failures": {"502": 1}}, False),
        ({"wrong": 1}, False),
        ({"fault": "died"}, False),
    ],
)
def test_one_failed_request_misses_the_bound(changed: dict[str, object], is_met: bool) -> None:
    stage = replace(STAGE, **changed)  # type: ignore[arg-type]
    assert (verdict(stage).subject, verdict(stage).is_met) == ("reload", is_met)


def test_quick_session_is_short() -> None:
    assert (
        sum(seconds_of(name, QUICK) for name in STAGES)
        < 30
        < sum(seconds_of(name, StageTiming()) for name in STAGES)
    )


PARENT = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
print(child.pid, flush=True)
time.sleep(60)
"""


@LINUX
async def test_processes_of_a_session_are_found_and_ended() -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PARENT, stdout=subprocess.PIPE, start_new_session=True
    )
    assert process.stdout is not None
    child = int(await process.stdout.readline())
    assert set(members(process.pid)) == {process.pid, child}
    process.kill()
    await wait_for_end(process.pid, 5.0)
    assert members(process.pid) == [child]
    await end(process.pid)
    assert not is_alive(child)
    await process.communicate()


@LINUX
async def test_waiting_for_the_end_of_a_process_times_out() -> None:
    with pytest.raises(FleetFailedError, match=r"did not end within 0\.1 s"):
        await wait_for_end(os.getpid(), 0.1)


@LINUX
@pytest.mark.second_tier
@pytest.mark.timeout(120)
def test_no_request_fails(tmp_path: Path) -> None:
    """Restarted workers, a reloaded and a replaced balancer fail no request, on any machine."""
    _, found = measured(tmp_path, "rolling", "--quick")
    assert [stage["name"] for stage in found["stages"]] == list(STAGES)
    for stage in found["stages"]:
        assert (stage["fault"], stage["failures"], stage["wrong"]) == ("", {}, 0)
        assert stage["requests"] > 100
