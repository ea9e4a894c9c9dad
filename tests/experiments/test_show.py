"""`experiments show`: what a scenario, a results directory or a load curve holds, without writing anything."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from experiments.__main__ import cli
from experiments.results.directory import load_results
from experiments.scenario.files import load_scenario, packaged
from tests.support.command_line import run_in_process
from tests.support.result_sets import write_results


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


def test_a_results_directory_is_shown_and_not_changed(tmp_path: Path) -> None:
    write_results(tmp_path / "r", blocks=2, requests=50)
    before = sorted(tmp_path.rglob("*"))
    text = " ".join(shown(str(tmp_path / "r")).split())
    results = load_results(tmp_path / "r")
    assert results.campaign.command in text
    assert f"runs {len(results.runs)} of {len(results.campaign.plan)}" in text
    assert "No verdict: each ran twice" in text
    assert sorted(tmp_path.rglob("*")) == before


def test_results_of_a_stopped_campaign_say_so(tmp_path: Path) -> None:
    write_results(tmp_path / "r", blocks=1, requests=20, stop_after=3)
    write_results(tmp_path / "whole", blocks=1, requests=20)
    assert "INCOMPLETE  7 planned runs are missing" in shown(str(tmp_path / "r")).splitlines()
    assert "INCOMPLETE" not in shown(str(tmp_path / "whole"))


def test_results_without_an_answer_name_the_report(tmp_path: Path) -> None:
    """The terminal has no kinds of errors."""
    write_results(tmp_path / "r", blocks=1, requests=20, failures=1.0)
    text = " ".join(shown(str(tmp_path / "r")).split())
    assert "No verdict: no run had a success. The report has the kinds of errors." in text


def test_help_imports_no_large_package() -> None:
    """The group's help shows at once."""
    code = (
        "import sys; from experiments.__main__ import cli; cli.main(['--help'], standalone_mode=False);"
        "print(sorted({'numpy', 'matplotlib', 'aiohttp', 'asyncio', 'jinja2', 'pydantic', 'rich'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("[]\n")


def test_policy_is_shown_with_its_options() -> None:
    done = run_in_process(cli, "experiments", "show", "least-in-flight")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("least-in-flight: ")
    assert "choices" in done.stdout
    assert "2 by default; number of random candidates" in done.stdout
    assert "the sum of:" not in done.stdout
    default = run_in_process(cli, "experiments", "show", "steelyard").stdout
    assert re.search(r"the sum of:\nconnect +time .*\ndistance +one .*\nservice (.*\n){7}margin ", default)
    assert "least-in-flight by default" in run_in_process(cli, "experiments", "show", "region-aware").stdout
    assert run_in_process(cli, "experiments", "show", "least-in-flight", "--measure", "p50").returncode == 2


def test_policy_of_a_file_is_shown(tmp_path: Path) -> None:
    """With meaning and bounds of its options, and no reference to a page where it is not."""
    (tmp_path / "mine.py").write_text(
        '''from typing import Annotated
from policies.options import above, between
class Mine:
    """Mine alone."""
    def __init__(self, *, speed: Annotated[float, "how fast", above(0), between(-1, 9)] = 1.0, of=[]): ...
    def pick(self, facts, available, now): return available[0]
'''
    )
    text = shown(f"{tmp_path}/mine.py:Mine")
    assert text.splitlines()[1:] == [
        "speed  1.0 by default; how fast; > 0 and from -1 to 9", "of     [] by default"
    ]  # fmt: skip
    assert text.splitlines()[0].endswith("mine.py:Mine: Mine alone.")
    done = run_in_process(cli, "experiments", "show", "no.such:Class")
    assert (done.returncode, done.stderr) == (2, "experiments: no module 'no' is installed\n")
    done = run_in_process(cli, "experiments", "show", "results/12:30")
    assert done.stderr.startswith("experiments: results/12:30: no such scenario, policy, results directory")


def test_name_below_results_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_results(tmp_path / "results" / "mine", blocks=1, requests=60)
    done = run_in_process(cli, "experiments", "show", "mine")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("regions: ")


@pytest.mark.parametrize("group", [(), ("reproduce",)])
def test_help_of_a_group_has_a_whole_line_for_each_command(group: tuple[str, ...]) -> None:
    done = run_in_process(cli, "experiments", *group, "--help")
    rows = done.stdout.partition("Commands:\n")[2].partition("\n\n")[0]
    assert "..." not in rows
    assert sum(row.startswith("  ") and row[2] != " " for row in rows.splitlines()) >= 6
