"""Policies from files in experiments: labels, paths relative to scenario files, one line for a mistake."""

from __future__ import annotations

import hashlib
import pickle
from pathlib import Path

import pytest
from click.testing import CliRunner

from experiments import scenarios
from experiments.__main__ import cli
from experiments.commands.sweep import matrix_grid
from experiments.errors import BadInputError
from experiments.inference.run import SimulatedRunner
from experiments.results.directory import PlannedRun, PolicyFile, load_results
from experiments.run_data import Run
from experiments.running.execute import execute, prepare
from experiments.running.runner import Observer
from experiments.scenario.files import load_scenario
from experiments.scenario.overrides import Overrides, overridden
from experiments.scenario.scenario import Scenario
from experiments.simulator.run import simulate
from experiments.sweep.cells import cells_of, content_of
from experiments.sweep.grid import Grid
from experiments.sweep.outcome import compute, version_of
from policies import registry
from policies.loading.library import Library

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


def test_two_versions_of_a_class_are_swept_under_different_labels(here: Path) -> None:
    """As in `run`; one that is named twice is still an error."""
    grid = matrix_grid("steady", "a.py:First,b.py:First,random", 1, quick=True)
    assert [(one.name, one.policy.name) for one in grid.policies] == [
        ("First", f"{here}/a.py:First"),
        ("b.First", f"{here}/b.py:First"),
        ("random", "random"),
    ]
    for twice in ("random,random", "a.py:First,a.py:First"):
        with pytest.raises(BadInputError, match="appears twice"):
            matrix_grid("steady", twice, 1, quick=True)


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Begin with an empty library, as another process does."""
    monkeypatch.setattr(registry, "LIBRARY", Library())


class ChangingWorld(SimulatedRunner):
    """A world whose balancers report one version of the file after the other."""

    def __init__(self, path: Path, versions: list[str]) -> None:
        super().__init__()
        self._path = path
        self._versions = iter(versions)

    def run(self, scenario: Scenario, planned: PlannedRun, observer: object = None) -> Run:
        run = super().run(scenario, planned)
        file = {"path": str(self._path), "version": next(self._versions)}
        status = run.facts.status | {"policy": run.facts.status["policy"] | {"files": [file]}}
        return Run(run.facts.model_copy(update={"status": status}), run.samples)


def test_result_of_a_policy_in_a_file_belongs_to_its_version(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scenario = overridden(load_scenario("steady"), Overrides(policies=("a.py:First", "random")))
    before = content_of(scenario, scenario.entries[0])
    assert before["files"] == {f"{here}/a.py:First": digest(FIRST)}
    assert "files" not in content_of(scenario, scenario.entries[1])
    forget(monkeypatch)
    (here / "a.py").write_text(FIRST + "# changed\n")
    assert content_of(scenario, scenario.entries[0]) != before


def test_process_that_computes_a_cell_uses_the_contents_sent(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that is changed during a sweep, or is absent on another machine, does not matter."""
    grid = Grid.model_validate({
        "name": "grid", "scenarios": ["steady"], "policies": [f"{here}/a.py:First"], "seeds": 1, "quick": True,
    })  # fmt: skip
    [cell] = pickle.loads(pickle.dumps(cells_of(grid, version_of(simulate))))
    forget(monkeypatch)
    (here / "a.py").unlink()
    outcome = compute(cell, simulate, keep_samples=False)
    assert outcome.message is None


