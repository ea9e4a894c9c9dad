"""The examples and all ways of deployment use the default policy."""

from __future__ import annotations

import json
import re
import tomllib

from balancer.config.loading import Settings
from tests.support.root import ROOT

DEFAULT = Settings.model_fields["policy"].default.name
DEPLOYED = [path for path in (ROOT / "deploy").rglob("*") if path.is_file()]


def test_default_is_steelyard() -> None:
    assert DEFAULT == "steelyard"


def test_app_json_has_the_default() -> None:
    environment = json.loads((ROOT / "app.json").read_text())["env"]
    assert environment["BALANCER_POLICY"]["value"] == DEFAULT


def test_configurations_have_the_default() -> None:
    """Stated, or as the default that a commented line shows."""
    paths = [path for path in (*DEPLOYED, *(ROOT / "examples").iterdir()) if path.suffix == ".toml"]
    assert len(paths) > 3
    for path in paths:
        text = path.read_text()
        assert tomllib.loads(text).get("policy", DEFAULT) == DEFAULT, path
        assert set(re.findall(r'^#? ?policy = "([^"]+)"', text, re.MULTILINE)) <= {DEFAULT}, path


def test_no_command_line_or_variable_sets_another() -> None:
    started = (ROOT / name for name in ("Procfile", "compose.yaml", "Dockerfile", "app.json"))
    for file in (*started, *DEPLOYED):
        text = file.read_text(encoding="utf-8")
        stated = re.findall(r"--policy[ =\",]+([\w-]+)|BALANCER_POLICY[\"']?\s*[=:]\s*[\"']?([\w-]+)", text)
        assert {one or other for one, other in stated} <= {DEFAULT}, file
