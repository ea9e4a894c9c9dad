"""Policies from files in experiments: labels, paths relative to scenario files, one line for a mistake."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments.errors import BadInputError
from experiments.scenario.files import load_scenario
from experiments.scenario.overrides import Overrides, overridden
from experiments.sweep.cells import content_of

FIRST = "class First:\n    def pick(self, facts, available, now): return available[0]\n"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("a.py", "b.py"):
        (tmp_path / name).write_text(FIRST)
    return tmp_path


def test_entries_of_files_have_short_labels_and_absolute_paths(here: Path) -> None:
    given = Overrides(policies=("a.py:First", "b.py:First", "round-robin"))
    entries = overridden(load_scenario("steady"), given).entries
    assert [entry.label for entry in entries] == ["First", "b.First", "round-robin"]
    assert entries[0].policy.name == f"{here}/a.py:First"


def test_result_of_a_policy_in_a_file_belongs_to_its_version(here: Path) -> None:
    scenario = overridden(load_scenario("steady"), Overrides(policies=("a.py:First", "random")))
    assert f"{here}/a.py" in content_of(scenario, scenario.entries[0])["files"]
    assert "files" not in content_of(scenario, scenario.entries[1])


def test_mistake_in_a_file_is_bad_input_with_its_line(here: Path) -> None:
    (here / "damaged.py").write_text("\n1 / 0\n")
    with pytest.raises(BadInputError, match=r"^entries\.First: .*damaged\.py:2: ZeroDivisionError"):
        overridden(load_scenario("steady"), Overrides(policies=("damaged.py:First",)))
