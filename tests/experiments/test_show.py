"""`experiments show`: what a scenario, a results directory or a load curve holds, without writing anything."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from experiments.__main__ import cli
from experiments.results.directory import load_results
from experiments.scenario.files import load_scenario, packaged
from experiments.scenario.scenario import Scenario


def shown(*text: str) -> str:
    ran = CliRunner().invoke(cli, ["show", *text], standalone_mode=False)
    assert ran.exception is None
    return ran.output


@pytest.mark.parametrize("name", sorted(packaged()))
def test_every_packaged_scenario_is_shown(name: str) -> None:
    """Each region, entry and event has a line."""
    lines = shown(name).splitlines()
    kinds = [line.split()[0] for line in lines]
    scenario = load_scenario(name)
    assert lines[0] == f"{name}: {scenario.question}"
    assert kinds.count("region") == len(scenario.regions)
    assert kinds.count("entry") == len(scenario.entries)
    assert kinds.count("event") == len(scenario.events)


def test_a_results_directory_is_shown_and_not_changed(
    make_results: Callable[..., Scenario], tmp_path: Path
) -> None:
    make_results(tmp_path / "r", blocks=2, requests=50)
    before = sorted(tmp_path.rglob("*"))
    text = " ".join(shown(str(tmp_path / "r")).split())
    results = load_results(tmp_path / "r")
    assert results.campaign.command in text
    assert f"runs {len(results.runs)} of {len(results.campaign.plan)}" in text
    assert "No verdict: 2 blocks measured" in text
    assert sorted(tmp_path.rglob("*")) == before


def test_help_imports_no_large_package() -> None:
    """The group's help shows at once."""
    code = (
        "import sys; from experiments.__main__ import cli; cli.main(['--help'], standalone_mode=False);"
        "print(sorted({'numpy', 'matplotlib', 'aiohttp', 'jinja2'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("[]\n")
