"""python -m policies.contract: a row per rule, and exit code 0, 1 or 2."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from policies import contract
from policies.contract import rules, spread
from policies.contract.__main__ import main

FIRST = "class First:\n    def pick(self, facts, available, now): return available[0]\n"


@pytest.fixture
def two_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    """The contract has two rules, which take little time."""
    monkeypatch.setattr(contract, "RULES", (rules.stays_within_the_set, spread.begins_anywhere))


@pytest.mark.usefixtures("two_rules")
def test_broken_rule_is_named_and_ends_with_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "mine.py"
    path.write_text(FIRST)
    assert main([f"{path}:First"]) == 1
    output = capsys.readouterr().out
    heading = output.splitlines()[0]  # with all files that this process has loaded
    assert heading.startswith("First (")
    assert f"{path}, version " in heading
    assert "stays within the set             kept" in output
    assert "begins anywhere                  BROKEN: 100% of the balancers" in output
    assert "of 2 rules." in output


def test_policy_that_fails_at_every_pick_is_tried_a_hundred_times(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each rule ends at the hundredth fault, and nothing is measured."""
    path = tmp_path / "endless.py"
    path.write_text("class Endless:\n    def pick(self, *given):\n        raise RecursionError\n")
    assert main([f"{path}:Endless"]) == 1
    printed = capsys.readouterr().out
    assert (
        "stays within the set             BROKEN: fallback picks: 100, last fault: policy Endless raised"
        in printed
    )
    assert "nothing: fallback picks: 100" in printed


@pytest.mark.usefixtures("two_rules")
def test_policy_of_the_table_keeps_all_rules(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["round-robin"]) == 0
    assert capsys.readouterr().out.endswith("It keeps all 2 rules.\n")


def test_reader_that_leaves_ends_it() -> None:
    """Without a traceback, as `head` does."""
    command = [sys.executable, "-m", "policies.contract", "random"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 1


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("{", "'{' is not JSON"),
        ('{"name": 3}', "policy: must be the name of a policy"),
        ("nope", "unknown policy 'nope'"),
        ("gone.py:First", "gone.py: No such file or directory"),
        ('{"name": "random", "x": 1}', "policy.x: 'random' has no such option"),
    ],
)
def test_bad_input_is_one_line_and_ends_with_2(
    argument: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([argument])
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith("policies.contract: ")
    assert message in error
    assert error.count("\n") == 1
