"""The examples and all ways of deployment use the default policy."""

from __future__ import annotations

import json
import re
import tomllib

import pytest

from balancer.config.loading import Settings
from tests.support.root import ROOT

DEFAULT = Settings.model_fields["policy"].default.name
CONFIGURATIONS = sorted(
    path.relative_to(ROOT).as_posix()
    for folder in ("deploy", "examples")
    for path in (ROOT / folder).rglob("*.toml")
)
STARTED = ("Procfile", "compose.yaml", "Dockerfile", "app.json")


def test_default_is_steelyard() -> None:
    assert DEFAULT == "steelyard"
    assert {
        "deploy/compose/balancer.toml",
        "deploy/kubernetes/balancer.toml",
        "examples/balancer.toml",
    } <= set(CONFIGURATIONS)


def test_app_json_has_the_default() -> None:
    environment = json.loads((ROOT / "app.json").read_text())["env"]
    assert environment["BALANCER_POLICY"]["value"] == DEFAULT


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_configuration_has_the_default(name: str) -> None:
    """Stated, or as the default that a commented line shows."""
    text = (ROOT / name).read_text()
    assert tomllib.loads(text).get("policy", DEFAULT) == DEFAULT
    assert set(re.findall(r'^#? ?policy = "([^"]+)"', text, re.MULTILINE)) <= {DEFAULT}


@pytest.mark.parametrize("name", [*STARTED, *sorted(f"deploy/{p.name}" for p in (ROOT / "deploy").glob("*"))])
def test_no_command_line_or_variable_sets_another(name: str) -> None:
    path = ROOT / name
    files = [each for each in path.rglob("*") if each.is_file()] if path.is_dir() else [path]
    for file in files:
        text = file.read_text(encoding="utf-8")
        stated = re.findall(r"--policy[ =\",]+([\w-]+)|BALANCER_POLICY[\"']?\s*[=:]\s*[\"']?([\w-]+)", text)
        assert {one or other for one, other in stated} <= {DEFAULT}, file
