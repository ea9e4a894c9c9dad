"""Fidelity: agreement of simulated and measured runs, misses, and what is not judged.

Runs are synthetic: exponential latencies from a seeded stream, the same measured and simulated, times a factor.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from rich.console import Console

from benchmarks.__main__ import cli
from benchmarks.fidelity import session
from benchmarks.fidelity.agreement import Agreement, ScenarioResult, scenario_result_of
from benchmarks.fidelity.page import write_page
from benchmarks.fidelity.session import (
    AGAIN,
    MEASURED,
    SIMULATED,
    FidelityComparison,
    measure,
    missing,
    otherwise,
    repeatedly,
    scenario_of,
    simulate_again,
)
from benchmarks.fidelity.tables import bounds_of, headline
from experiments.errors import BadInputError
from experiments.inference.run import simulate_beside
from experiments.results.directory import RUNS, PlannedRun, Results, load_results, save_result, set_aside
from experiments.run_data import Kind, Place, Run, WorldName
from experiments.running import execute
from experiments.scenario.overrides import Overrides
from experiments.scenario.scenario import Entry, Scenario
from tests.support.runs import as_planned, run_of, samples_of

COUNT = 3_000
SCALE = {"random": 0.05, "round-robin": 0.03, "round-robin again": 0.03}
Change = Callable[[str, int], dict[str, Any]]


def unchanged(label: str, block: int) -> dict[str, Any]:
    return {}


@pytest.fixture
def scenario() -> Scenario:
    """Two policies and the twin, eight blocks."""
    return scenario_of("homogeneous", ("random", "round-robin"), Overrides(blocks=8))


def synthetic(
    label: str,
    block: int,
    world: WorldName,
    factor: float = 1.0,
    bias: float = 0.0,
    failing: float = 0.0,
    fault: str = "",
    lag: float = 0.0,
) -> Run:
    """Latencies times `factor`, of which a share `lag` is the generator's; worker 0 gets `bias` more than a quarter of
    the requests; a share `failing` fails.
    """
    rng = np.random.default_rng([block, *label.encode()])
    latency = rng.exponential(SCALE[label], COUNT) * factor
    shares = np.array([0.25 + bias, *(3 * [0.25 - bias / 3])])
    worker = np.repeat(np.arange(4), np.round(shares * COUNT).astype(int))[:COUNT]
    kind = np.where(np.arange(COUNT) % 1000 < 1000 * failing, Kind.TIMEOUT, Kind.OK).astype(np.int64)
    due = np.arange(COUNT) / 120
    return run_of(
        samples_of(due, latency, sent_at=due + lag * latency, kind=kind, worker=worker),
        world=world,
        label=label,
        policy={"name": label},
        block=block,
        seed=block,
        places=tuple(Place(worker=f"here-{n}", region="here") for n in range(4)),
        invalid_reasons=(fault,) if fault else (),
    )


def world_of(scenario: Scenario, directory: Path, world: WorldName, change: Change = unchanged) -> Results:
    """All runs of a world, in memory."""
    campaign = execute.prepare(scenario, "python -m benchmarks fidelity", directory, world=world)
    runs = (
        as_planned(synthetic(p.label, p.block, world, **change(p.label, p.block)), p) for p in campaign.plan
    )
    return Results(directory, campaign, tuple(runs))


def write_world(scenario: Scenario, directory: Path, world: WorldName, change: Change = unchanged) -> None:
    results = world_of(scenario, directory, world, change)
    for planned, run in zip(results.campaign.plan, results.runs, strict=True):
        save_result(run, planned, directory)


def write_both(scenario: Scenario, folder: Path, simulated: Change) -> None:
    write_world(scenario, folder / MEASURED, "measured")
    write_world(scenario, folder / SIMULATED, "simulated", simulated)


def both(
    scenario: Scenario, folder: Path, measured: Change = unchanged, simulated: Change = unchanged
) -> ScenarioResult:
    """Result of one scenario in both worlds."""
    return scenario_result_of(
        world_of(scenario, folder / MEASURED, "measured", measured),
        world_of(scenario, folder / SIMULATED, "simulated", simulated),
    )


def found(result: ScenarioResult, label: str) -> dict[str, Agreement]:
    (row,) = (row for row in result.rows if row.label == label)
    return {one.quantity: one for one in row.agreements}


def test_equal_worlds_agree_in_everything(scenario: Scenario, tmp_path: Path) -> None:
    """The A/A control has no row; the ranking is the same."""
    result = both(scenario, tmp_path)
    assert [row.label for row in result.rows] == ["random", "round-robin"]
    assert all(one.is_met and one.distance == 0 for row in result.rows for one in row.agreements)
    assert result.orders == (("round-robin", "random"), ("round-robin", "random"))
    assert result.ranking_is_met is True
    assert "none missed" in headline([result])


def always(**keys: Any) -> Change:
    """The same change of every run."""
    return lambda label, block: keys


def noisy(noise: float) -> Change:
    """A mean distance of 2 %, with noise between blocks."""
    return lambda label, block: {"factor": float(1.02 * np.exp(noise * (-1) ** block))}


@pytest.mark.parametrize(
    ("measured", "simulated", "distances", "met"),
    [
        (always(), always(factor=1.04), {"mean": 0.04, "p99": 0.04}, {"mean": True, "p99": True}),
        (always(), always(factor=0.93), {"mean": -0.07, "p99": -0.07}, {"mean": False, "p99": True}),
        (always(), always(factor=1.12), {"mean": 0.12, "p99": 0.12}, {"mean": False, "p99": False}),
        # 4 % away, and of the measured mean as much may be the generator's lag
        (always(lag=0.02), always(factor=1.04), {"mean": 0.04}, {"mean": None, "p99": True}),
        # with four workers, 1 % of all requests is 4 % of an even share
        (always(), always(bias=0.01), {"share": 0.04}, {"share": True}),
        (always(), always(bias=0.02), {"share": 0.08}, {"share": False}),
        # an interval that crosses the bound
        (always(), noisy(0.001), {"mean": 0.02}, {"mean": True, "p99": True}),
        (always(), noisy(0.2), {"mean": 0.02}, {"mean": None, "p99": None}),
        # failures count as the deadline; a p99 that is it in both worlds is no agreement
        (always(failing=0.02), always(), {"goodput": 0.02}, {"mean": False, "p99": False, "goodput": False}),
        (always(failing=0.02), always(failing=0.02), {"p99": 0.0}, {"p99": None, "goodput": True}),
    ],
)
def test_a_distance_is_judged_by_its_interval(
    scenario: Scenario,
    tmp_path: Path,
    measured: Change,
    simulated: Change,
    distances: dict[str, float],
    met: dict[str, bool | None],
) -> None:
    """The bounds are 5 % of the mean, 10 % of the 99th percentile, 5 % of an even share and 1 point of goodput."""
    agreements = found(both(scenario, tmp_path, measured, simulated), "random")
    assert {name: agreements[name].is_met for name in met} == met
    for name, distance in distances.items():
        assert agreements[name].distance == pytest.approx(distance, abs=0.001)
        assert (
            agreements[name].interval.low <= 1 + agreements[name].distance <= agreements[name].interval.high
        )


def test_another_order_is_a_miss(scenario: Scenario, tmp_path: Path) -> None:
    """Measured, random is two thirds slower; simulated, it is faster. The pair is named."""
    result = both(
        scenario, tmp_path, simulated=lambda label, block: {"factor": 0.5 if label == "random" else 1.0}
    )
    assert result.ranking_is_met is False
    (verdict,) = (
        one for one in bounds_of([result]) if one.bound == "same ranking" and one.subject == "homogeneous"
    )
    assert verdict.is_met is False
    assert "random / round-robin: 1.6" in verdict.found


def test_ranking_within_the_noise_is_not_judged(scenario: Scenario, tmp_path: Path) -> None:
    """The A/A control differs from its original by more than the policies from each other."""
    loud = {"random": 0.63, "round-robin": 1.0, "round-robin again": 1.4}
    result = both(
        scenario,
        tmp_path,
        measured=lambda label, block: {"factor": loud[label]},
        simulated=lambda label, block: {"factor": 0.5 if label == "random" else 1.0},
    )
    assert result.ranking_is_met is None


def test_only_blocks_with_a_valid_measured_run_count(scenario: Scenario, tmp_path: Path) -> None:
    """Block 1 is invalid and ten times slower; it and its simulation are excluded."""
    disturbed: Change = lambda label, block: {"factor": 10.0, "fault": "late"} if block == 1 else {}  # noqa: E731
    result = both(
        scenario,
        tmp_path,
        measured=disturbed,
        simulated=lambda label, block: {"factor": 2 if block == 1 else 1},
    )
    assert [row.blocks for row in result.rows] == [7, 7]
    assert found(result, "random")["mean"].distance == 0


def test_fewer_than_eight_blocks_are_not_judged(tmp_path: Path) -> None:
    few = scenario_of("homogeneous", ("random", "round-robin"), Overrides(blocks=7))
    result = both(few, tmp_path)
    assert {one.is_met for row in result.rows for one in row.agreements} == {None}
    assert result.ranking_is_met is None


def test_a_late_run_leaves_its_block_out_for_all_entries(scenario: Scenario, tmp_path: Path) -> None:
    """Also for the entry whose own run was valid: seven blocks are left, which are not judged."""
    late: Change = lambda label, block: (  # noqa: E731
        {"fault": "generator lag may be 60 % of the mean latency, 50 % allowed"}
        if (label, block) == ("random", 3)
        else {}
    )
    result = both(scenario, tmp_path, measured=late)
    assert [row.blocks for row in result.rows] == [7, 7]
    assert {one.is_met for row in result.rows for one in row.agreements} == {None}


def test_without_a_valid_run_nothing_is_judged(scenario: Scenario, tmp_path: Path) -> None:
    result = both(scenario, tmp_path, measured=lambda label, block: {"fault": "generator lag"})
    assert {one.is_met for row in result.rows for one in row.agreements} == {None}
    assert "generator lag" in result.rows[0].fault
    assert "Nothing can be judged" in headline([result])


def test_the_page_shows_misses_as_misses(scenario: Scenario, tmp_path: Path) -> None:
    """In words, in all three files; the figures are written."""
    write_both(scenario, tmp_path / scenario.name, lambda label, block: {"factor": 1.2})
    write_page(tmp_path)
    page = (tmp_path / "worlds.html").read_text(encoding="utf-8")
    assert page.count('<td class="bad">MISSED</td>') == 5
    assert "5 of 9 figures judged are missed." in page
    assert "MISSED" in (tmp_path / "worlds.md").read_text(encoding="utf-8")
    (result,) = json.loads((tmp_path / "worlds.json").read_text(encoding="utf-8"))
    assert result["rows"][0]["agreements"][1]["is_met"] is False
    names = {path.name for path in (tmp_path / "figures").iterdir()}
    assert {"agreement.png", "agreement.svg", "distributions.png"} <= names


@pytest.mark.second_tier
def test_the_command_redraws_and_checks(scenario: Scenario, tmp_path: Path) -> None:
    """A miss gives exit code 1 only with `--check`. The same files give the same page."""
    write_both(scenario, tmp_path / scenario.name, lambda label, block: {"factor": 1.2})
    arguments = ["fidelity", "--out", str(tmp_path), "--redraw"]
    plain = CliRunner().invoke(cli, arguments, standalone_mode=False)
    assert (plain.exception, plain.return_value) == (None, 0)
    assert "+20.0 %" in plain.output
    page = (tmp_path / "worlds.html").read_text(encoding="utf-8")
    assert CliRunner().invoke(cli, [*arguments, "--check"], standalone_mode=False).return_value == 1
    assert (tmp_path / "worlds.html").read_text(encoding="utf-8") == page


def test_stopped_session_is_resumed(scenario: Scenario, tmp_path: Path) -> None:
    """Blocks with a missing or interrupted run are measured, invalid ones only with `mend`; all are set aside."""
    faults = {0: "interrupted: 3 of 9 requests were sent", 1: "achieved 1.0/s is 1.0 % of 100.0/s offered"}
    write_world(scenario, tmp_path, "measured", lambda label, block: {"fault": faults.get(block, "")})
    campaign = load_results(tmp_path).campaign
    next(iter(sorted((tmp_path / RUNS).glob("block-002*")))).unlink()
    assert [run.block for run in missing(campaign, tmp_path)] == [0, 0, 0, 2, 2, 2]
    assert [run.block for run in missing(campaign, tmp_path, mend=True)] == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    set_aside(missing(campaign, tmp_path), tmp_path)
    left = load_results(tmp_path)
    assert ({run.facts.block for run in left.runs}, len(left.set_aside)) == ({1, *range(3, 8)}, 5)


def test_directory_of_another_scenario_is_refused(scenario: Scenario, tmp_path: Path) -> None:
    write_world(scenario, tmp_path, "measured")
    other = scenario.model_copy(update={"slo": 9.0})
    with pytest.raises(BadInputError, match="holds runs of other numbers"):
        measure(other, FidelityComparison((other,), tmp_path, ""), tmp_path, Console(file=io.StringIO()))


def test_simulating_again_replaces_earlier_simulations(tmp_path: Path) -> None:
    """The plan is that of the measured runs, with the same blocks and seeds."""
    two_blocks = scenario_of("homogeneous", ("random", "round-robin"), Overrides(blocks=2))
    write_world(two_blocks, tmp_path / MEASURED, "measured")
    campaign = load_results(tmp_path / MEASURED).campaign
    simulated = []

    def simulate(scenario: Scenario, entry: Entry, block: int, order: int, seed: int) -> Run:
        simulated.append((entry.label, block, order, seed))
        planned = PlannedRun(block=block, order=order, label=entry.label, seed=seed)
        return as_planned(synthetic(entry.label, block, "simulated"), planned)

    for _ in range(2):
        simulate_again(campaign, tmp_path / SIMULATED, Console(file=io.StringIO()), simulate)
    assert simulated == 2 * [(run.label, run.block, run.order, run.seed) for run in campaign.plan]
    assert len(load_results(tmp_path / SIMULATED).runs) == len(campaign.plan)


@pytest.mark.second_tier
def test_simulation_noise_is_shown_beside_a_miss(scenario: Scenario, tmp_path: Path) -> None:
    """Two simulations differ by 8 %; a miss of 20 % remains a miss."""
    folder = tmp_path / scenario.name
    write_both(scenario, folder, lambda label, block: {"factor": 1.2})
    write_world(scenario, folder / AGAIN, "simulated", lambda label, block: {"factor": 1.2 * 1.08})
    (result,) = write_page(tmp_path)
    assert found(result, "random")["mean"].simulation_noise == pytest.approx(0.08)
    assert found(result, "random")["mean"].is_met is False
    found_in_words = [one.found for one in bounds_of([result]) if one.subject.endswith("random")]
    assert any("by chance ± 8.0 %" in words for words in found_in_words)


def test_second_simulation_differs_by_its_label_only(scenario: Scenario) -> None:
    """The resulting run has the label of the entry."""
    simulated = []

    def simulate(scenario: Scenario, entry: Entry, block: int, order: int, seed: int) -> Run:
        simulated.append((entry.label, entry.policy, block, order, seed))
        return synthetic("random", block, "simulated")

    entry = scenario.entries[0]
    assert otherwise(simulate, "otherwise", scenario, entry, 1, 0, 7).facts.label == "random"
    assert simulated == [("random otherwise", entry.policy, 1, 0, 7)]


def test_simulated_run_concatenates_many_simulations(scenario: Scenario) -> None:
    """The facts are those of the first."""

    def simulate(scenario: Scenario, entry: Entry, block: int, order: int, seed: int) -> Run:
        number = int(entry.label.removeprefix("random "))
        return synthetic("random", block, "simulated", factor=1.0 + number)

    entry, one = scenario.entries[0], synthetic("random", 1, "simulated")
    run = repeatedly(simulate, scenario, entry, 1, 0, 7)
    assert (run.facts.label, run.facts.requests) == ("random", COUNT)
    means = run.samples.latency.reshape(session.REPEATS, COUNT).mean(axis=1) / one.samples.latency.mean()
    assert means == pytest.approx(np.arange(1, session.REPEATS + 1))
    assert (run.samples.scheduled_at.reshape(-1, COUNT) == one.samples.scheduled_at).all()


def test_six_scenarios_can_be_measured_with_five_policies() -> None:
    for name in session.SCENARIOS:
        made = scenario_of(name, session.POLICIES, Overrides(blocks=session.BLOCKS))
        assert (len(made.entries), made.blocks) == (6, session.BLOCKS)
        assert made.control_pair == ("round-robin", "round-robin again")
        assert scenario_of(name, session.POLICIES, Overrides(quick=True)).control_pair is None


def test_directory_without_results_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="nothing has been measured and simulated here yet"):
        write_page(tmp_path)


def test_a_scenario_with_engines_can_be_compared_at_another_rate() -> None:
    found = scenario_of("inference-agents", ("llm-d",), Overrides(rate=4.0, duration=12.0, blocks=8))
    assert (found.load.rate, found.load.duration) == (4.0, 12.0)
    run = simulate_beside(found, found.entries[0], 0, 0, 1)
    assert run.facts.requests == 48
    assert run.samples.output_tokens.all()
