"""Which policies use the load that workers report, as their classes say and as simulations show."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from experiments.generator.arrivals import first_instants
from experiments.scenario.files import load_scenario
from experiments.scenario.overrides import Overrides, overridden
from experiments.scenario.scenario import Entry, PolicySpec, Scenario
from experiments.simulator.run import model_of
from experiments.simulator.simulation import Simulation
from policies import registry
from policies.registry import TABLE, reads_reports

NEARLY_FULL = Overrides(rate=285.0, duration=12.0)
"""`region-aware` uses reports of at least 90 % utilisation."""

SCENARIOS = [
    overridden(load_scenario("unequal-speeds"), Overrides(duration=3.0)),
    overridden(load_scenario("steady"), NEARLY_FULL),
]


def latencies(scenario: Scenario, policy: PolicySpec, *, reports: bool) -> list[float]:
    entry = Entry(label="one", policy=policy)
    model = replace(model_of(scenario, entry, 1), reports=reports)
    simulation = Simulation(model, 1, "one")
    simulation.begin_steps()
    return list(simulation.open(first_instants(scenario.load, 1, 1.0)).latencies)


READING = ("c3", "prequal", "region-aware", "reported-load")
"""Some that read reports; the second tier tries all policies."""


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in (*READING, "random") else pytest.mark.second_tier)
        for name in sorted(TABLE)
    ],
)
def test_reports_matter_to_the_policies_that_read_them(name: str) -> None:
    """Every policy that says so serves requests otherwise without reports, and no other one does."""
    for scenario in SCENARIOS:
        needed = {"region": scenario.home_region} if name == "single-region" else {}
        policy = PolicySpec(name=name, **needed)
        with_reports, without = (latencies(scenario, policy, reports=reports) for reports in (True, False))
        if is_sensitive := with_reports != pytest.approx(without, abs=1e-9):
            break
    assert is_sensitive == reads_reports(name if not needed else policy.model_dump())


def test_wrapping_policies_read_what_their_inner_policies_read() -> None:
    assert not reads_reports("region-round-robin")
    assert reads_reports({"name": "region-round-robin", "inner": "c3"})
    nested = {"name": "aperture", "inner": {"name": "region-round-robin", "inner": "prequal"}}
    assert reads_reports(nested) == ("inner" in registry.options_of(registry.find("aperture")))


@pytest.mark.parametrize(("line", "expected"), [("", True), ("reads_reports = False", False)])
def test_policies_of_files_may_read_reports_unless_they_say_otherwise(
    tmp_path: Path, line: str, expected: bool
) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        f"class Mine:\n    {line or 'pass'}\n\n    def pick(self, facts, available, now):\n"
        "        return available[0]\n"
    )
    assert reads_reports(f"{file}:Mine") is expected
