"""The parts of both tiers: what they name exists, and a part without enough time is not begun or is stopped."""

from __future__ import annotations

import subprocess
import sys
import time
from math import inf
from pathlib import Path

import pytest

from tests import parts
from tests.interpreters import Choice, choose, claimed, version_of
from tests.parts import ROOT, Part, Runner, first_tier, other_interpreters, second_tier


def test_every_path_of_a_part_exists() -> None:
    for part in (*first_tier(), *second_tier()):
        for command in part.commands:
            for path in (word.removeprefix("--ignore=") for word in command):
                assert not path.startswith("tests") or (ROOT / path).exists(), path


def exits(code: int, seconds: float = 60.0) -> Part:
    """A part whose only command exits with `code`; its name is that code."""
    return Part(str(code), seconds, ((sys.executable, "-S", "-c", f"raise SystemExit({code})"),))


def test_failed_part_does_not_stop_others(capsys: pytest.CaptureFixture[str]) -> None:
    runner = Runner(None, time.monotonic() + 1000)
    runner.run([exits(1), exits(0), exits(3)])
    assert sorted(runner.failed) == ["1", "3"]
    assert "--- 0: passed" in capsys.readouterr().out


def test_part_that_does_not_fit_is_named_and_not_started() -> None:
    runner = Runner(None, time.monotonic() - 1)
    runner.run([exits(1)])
    assert (runner.failed, runner.left_out) == ([], ["1 (takes 60 s, 0 s were left)"])


@pytest.mark.parametrize("is_ignored", [False, True])
def test_part_that_takes_far_too_long_is_stopped(
    is_ignored: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where SIGINT is ignored."""
    monkeypatch.setattr(parts, "GRACE", 0.2)
    handler = "SIG_IGN" if is_ignored else "default_int_handler"
    code = f"import signal; signal.signal(signal.SIGINT, signal.{handler}); signal.pause()"
    endless = Part("endless", 0.1, ((sys.executable, "-S", "-c", code),))
    runner = Runner(None, time.monotonic() + 1000)
    runner.run([endless])
    assert runner.failed == []
    assert [part.split(" (")[0] for part in runner.left_out] == ["the rest of endless"]
    assert "--- endless: stopped" in capsys.readouterr().out


def test_stuck_part_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no time is given, as in the first tier."""
    monkeypatch.setattr(parts, "GRACE", 0.2)
    monkeypatch.setattr(parts, "STUCK", 0.1)
    runner = Runner(None, inf)
    runner.run([Part("stuck", 0, ((sys.executable, "-S", "-c", "import signal; signal.pause()"),))])
    assert (runner.failed, runner.left_out) == (["stuck"], [])


def test_process_that_ignores_sigint_says_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "GRACE", 0.2)
    code = """if True:
        import signal
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        def wait():
            print("ready", flush=True)
            signal.pause()
        wait()
        """
    argv = (sys.executable, "-S", "-X", "faulthandler", "-c", code)
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        parts.interrupt(process)
        assert "in wait" in process.stdout.read()


CLAIMED = [(3, 11), (3, 12), (3, 13)]


@pytest.mark.parametrize(
    ("installed", "present", "found", "absent"),
    [
        ([(3, 11, 2), (3, 11, 7), (3, 12, 1), (3, 13, 0)], (3, 11, 7), [(3, 11, 2), (3, 13, 0)], ()),
        ([(3, 10, 1), (3, 11, 2), (3, 14, 0)], (3, 12, 0), [(3, 11, 2)], ("3.13",)),
        ([(3, 11, 9), (3, 13, 0), (3, 13, 2)], (3, 13, 2), [(3, 11, 9)], ("3.11.2",)),
        ([], (3, 12, 0), [], ("3.11.2", "3.13")),
        ([(3, 11, 2)], (3, 11, 2), [], ("3.13",)),
        ([(3, 11, 2), (3, 13, 1)], (3, 14, 0), [(3, 11, 2), (3, 13, 1)], ()),
    ],
)
def test_oldest_and_newest_interpreter_are_chosen(
    installed: list[tuple[int, int, int]],
    present: tuple[int, int, int],
    found: list[tuple[int, int, int]],
    absent: tuple[str, ...],
) -> None:
    """Without the one that runs the tests anyway; absent ones are named."""
    choice = choose({version: f"/bin/{version}" for version in installed}, CLAIMED, present)
    assert (list(choice.found), choice.absent) == (found, absent)
    assert all(name in str(choice) for name in absent)


def test_an_interpreter_has_an_environment_and_the_first_tier() -> None:
    made, tested = other_interpreters(Choice({(3, 11, 2): "/usr/bin/python3"}))
    make = ("make", "VENV=.venv-3.11.2", "PYTHON=/usr/bin/python3", ".venv-3.11.2/installed-dev")
    assert (made.is_alone, made.commands) == (True, (make,))
    assert tested.commands[0] == make
    assert tested.commands[1][0] == ".venv-3.11.2/bin/python"
    assert other_interpreters(Choice()) == []


def test_only_released_interpreters_count(tmp_path: Path) -> None:
    """This one does; a program that fails, prints something else or is absent does not."""
    assert version_of(sys.executable) == sys.version_info[:3]
    for name, text in (("fails", "exit 1"), ("prints", "echo hello"), ("early", "echo 3 15 0 alpha")):
        file = tmp_path / name
        file.write_text(f"#!/bin/sh\n{text}\n")
        file.chmod(0o755)
        assert version_of(str(file)) is None
    assert version_of(str(tmp_path / "absent")) is None
    assert claimed()[0] == (3, 11)
