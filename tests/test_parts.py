"""The parts of both tiers: what they name exists, and a part without enough time is not begun or is stopped."""

from __future__ import annotations

import subprocess
import sys
import time
from math import inf
from pathlib import Path

import pytest

from tests import parts
from tests.parts import (
    Choice,
    Part,
    choose,
    claimed,
    first_tier,
    other_interpreters,
    run,
    second_tier,
    version_of,
    with_word,
)
from tests.support.root import ROOT

WAITS = "import signal; signal.signal(signal.SIGINT, signal.{}); signal.pause()"


def commands_of(part: Part) -> tuple[parts.Command, ...]:
    return (*part.commands, *part.beside)


def test_every_path_of_a_part_exists() -> None:
    for part in (*first_tier(), *second_tier(Choice({(3, 13, 0): "/usr/bin/python3"}))):
        for command in commands_of(part):
            for path in (word.removeprefix("--ignore=") for word in command):
                assert not path.startswith("tests") or (ROOT / path).exists(), path


def test_every_file_of_the_second_tier_is_in_a_part() -> None:
    words = {word for part in second_tier(Choice()) for command in commands_of(part) for word in command}
    assert set(with_word("second_tier", "tests")) <= words


def test_files_are_chosen_by_what_they_say() -> None:
    """So no mark of the second tier is set elsewhere."""
    assert "tests/deploy/test_image.py" in with_word("second_tier", "tests/deploy")
    assert "tests/deploy/test_systemd.py" not in with_word("second_tier", "tests/deploy")
    assert with_word("second_tier", "tests", but=["tests"]) == ()
    others = [path for path in (ROOT / "tests").rglob("*.py") if not path.name.startswith("test_")]
    found = [path.name for path in others if "mark.second_tier" in path.read_text(encoding="utf-8")]
    assert found == []


def python(name: str, code: str, seconds: float = 60.0) -> Part:
    """A part whose only command runs this code."""
    return Part(name, seconds, ((sys.executable, "-S", "-c", code),))


def test_failed_part_does_not_stop_others(capsys: pytest.CaptureFixture[str]) -> None:
    parts = [python(str(code), f"raise SystemExit({code})") for code in (1, 0, 3)]
    assert run(parts, (), time.monotonic() + 1000).failed == ["1", "3"]
    assert "--- 0: passed" in capsys.readouterr().out


def test_failed_command_ends_its_part(tmp_path: Path) -> None:
    first, second = python("", "raise SystemExit(1)"), python("", f"open({str(tmp_path / 'file')!r}, 'x')")
    assert run([Part("two", 60.0, first.commands + second.commands)], (), inf).failed == ["two"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("failing", [0, 1])
def test_part_fails_with_either_of_two_commands_at_once(failing: int) -> None:
    first, second = (python("", f"raise SystemExit({at == failing})").commands[0] for at in range(2))
    assert run([Part("two", 60.0, (first,), beside=(second,))], (), inf).failed == ["two"]


def test_bytecode_is_kept_in_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the environment says: without, every process compiles all sources, a second and more each time."""
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    assert run([python("", "import sys; sys.exit(sys.dont_write_bytecode)")], (), inf).failed == []


def test_part_that_does_not_fit_is_named_and_not_started() -> None:
    outcome = run([python("late", "raise SystemExit(1)")], (), time.monotonic() - 1)
    assert (outcome.failed, outcome.left_out) == ([], ["late (takes 60 s, 0 s were left)"])


@pytest.mark.parametrize("handler", ["default_int_handler", "SIG_IGN"])
def test_part_that_takes_far_too_long_is_stopped(
    handler: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where SIGINT is ignored."""
    monkeypatch.setattr(parts, "GRACE_S", 0.2)
    outcome = run([python("endless", WAITS.format(handler), 0.1)], (), time.monotonic() + 1000)
    assert outcome.failed == []
    assert [part.split(" (")[0] for part in outcome.left_out] == ["the rest of endless"]
    assert "--- endless: stopped" in capsys.readouterr().out


def test_stuck_part_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no time is given, as in the first tier."""
    monkeypatch.setattr(parts, "GRACE_S", 0.2)
    monkeypatch.setattr(parts, "STUCK_S", 0.1)
    outcome = run([python("stuck", WAITS.format("SIG_IGN"), 0.0)], (), inf)
    assert (outcome.failed, outcome.left_out) == (["stuck"], [])


def test_process_that_ignores_sigint_says_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the command has started it, as pytest-xdist does."""
    monkeypatch.setattr(parts, "GRACE_S", 0.2)
    code = """if True:
        import signal
        def wait():
            print("ready", flush=True)
            signal.pause()
        wait()
        """
    argv = (
        "sh",
        "-c",
        "trap '' INT; \"$@\" & wait",
        "sh",
        sys.executable,
        "-S",
        "-X",
        "faulthandler",
        "-c",
        code,
    )
    with subprocess.Popen(
        argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        parts.interrupt(process)
        assert b"in wait" in process.stdout.read()


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


def test_an_interpreter_has_an_environment_and_its_tests() -> None:
    [part] = other_interpreters(Choice({(3, 11, 2): "/usr/bin/python3"}))
    make, tests = part.commands
    assert make == ("make", "VENV=.venv-3.11.2", "PYTHON=/usr/bin/python3", ".venv-3.11.2/installed-dev")
    assert ".venv-3.11.2/bin/python" in tests
    assert other_interpreters(Choice()) == []


def test_coverage_is_measured_once() -> None:
    """On an interpreter where it costs little, and else in a part of its own."""
    for choice in (Choice({(3, 11, 2): "a"}), Choice({(3, 11, 2): "a", (3, 13, 0): "b"})):
        assert (
            sum("--cov=balancer" in command for part in second_tier(choice) for command in part.commands) == 1
        )


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
