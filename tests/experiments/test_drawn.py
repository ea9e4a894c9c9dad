"""Random scenarios: names, ranges, the distribution, and what published seeds mean."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from hashlib import sha256
from statistics import median

import pytest

from experiments.__main__ import cli
from experiments.errors import BadInputError
from experiments.scenario.drawn import EVENTS, MAX_SCENARIOS, drawn, single_names
from experiments.scenario.event_kinds import KINDS
from experiments.scenario.files import load_scenario
from experiments.scenario.overrides import Overrides, overridden
from experiments.scenario.scenario import Region, Scenario
from experiments.simulator.run import simulate
from experiments.sweep.cells import cells_of
from experiments.sweep.grid import checked_grid
from tests.support.command_line import run_in_process
from workers.service import Exponential, Fixed, Lognormal, Mixed, parse_profile

DIGEST = "3c2d2d7c2de61cd9"
"""Of seeds 1 to 20 as JSON. A change of the distribution changes what published seeds mean: edit it only together with
the date in docs/scenarios.md, and state at figures measured before with which generator they were."""


@pytest.fixture(scope="module")
def scenarios() -> list[Scenario]:
    return [load_scenario(f"random-{seed}") for seed in range(1, 301)]


def test_published_seeds_keep_their_meaning() -> None:
    text = json.dumps([drawn(f"random-{seed}") for seed in range(1, 21)], sort_keys=True)
    assert sha256(text.encode()).hexdigest()[:16] == DIGEST


def capacity_of(region: Region) -> float:
    speeds = sum(region.speed_of(number) for number in range(region.workers))
    return region.slots * speeds / parse_profile(region.service).mean


@pytest.mark.parametrize("seed", range(1, 61))
def test_draws_are_within_their_bounds(seed: int) -> None:
    scenario = load_scenario(f"random-{seed}")
    assert 2 <= len(scenario.workers) <= 62  # a region has at least one worker
    assert 1 <= len(scenario.regions) <= 4
    assert all(0.0005 <= region.rtt <= 0.25 for region in scenario.regions)
    assert all(1 <= region.slots <= 32 for region in scenario.regions)
    assert all(region.queue in (5 * region.slots, 20 * region.slots, 1000) for region in scenario.regions)
    assert all(0.3 <= speed <= 3.0 for region in scenario.regions for speed in region.speed)
    profiles = {parse_profile(region.service) for region in scenario.regions}
    assert len(profiles) == 1
    assert all(0.002 <= profile.mean <= 0.501 for profile in profiles)
    for profile in profiles:
        if isinstance(profile, Mixed):
            assert 0 < profile.short < profile.long <= 3.0
    share = scenario.load.mean_rate / sum(map(capacity_of, scenario.regions))
    assert 0.14 <= share <= 1.06  # rounded to three digits
    assert 9_900 <= scenario.load.planned <= 18_100
    assert 9.9 <= scenario.load.duration <= 1005
    if scenario.load.arrivals == "ramp":
        assert 0.2 <= scenario.load.rate / (scenario.load.peak or 0.0) <= 5.0
    elif scenario.load.peak is not None:
        assert 1.49 <= scenario.load.peak / scenario.load.rate <= 4.01
    assert scenario.staleness == 0 or 0.05 <= scenario.staleness <= 1.5
    assert 1 <= scenario.balancers <= 12
    assert len(scenario.events) <= 3
    assert overridden(scenario, Overrides()) == scenario
    assert overridden(scenario, Overrides(quick=True)).load.duration < scenario.load.duration


def test_every_kind_of_draw_occurs(scenarios: list[Scenario]) -> None:
    regions = [region for scenario in scenarios for region in scenario.regions]
    kinds = Counter(event.kind for scenario in scenarios for event in scenario.events)
    assert set(kinds) == {kind for kind in EVENTS if kind != "pauses"} <= set(KINDS)
    assert {type(parse_profile(region.service)) for region in regions} == {
        *(Fixed, Exponential, Lognormal, Mixed)
    }
    assert {region.discipline for region in regions} == {"fifo", "sharing"}
    assert {scenario.load.arrivals for scenario in scenarios} == {
        *("poisson", "constant", "mmpp", "burst", "ramp")
    }
    assert {scenario.balancer.get("retries") for scenario in scenarios} == {None, 0, 1, 3}
    assert {len(scenario.regions) for scenario in scenarios} == {1, 2, 3, 4}
    assert {len(scenario.events) for scenario in scenarios} == {0, 1, 2, 3}
    assert {bool(region.weights) for region in regions} == {True, False}
    assert {bool(region.speed) for region in regions} == {True, False}
    sizes = sorted(len(scenario.workers) for scenario in scenarios)
    assert sizes[0] <= 3
    assert 6 <= median(sizes) <= 20
    assert sizes[-1] >= 50


def share(scenarios: list[Scenario], holds: Callable[[Scenario], object]) -> float:
    return sum(map(bool, map(holds, scenarios))) / len(scenarios)


def near_first(scenario: Scenario) -> bool:
    return scenario.regions[0].rtt == min(region.rtt for region in scenario.regions)


@pytest.mark.parametrize(
    ("expected", "holds"),
    [
        (0.5, lambda it: it.load.arrivals == "poisson"),
        (0.17, lambda it: it.load.arrivals == "mmpp"),
        (0.08, lambda it: it.load.arrivals == "burst" and it.load.every is None),
        (0.5, lambda it: it.regions[0].queue < 1000),
        (0.1, lambda it: it.regions[0].discipline == "sharing"),
        (0.3, lambda it: it.staleness),
        (0.75, lambda it: "health_checks" in it.balancer),
        (0.5, lambda it: any(region.speed for region in it.regions)),
        (0.43, lambda it: it.regions[0].idle_timeout is None),
        (0.5, lambda it: it.timeout == 5.0),
        (0.2, lambda it: it.regions[0].service.startswith("mixed")),
        (0.95, near_first),
        (0.67, lambda it: it.events),
    ],
)
def test_shares_of_scenarios(
    scenarios: list[Scenario], expected: float, holds: Callable[[Scenario], object]
) -> None:
    """Within three standard deviations of 300 draws."""
    assert abs(share(scenarios, holds) - expected) <= 3 * (expected * (1 - expected) / len(scenarios)) ** 0.5


def test_hanging_attempts_have_a_time_limit(scenarios: list[Scenario]) -> None:
    hanging = [it for it in scenarios if any(event.kind == "hang" for event in it.events)]
    assert len(hanging) > 10
    assert all(it.balancer["timeouts"]["attempt"] >= 1 for it in hanging)


def test_time_limits_of_attempts_allow_for_long_requests(scenarios: list[Scenario]) -> None:
    for scenario in scenarios:
        profile = parse_profile(scenario.regions[0].service)
        if isinstance(profile, Mixed) and "timeouts" in scenario.balancer:
            rtt = max(region.rtt for region in scenario.regions)
            assert scenario.balancer["timeouts"]["attempt"] > profile.long + rtt


def test_restarts_of_regions_roll(scenarios: list[Scenario]) -> None:
    restarts = [
        (event, event.target in {region.name for region in scenario.regions})
        for scenario in scenarios
        for event in scenario.events
        if event.kind == "restart"
    ]
    assert {is_region for _, is_region in restarts} == {True, False}
    assert all(event.stagger == (event.lasts if is_region else 0.0) for event, is_region in restarts)


def test_show_and_sweep_on_the_command_line() -> None:
    ran = run_in_process(cli, "experiments", "show", "random-3")
    assert ran.returncode == 0
    assert ran.stdout.startswith("random-3: ")
    ran = run_in_process(cli, "experiments", "show", "random-03")
    assert ran.returncode == 2
    assert "random-03: SEED must be" in ran.stderr
    options = ("--scenarios", "random-1..3", "--policies", "random", "--seeds", "1", "--dry-run")
    assert "3 cells: 3 scenarios" in run_in_process(cli, "experiments", "sweep", *options).stdout


def test_run_is_repeatable() -> None:
    scenario = overridden(load_scenario("random-10"), Overrides(policies=("least-in-flight",), quick=True))
    first, second = (simulate(scenario, scenario.entries[0], 0, 0, 5) for _ in range(2))
    assert len(first.samples) > 2000
    assert first.samples.ended_at.tolist() == second.samples.ended_at.tolist()


def test_ranges_in_sweeps() -> None:
    raw = {"name": "drawn", "scenarios": ["random-9..11", "steady"], "policies": ["random"], "seeds": 1}
    grid = checked_grid(raw, "grid.toml")
    assert grid.scenarios == ("random-9", "random-10", "random-11", "steady")
    assert [cell.scenario for cell in cells_of(grid, code="")][1].load == load_scenario("random-10").load


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("random-x", "random-x: SEED must be a whole number from 0 to 999999999"),
        ("random-", "SEED must be a whole number"),
        ("random-007", "SEED must be a whole number"),
        ("random--1", "SEED must be a whole number"),
        ("random-1e3", "SEED must be a whole number"),
        ("random-\u0663", "SEED must be a whole number"),
        ("random-1234567890", "SEED must be a whole number"),
        ("random-1..3", "only a sweep takes a range"),
    ],
)
def test_bad_name_is_one_line(name: str, message: str) -> None:
    with pytest.raises(BadInputError, match=message) as caught:
        load_scenario(name)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("random-12..10", "the first seed must not be greater than the last"),
        ("random-1..x", "random-x: SEED must be a whole number"),
        ("random-1..", "SEED must be a whole number"),
        (f"random-1..{MAX_SCENARIOS + 1}", "at most 1000 scenarios, not 1001"),
    ],
)
def test_bad_range_is_one_line(name: str, message: str) -> None:
    with pytest.raises(BadInputError, match=f"grid.toml: scenarios: .*{message}"):
        checked_grid({"name": "g", "scenarios": [name], "policies": ["random"], "seeds": 1}, "grid.toml")


def test_names_that_are_no_ranges_or_the_longest() -> None:
    assert len(single_names(f"random-1..{MAX_SCENARIOS}")) == MAX_SCENARIOS
    for name in ("a..b.toml", "random-1..2.toml"):
        assert single_names(name) == [name]
