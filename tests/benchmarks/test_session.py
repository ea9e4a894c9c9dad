"""Session of a benchmark: exit codes, JSON file, progress lines, and interruption."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from benchmarks.__main__ import cli
from experiments.errors import STOPPED, BadInputError
from experiments.platform.cpu_time import is_known_here
from experiments.platform.session import BoundVerdict, Session
from experiments.platform.terminal import BOUND_MISSED
from tests.support.command_line import complaint

MET, MISSED, NOT_JUDGED = (BoundVerdict("get", "at most 2", is_met, "3") for is_met in (True, False, None))


@pytest.mark.parametrize(
    ("verdicts", "is_checked", "code"),
    [
        ([MET, MISSED], True, BOUND_MISSED),
        ([MET, MISSED], False, 0),
        ([MET, NOT_JUDGED], True, 0),
        ([], True, 0),
    ],
)
def test_exit_code(verdicts: list[BoundVerdict], is_checked: bool, code: int) -> None:
    assert Session(is_checked=is_checked).conclude(verdicts) == code


def test_json_has_circumstances_bounds_and_results(tmp_path: Path) -> None:
    file = tmp_path / "results.json"
    Session(file).conclude([MISSED], runs=[1, 2])
    found = json.loads(file.read_text(encoding="utf-8"))
    assert found["bounds"] == [{"subject": "get", "bound": "at most 2", "is_met": False, "found": "3"}]
    assert (found["runs"], found["was_stopped"]) == ([1, 2], False)
    assert {"measured_at", "machine", "interpreter", "build", "versions"} <= set(found)


def test_file_in_a_missing_folder_is_refused_before_measuring(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="--json"):
        Session(tmp_path / "missing" / "results.json")


def test_interruption_keeps_the_results(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The exit code is that of an interruption, even if a bound is missed."""
    session, folders = Session(tmp_path / "results.json", is_checked=True), list[Path]()

    async def work(folder: Path) -> None:
        folders.append(folder)
        session.run_ended("first", "5 ms")
        raise asyncio.CancelledError

    session.measure(work, 2)
    assert not folders[0].exists()
    assert session.conclude([MISSED]) == STOPPED
    assert json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))["was_stopped"]
    assert "[1/2" in capsys.readouterr().out


def test_invalid_run_shows_its_fault_instead_of_figures(capsys: pytest.CaptureFixture[str]) -> None:
    Session().run_ended("nginx", "5 ms", "died")
    output = capsys.readouterr().out
    assert "nginx: INVALID: died" in output
    assert "5 ms" not in output


def test_table_shows_every_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    Session().conclude([MET, MISSED, NOT_JUDGED])
    output = capsys.readouterr().out
    assert all(word in output for word in ("met", "MISSED", "not judged"))


@pytest.mark.skipif(not is_known_here(), reason="the commands read processor time as Linux accounts for it")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("cost", "--blocks", "0"), "'--blocks': 0 is not in the range"),
        (("cost", "--duration", "soon"), "--duration: must be a duration such as 3s or 300ms, from 100ms"),
        (("cost", "--duration", "1ms"), "from 100ms to 600s, got '1ms'"),
        (("cost", "--pin", "three"), "'--pin': 'three' is not one of"),
        (("cost", "--case", "put"), "'--case': 'put' is not one of"),
        (
            ("cost", "--peers", "apache"),
            "--peers: unknown 'apache'; known: nginx, haproxy, envoy, vllm-router, aiohttp, relay, or none",
        ),
        (("cost", "--policies", "p2x"), "--policies: unknown policy 'p2x'"),
        (("cost", "--policies", "single-region"), "--policies: "),
        (("cost", "--against", "/nonexistent/python"), "--against: no program '/nonexistent/python'"),
        (("cost", "--against", "false"), "has no Steelyard installed"),
        (("cost", "--policies", ","), "--policies: name at least one"),
        (("cost", "--json", "/nonexistent/file.json"), "--json: /nonexistent is not a directory"),
        (("storm", "--rate", "0"), "'--rate': 0.0 is not in the range"),
        (("storm", "--peers", "apache"), "--peers: unknown 'apache'; known: nginx, haproxy, or none"),
        (("storm", "--policy", "p2x"), "unknown policy 'p2x'"),
        (("storm", "--json", "/nonexistent/file.json"), "--json: /nonexistent is not a directory"),
        (("storm", "--plots", "/proc/plots"), "--plots: /proc/plots"),
        (("slow-clients", "--clients", "0"), "'--clients': 0 is not in the range"),
        (("slow-clients", "--pace", "never"), "--pace: must be a duration"),
        (("slow-clients", "--peers", "apache"), "--peers: unknown 'apache'"),
        (("slow-clients", "--policy", "p2x"), "unknown policy 'p2x'"),
        (
            ("slow-clients", "--kinds", "head,pings"),
            "--kinds: unknown 'pings'; known: head, body, read, mixed, resets, continuation, streams, tunnels",
        ),
        (("slow-clients", "--json", "/nonexistent/file.json"), "--json: /nonexistent is not a directory"),
        (("calibration", "--methods", "gut"), "unknown 'gut'; known: student"),
        (("calibration", "--blocks", "7"), "at least 8"),
        (("calibration", "--policy", "x"), "name a --scenario"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(arguments: tuple[str, ...], message: str) -> None:
    """The line names the option and what is allowed; no process is started."""
    assert message in complaint(cli, "benchmarks", *arguments)
