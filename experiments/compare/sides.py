"""Two result sets side by side: whether they can be compared, and how they differ.

Scenarios must agree in everything that shapes the traffic; other differences (versions, machine, world, options of a
policy) are shown, because they may explain the result.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from experiments.errors import BadInputError
from experiments.results.directory import Results
from experiments.scenario.scenario import DESCRIPTIVE, Scenario, may_win
from experiments.stats.ceiling import Ceiling
from experiments.stats.run_summary import RunSummary, ceiling_per_block, summarise_run, values_per_block


@dataclass(frozen=True, slots=True, eq=False)
class Side:
    """A result set: its name as given, its results, and summaries of its runs.

    `lagless`: values are those without the generator's lag.
    """

    name: str
    results: Results
    runs: tuple[RunSummary, ...]
    lagless: bool = False

    @property
    def scenario(self) -> Scenario:
        return self.results.scenario

    @property
    def seeds(self) -> dict[int, int]:
        return {run.facts.block: run.facts.seed for run in self.results.runs}

    def values(self, label: str, measure: str) -> dict[int, float]:
        """Value of a measure for each valid run of an entry, by block."""
        return values_per_block([label], self.runs, measure, self.lagless)[label]

    def ceiling(self, label: str, measure: str) -> Ceiling:
        """Blocks in which failures make the measure the deadline, and the odds of a miss."""
        return ceiling_per_block([label], self.runs, measure, self.lagless)


@dataclass(frozen=True, slots=True)
class Difference:
    """One difference between both sides."""

    what: str
    first: str
    second: str

    @property
    def in_words(self) -> str:
        return f"{self.what}: {self.first} → {self.second}"


def side(name: str, results: Results) -> Side:
    slo = results.scenario.measured_slo
    is_replay = results.scenario.load.is_replay
    return Side(name, results, tuple(summarise_run(run, slo, is_replay=is_replay) for run in results.runs))


def require_comparable(one: Side, other: Side, anyway: bool) -> None:
    """Check that both ran a common entry, and the same traffic unless `anyway`. Raises `BadInputError`."""
    wrong = [found.what for found in differing(traffic_of(one.scenario), traffic_of(other.scenario))]
    if wrong and not anyway:
        raise BadInputError(
            f"{one.name} and {other.name} ran different scenarios: they differ in {', '.join(wrong)}; "
            "--anyway compares them nevertheless"
        )
    if not common_labels(one, other):
        raise BadInputError(f"{one.name} and {other.name} have no entry of the same label that could be run")


def traffic_of(scenario: Scenario) -> dict[str, Any]:
    """Keys of a scenario that shape a run, but for `entries`, which are compared one by one."""
    raw = scenario.model_dump(mode="json", exclude={*DESCRIPTIVE, "name", "entries"})
    regions = {f"regions.{region.pop('name')}": region for region in raw.pop("regions")}
    return raw | regions


def differing(ours: dict[str, Any], theirs: dict[str, Any], prefix: str = "") -> Iterator[Difference]:
    """Differences of two tables, recursively."""
    for key in [*ours, *(key for key in theirs if key not in ours)]:
        one, other = ours.get(key), theirs.get(key)
        if isinstance(one, dict) and isinstance(other, dict):
            yield from differing(one, other, f"{prefix}{key}.")
        elif one != other:
            first, second = ("–" if value is None else str(value) for value in (one, other))
            yield Difference(f"{prefix}{key}", first, second)


def common_labels(one: Side, other: Side) -> list[str]:
    """Entries that both sides ran, in the order of the first, without repetitions and oracles."""
    theirs = {run.label for run in other.runs}
    return [entry.label for entry in one.results.entries() if entry.label in theirs and may_win(entry)]


def differences(one: Side, other: Side) -> list[Difference]:
    """All differences, those of the traffic first."""
    return [
        *differing(traffic_of(one.scenario), traffic_of(other.scenario)),
        *differing(policies_of(one), policies_of(other)),
        *differing(environment(one), environment(other)),
    ]


def policies_of(given: Side) -> dict[str, Any]:
    """Policy, batch and mechanisms of each entry that was run."""
    return {
        entry.label: entry.model_dump(mode="json", exclude={"label", "repeat_of", "thresholds"})
        for entry in given.results.entries()
    }


def environment(given: Side) -> dict[str, Any]:
    """World, machine, versions and size of a result set."""
    campaign = given.results.campaign
    worlds = dict.fromkeys(run.facts.world for run in given.results.runs)
    return {
        "world": ", ".join(worlds),
        "machine": campaign.machine,
        "versions": campaign.versions,
        "policy files": {file.path: file.version for file in campaign.policy_files},
        "blocks": given.scenario.blocks,
        "seed": given.scenario.seed,
        "invalid runs": sum(not run.valid for run in given.runs),
    }
