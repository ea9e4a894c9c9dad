"""Grids, knobs and the identity of cells."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from experiments.errors import BadInputError
from experiments.scenario.files import load_scenario, packaged
from experiments.sweep.cells import Cell, cells_of, with_setting
from experiments.sweep.grid import Grid, checked_grid, load_grid
from experiments.sweep.outcome import sources, version_of
from policies import registry
from tests.simulated.fake_simulator import simulate


def grid(**keys: Any) -> Grid:
    base = {"name": "small", "scenarios": ["steady"], "policies": ["random", "least-in-flight"], "seeds": 2}
    return checked_grid(base | keys, "grid.toml")


def cells(code: str = "1", **keys: Any) -> list[Cell]:
    return cells_of(grid(**keys), code)


def test_every_combination_is_one_cell_and_seeds_are_whole_blocks() -> None:
    made = cells(
        scenarios=["steady", "homogeneous"], knobs={"load.rate": [100, 150], "policy.choices": [2, 3]}
    )
    assert len(made) == 2 * 2 * (1 + 2) * 2  # random has no choices and appears once
    assert [cell.seed for cell in made] == [1] * 12 + [2] * 12
    assert len({cell.identity for cell in made}) == len(made)
    assert {cell.scenario.load.rate for cell in made} == {100, 150}
    assert all(len(cell.scenario.entries) == 1 for cell in made)


def test_dotted_and_quoted_knobs_are_the_same() -> None:
    assert grid(knobs={"load": {"rate": [1, 2]}}) == grid(knobs={"load.rate": [1, 2]})


def test_all_scenarios_and_policies() -> None:
    everything = grid(scenarios="all", policies="all")
    with_workers = (name for name in packaged() if not name.startswith("inference-"))
    assert sorted(everything.scenarios) == sorted(with_workers)
    assert [competitor.name for competitor in everything.policies] == registry.known()
    assert cells_of(everything, code="1")


def test_oracle_in_a_grid() -> None:
    made = cells(policies=["oracle-least-work-of-two"], knobs={"policy.choices": [2, 3]}, seeds=1)
    assert [cell.entry.policy.model_dump()["choices"] for cell in made] == [2, 3]


def test_single_region_gets_the_home_region() -> None:
    (cell,) = cells(policies=["single-region"], seeds=1)
    assert cell.entry.policy.model_dump()["region"] == cell.scenario.home_region


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"world": "measured"}, "grid.toml: world: Input should be 'simulated'"),
        ({"sedes": 3}, "grid.toml: sedes: Extra inputs are not permitted; known: name, question, world"),
        ({"seeds": 0}, "grid.toml: seeds: Tuple should have at least 1 item"),
        ({"seeds": [1, 1]}, "seeds: '1' appears twice"),
        ({"policies": ["random", "random"]}, "policies: 'random' appears twice"),
        ({"policies": ["p2x"]}, "policies: unknown 'p2x'; known: "),
        ({"policies": [{"policy": {"name": "random", "choices": 3}}]}, "'random' has no such option"),
        ({"knobs": {"load.rate": []}}, "knobs.load.rate: Tuple should have at least 1 item"),
        ({"knobs": {"load.rat": [1]}}, "knobs: load.rat = 1 in steady: load.rat: Extra inputs"),
        (
            {"knobs": {"load.rate": [-1]}},
            "knobs: load.rate = -1 in steady: load.rate: Input should be greater",
        ),
        ({"knobs": {"load.rate.x": [1]}}, "steady: knobs.load.rate.x: 'rate' is a value and has no keys"),
        ({"knobs": {"regions.mars.rtt": [1]}}, "knobs.regions.mars.rtt: no 'mars'; known: emea, us, asia"),
        ({"knobs": {"policy.alpha": [1]}}, "knobs.policy.alpha: no policy of the grid has an option 'alpha'"),
        ({"knobs": {"blocks": [1, 2]}}, "knobs: one of blocks decides nothing in a run"),
        ({"knobs": {"policy.choices": ["two"]}}, "policies.least-in-flight.choices: must be a whole number"),
    ],
)
def test_invalid_grid_is_one_line(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInputError) as caught:
        cells(**keys)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("ours", "complaint"),
    [
        ("random", None),
        ("random, choices = 2", None),
        ("steelyard", None),
        ("nonsense", "ours: unknown 'nonse"),
    ],
)
def test_ours_is_a_policy_of_the_grid(tmp_path: Path, ours: str, complaint: str | None) -> None:
    """Or a variant of one by a knob; the default may be absent."""
    path = tmp_path / "grid.toml"
    lines = ('name = "g"', f'ours = "{ours}"', 'scenarios = ["steady"]', 'policies = ["random"]', "seeds = 1")
    path.write_text("\n".join(lines), encoding="utf-8")
    if complaint is None:
        assert load_grid(path).ours == ours
    else:
        with pytest.raises(BadInputError, match=f"{complaint}nse'; known: random"):
            load_grid(path)


def test_scenario_files_beside_the_grid(tmp_path: Path) -> None:
    source = packaged()["steady"].read_text(encoding="utf-8")
    (tmp_path / "mine.toml").write_text(source.replace('"steady"', '"mine"'), encoding="utf-8")
    (tmp_path / "grid.toml").write_text(
        'name = "g"\nscenarios = ["mine.toml", "steady"]\npolicies = ["random"]\nseeds = 1\n',
        encoding="utf-8",
    )
    made = cells_of(load_grid(tmp_path / "grid.toml"), code="1")
    assert [cell.scenario.name for cell in made] == ["mine", "steady"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "cannot be read: No such file"),
        ("name = ", "not TOML"),
        (
            'name = "g"\nscenarios = ["nowhere"]\npolicies = ["random"]\nseeds = 1',
            "unknown 'nowhere'; known: ",
        ),
        ('name = "g"\npolicies = ["random"]\nseeds = 1', "scenarios: is needed"),
    ],
)
def test_invalid_grid_file_is_one_line(tmp_path: Path, text: str | None, message: str) -> None:
    if text is not None:
        (tmp_path / "grid.toml").write_text(text, encoding="utf-8")
    with pytest.raises(BadInputError, match=message):
        load_grid(tmp_path / "grid.toml")


# --- identity


def identity(**keys: Any) -> str:
    usual: dict[str, Any] = {"policies": ["least-in-flight"], "seeds": [7]}
    return cells(**usual | keys)[0].identity


def test_cell_has_the_same_identity_in_every_grid() -> None:
    same = identity(name="other", seeds=[7, 8], policies=["least-in-flight", "random"], question="Why?")
    assert same == identity()
    assert identity(knobs={"load.rate": [180.0]}) == identity()  # the scenario's own value


@pytest.mark.parametrize(
    "keys",
    [
        {"code": "2"},
        {"seeds": [8]},
        {"scenarios": ["homogeneous"]},
        {"knobs": {"load.rate": [181]}},
        {"knobs": {"policy.choices": [3]}},
        {"policies": ["random"]},
        {"quick": True},
    ],
)
def test_inputs_of_the_result_change_the_identity(keys: dict[str, Any]) -> None:
    assert identity(**keys) != identity()


SIMULATION = """
import sys
from experiments.scenario.files import load_scenario
from experiments.simulator.run import simulate
scenario = load_scenario("steady").quickened()
for entry in scenario.entries:
    simulate(scenario, entry, 0, 0, 1)
print(*{module.__spec__.name.replace(".", "/") for module in [*sys.modules.values()]
        if getattr(module, "__spec__", None) is not None
        and module.__spec__.name.partition(".")[0] in ("policies", "balancer", "workers", "experiments")})
"""


def test_code_version_covers_what_a_simulation_imports() -> None:
    """By rooms: of reports and sweeps there is nothing, so their changes keep results."""
    ran = subprocess.run(
        [sys.executable, "-c", SIMULATION], capture_output=True, text=True, check=True, timeout=60
    )
    files, loaded = sources(), ran.stdout.split()
    assert len(loaded) > 100
    assert [name for name in loaded if not {f"{name}.py", f"{name}/__init__.py"} & files.keys()] == []
    assert not [name for name in files if name.startswith(("experiments/report", "experiments/sweep"))]


def test_code_version_covers_the_simulation_that_is_given() -> None:
    assert version_of(simulate) == version_of(simulate) != version_of(json.dumps)


def test_knob_creates_a_missing_table() -> None:
    scenario = with_setting(load_scenario("steady"), (("quick.duration", 2.0), ("regions.us.rtt", 0.2)))
    assert (scenario.quick.duration, scenario.regions[1].rtt) == (2.0, 0.2)
