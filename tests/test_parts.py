"""The parts of both tiers: what they name exists, and a part without enough time is not begun or is stopped."""

from __future__ import annotations

import subprocess
import sys
import time
from math import inf

import pytest

from tests import parts
from tests.parts import ROOT, Part, Runner, first_tier, second_tier


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
