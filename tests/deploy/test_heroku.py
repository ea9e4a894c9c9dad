"""Heroku and similar platforms: app.json, requirements.txt, and the Procfile run by honcho.

The known keys of app.json are listed here, and an unknown one is an error: Heroku publishes no schema for offline use.
"""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from balancer.__main__ import main
from balancer.config.loading import Settings
from balancer.config.sources import PREFIX
from balancer.configuration import load
from experiments.platform.ports import free_ports
from tests.deploy.programs import Program, commands_on_free_ports, get
from tests.support.command_line import complaint
from tests.support.root import ROOT

APP: dict[str, Any] = json.loads((ROOT / "app.json").read_text(encoding="utf-8"))
PROCFILE = (ROOT / "Procfile").read_text(encoding="utf-8")
KILLED_AFTER, ROUTER_GIVES_UP_AFTER, ROUTER_KEEPS = 30, 30, 90
"""Seconds of Heroku's dyno manager and of its router."""


SIZES = {"eco", "basic", "standard-1x", "standard-2x", "performance-m", "performance-l"}


def test_app_json_has_known_keys_only() -> None:
    assert set(APP) == {
        *("name", "description", "keywords", "success_url"),
        *("buildpacks", "formation", "env"),
    }
    assert re.fullmatch(r"[a-z][a-z0-9-]{1,28}[a-z0-9]", APP["name"])
    assert APP["buildpacks"] == [{"url": "heroku/python"}]
    for process in APP["formation"].values():
        assert process.keys() == {"quantity", "size"}
        assert process["size"] in SIZES
    for variable in APP["env"].values():
        assert variable.keys() in ({"description", "value"}, {"description", "generator"})
        assert variable.get("generator", "secret") == "secret"


def test_variables_of_app_json_are_valid_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Together with the Procfile's file, whose values they replace; a secret is 64 hexadecimal digits."""
    environment = {name: variable.get("value", "a" * 64) for name, variable in APP["env"].items()}
    assert all(name.startswith(PREFIX) for name in environment)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
        key = name.removeprefix(PREFIX).lower().split("__")[0]
        assert key in Settings.model_fields, name
    settings = load(ROOT / "examples" / "balancer.toml", {"listen": "127.0.0.1:0"})
    assert [e.region for e in settings.endpoints] == ["eu", "us"]
    assert settings.home_region == "eu"
    assert settings.admin.token is not None


def test_formation_matches_the_procfile() -> None:
    started = {line.split(":")[0] for line in PROCFILE.splitlines()}
    assert APP["formation"].keys() <= started


def test_default_timeouts_are_within_herokus_limits() -> None:
    timeouts = Settings.model_fields["timeouts"].get_default()
    assert timeouts.shutdown < KILLED_AFTER
    assert timeouts.first_byte < ROUTER_GIVES_UP_AFTER
    assert timeouts.keep_alive > ROUTER_KEEPS


def test_requirements_install_the_project_with_its_constraints() -> None:
    lines = (ROOT / "requirements.txt").read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if not line.startswith("#")] == ["--constraint constraints.txt", "."]


# --- running programs


def test_balancer_starts_from_the_environment_alone() -> None:
    """Without a file: endpoints and all else are BALANCER_…."""
    endpoints = json.dumps([{"id": "a", "address": "http://127.0.0.1:9"}])
    environment = {**os.environ, "PORT": str(next(free_ports(1))), "BALANCER_ENDPOINTS": endpoints}
    with Program([sys.executable, "-m", "balancer", "serve"], environment) as unit:
        assert "1 endpoint, " in unit.line()
        assert unit.stop() == 0


def test_missing_endpoints_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BALANCER_POLICY", "random")
    line = complaint(main, "balancer", "serve")
    assert line == "balancer: endpoints: is required: [[endpoints]] once or more, or [discovery]\n"


@pytest.fixture
def moved(tmp_path: Path) -> tuple[Path, dict[str, str]]:
    """The Procfile with its workers on free ports, and the matching environment of the balancer."""
    commands, environment = commands_on_free_ports(PROCFILE)
    path = tmp_path / "Procfile"
    lines = [f"{name}: {command}" for name, command in commands.items()]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path, environment


@pytest.mark.second_tier
def test_honcho_runs_the_procfile(moved: tuple[Path, dict[str, str]]) -> None:
    """The balancer and its three workers start, a request is served, and SIGTERM ends all of them."""
    procfile, variables = moved
    port = next(free_ports(1))
    bin_ = Path(sys.executable).parent
    environment = {**os.environ, **variables, "PORT": str(port), "PATH": f"{bin_}:{os.environ['PATH']}"}
    command = [sys.executable, "-m", "honcho", "--procfile", str(procfile), "--app-root", str(ROOT), "start"]
    with Program(command, environment) as fleet:
        ready = 0
        while ready < 4:
            line = fleet.line()
            assert line, "honcho has ended by itself"
            ready += " ready on " in line
        answer = get(port, "/work")
        assert (answer.status, answer.fields["X-Worker-Name"][-2:]) == (200, "-0")
        fleet.terminate()
        ended = fleet.rest()
    assert "balancer stopping: 0 in flight" in ended
    assert ended.count("stopped (rc=0)") + ended.count("stopped (rc=-15)") >= 3, ended