@pytest.mark.usefixtures("unrendered")
def test_campaign_records_the_versions_of_its_files(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """campaign.json, the report and `show` have path and version."""
    arguments = ["run", "steady", "--simulated", "--quick", "--policies", "a.py:First,random", "--out", "out"]
    assert CliRunner().invoke(cli, arguments, catch_exceptions=False).exit_code == 0
    campaign = load_results(here / "out").campaign
    assert campaign.policy_files == (PolicyFile(path=f"{here}/a.py", version=digest(FIRST)),)
    line = f"{here}/a.py, version {digest(FIRST)}"
    assert f"Policy file: {line}." in (here / "out" / "report.html").read_text()
    shown = CliRunner().invoke(cli, ["show", "out"], catch_exceptions=False, env={"COLUMNS": "300"})
    assert line in shown.output


def test_campaign_ends_when_a_file_changes(here: Path) -> None:
    """Runs of two versions cannot be compared; finished runs stay."""
    scenario = overridden(load_scenario("steady"), Overrides(policies=("a.py:First",), quick=True, blocks=2))
    campaign = prepare(scenario, "experiments run", here / "out")
    world = ChangingWorld(here / "a.py", [digest(FIRST), "222222222222"])
    message = (
        rf"^{here}/a\.py was changed during the campaign: version {digest(FIRST)} before, 222222222222 now; "
    )
    with pytest.raises(BadInputError, match=message):
        execute(campaign, here / "out", world, Observer())
    assert len(load_results(here / "out").runs) == 1


ORDERED = """
class Ordered:
    def __init__(self, *, order: str = "", opens=None): assert opens is None
    def pick(self, facts, available, now): return available[0]
"""


@pytest.mark.usefixtures("unrendered")
def test_text_with_a_colon_is_no_module(here: Path) -> None:
    """Of an option that names no policy, in campaigns and in sweeps."""
    (here / "a.py").write_text(ORDERED)
    policy = '{ name = "a.py:Ordered", order = "us:emea" }'
    scenario = (Path(scenarios.__file__).parent / "steady.toml").read_text()
    (here / "mine.toml").write_text(f'{scenario}\n[[entries]]\nlabel = "ordered"\npolicy = {policy}\n')
    (here / "grid.toml").write_text(
        f'name = "g"\nscenarios = ["steady"]\nseeds = 1\npolicies = [{{ label = "o", policy = {policy} }}]\n'
    )
    for arguments in (["run", "mine.toml", "--simulated", "--quick"], ["sweep", "grid.toml", "--dry-run"]):
        assert CliRunner().invoke(cli, arguments, catch_exceptions=False).exit_code == 0


KEYED = """
class Keyed:
    def pick(self, facts, available, now): return available[len(facts.key or "")]
"""


@pytest.mark.usefixtures("unrendered")
def test_policies_that_pick_by_key_are_named_where_requests_have_none(here: Path) -> None:
    """Also those of users, and those that are wrapped; once, and nothing where there are none."""
    (here / "a.py").write_text(KEYED)
    (here / "grid.toml").write_text(
        'name = "g"\nscenarios = ["steady"]\nseeds = 2\nquick = true\npolicies = ["random", "ring-hash", '
        '"a.py:Keyed", { label = "wrapped", policy = { name = "region-aware", inner = "maglev" } }]\n'
    )
    run = ["run", "steady", "--simulated", "--quick", "--out"]
    said = "Requests here have no keys, so these pick as they do without one: "
    for arguments, labels in (
        ([*run, "one", "--policies", "ring-hash,a.py:Keyed,random"], "ring-hash, Keyed."),
        ([*run, "two", "--policies", "round-robin,random"], ""),
        (["sweep", "grid.toml", "--workers", "1"], "ring-hash, Keyed, wrapped."),
    ):
        ran = CliRunner().invoke(cli, arguments, catch_exceptions=False, env={"COLUMNS": "300"})
        assert ran.exit_code == 0
        assert ran.output.count(said) == bool(labels)
        assert said + labels in ran.output or not labels


def test_retries_and_hedges_have_the_key_of_their_request(here: Path) -> None:
    """A policy that rejects whatever has none rejects nothing."""
    (here / "a.py").write_text(
        "from policies.errors import Overloaded\nclass Strict:\n"
        " def pick(self, facts, available, now):\n"
        "  if facts.key is None: raise Overloaded\n"
        "  return available[0]\n"
    )
    rows = "".join(f"{number / 100},user-{number % 9}\n" for number in range(1000))
    (here / "arrivals.csv").write_text(f"at,key\n{rows}")
    scenario = Scenario.model_validate({
        "name": "keyed", "question": "?", "baseline": "a", "home_region": "here", "warmup": 0,
        "load": {"mode": "open", "arrivals": "replay", "file": "arrivals.csv", "duration": 10.0},
        "balancer": {"hedging": {"enabled": True, "share": 0.2}, "retries": 2},
        "regions": [{"name": "here", "workers": 2, "rtt": 0.001, "service": "lognormal:5ms,1.5", "slots": 9}],
        "events": [{"at": 5.0, "kind": "down", "target": "here-0"}],
        "entries": [{"label": "a", "policy": f"{here}/a.py:Strict"}],
    })  # fmt: skip
    run = simulate(scenario, scenario.entries[0], 0, 0, 1)
    status = run.facts.status
    assert min(status["retried"], status["hedged"]) > 0
    assert run.samples.ok.all()


def test_time_of_day_in_a_scenario_is_refused(here: Path) -> None:
    """And not given to the policy as a text."""
    (here / "a.py").write_text(ORDERED)
    scenario = (Path(scenarios.__file__).parent / "steady.toml").read_text()
    entry = 'label = "ordered"\npolicy = { name = "a.py:Ordered", opens = 07:30:00 }\n'
    (here / "mine.toml").write_text(f"{scenario}\n[[entries]]\n{entry}")
    with pytest.raises(BadInputError, match=r"^entries\.ordered: .*\.opens: must be text, numbers, "):
        overridden(load_scenario("mine.toml"), Overrides())


def test_mistake_in_a_file_is_bad_input_with_its_line(here: Path) -> None:
    (here / "damaged.py").write_text("\n1 / 0\n")
    with pytest.raises(BadInputError, match=r"^entries\.First: .*damaged\.py:2: ZeroDivisionError"):
        overridden(load_scenario("steady"), Overrides(policies=("damaged.py:First",)))
