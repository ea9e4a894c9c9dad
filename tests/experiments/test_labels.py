"""Labels of policies: without commas, short, and never one label for two policies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from experiments.__main__ import cli
from experiments.commands.options import policies_chosen
from experiments.scenario.files import packaged
from experiments.scenario.labels import policy_label
from experiments.scenario.scenario import Entry
from tests.support.command_line import complaint

LONG: dict[str, Any] = {"name": "steelyard", "a-long-option": [1, 2, 3], "another": "some, text"}


def test_label_of_a_policy_with_options_has_no_comma() -> None:
    assert policy_label({"name": "random"}, {}) == "random"
    assert policy_label({"name": "x", "a": 1, "b": [1, 2]}, {}) == "x (a=1 b=[1 2])"
    label = policy_label(LONG, {})
    assert len(label) == 40
    assert "," not in label


def test_two_policies_never_share_a_label() -> None:
    first = policy_label(LONG, {})
    second = policy_label({**LONG, "another": "thing"}, {first: LONG})
    assert second != first
    assert second.endswith(" 2")
    assert len(second) == 40
    assert policy_label(LONG, {first: LONG}) == first


def test_policies_of_a_live_evaluation_have_such_labels() -> None:
    chosen, control = policies_chosen(
        "random", ('{"name": "c3", "a": 1, "b": 2}', '{"name": "c3", "a": 1, "b": 2}')
    )
    assert list(chosen) == ["random", "c3 (a=1 b=2)", "c3 (a=1 b=2) again"]
    assert control == ("c3 (a=1 b=2)", "c3 (a=1 b=2) again")


@pytest.mark.parametrize(
    ("policy", "label"),
    [
        ("least-in-flight", "least-in-flight"),
        ({"name": "least-in-flight", "choices": 3}, "least-in-flight (choices=3)"),
        ("policies/mine.py:Tempered", "Tempered"),
    ],
)
def test_entry_without_a_label_has_that_of_its_policy(policy: Any, label: str) -> None:
    entry = Entry.model_validate({"policy": policy})
    assert entry.label == label
    assert entry == Entry.model_validate({"policy": policy, "label": label})


def test_label_with_a_comma_in_a_scenario_is_refused(tmp_path: Path) -> None:
    text = packaged()["steady"].read_text(encoding="utf-8")
    path = tmp_path / "mine.toml"
    path.write_text(text + '\n[[entries]]\nlabel = "a, b"\npolicy = "random"\n', encoding="utf-8")
    line = complaint(cli, "experiments", "run", str(path))
    assert "label: must have no comma, got 'a, b'" in line


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("rate = ", "load: rate: needed by mode = 'open'"),
        ("service = ", "regions.0.service: unknown profile 'gamma'"),
        ("policy = ", "entries.mine: unknown policy 'nosuch'"),
    ],
)
def test_mistake_in_a_scenario_is_found_when_it_is_loaded(tmp_path: Path, line: str, message: str) -> None:
    """Also by `show`, which runs nothing."""
    changed = {"rate = ": "", "service = ": 'service = "gamma:5ms"', "policy = ": 'policy = "nosuch"'}
    text = packaged()["bursts"].read_text(encoding="utf-8")
    text += '\n[[entries]]\nlabel = "mine"\npolicy = "random"\n'
    lines = [changed[line] if found.startswith(line) else found for found in text.splitlines()]
    path = tmp_path / "mine.toml"
    path.write_text("\n".join(lines), encoding="utf-8")
    for command in ("show", "run"):
        assert message in complaint(cli, "experiments", command, str(path))
