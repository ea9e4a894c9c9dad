"""Reproductions in the simulator: quick runs agree with their sources, or are known not to, and are deterministic."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from pathlib import Path
from random import Random

import numpy as np
import pytest
from rich.text import Text

from experiments.report.canvas import to_png
from experiments.reproduce.ab_lies import INTERVAL, NEAREST, SHORTEST, SWITCHBACK, TRUTH, AbLies, Split
from experiments.reproduce.ab_lies import scenario_of as ab_scenario
from experiments.reproduce.els import FAILING, LONG, SLOW, Els
from experiments.reproduce.prequal_ramp import PREQUAL, STEPS, WEIGHTED, WORKERS, PrequalRamp, antagonists
from experiments.reproduce.robinhood import AFTER, BEFORE, SOURCE, Robinhood, faster
from experiments.reproduce.simulated import SimulatedReproduction, simulated
from policies.algorithms.random_choice import RandomChoice
from policies.policy import Policy

KINDS: tuple[type[SimulatedReproduction], ...] = (Els, AbLies, Robinhood, PrequalRamp)


def measured(kind: type[SimulatedReproduction], folder: Path) -> SimulatedReproduction:
    """A quick run with the default seed."""
    reproduction = kind(True)
    asyncio.run(reproduction.measure(1, folder, lambda text: None))
    return reproduction


def agreements(reproduction: SimulatedReproduction) -> list[bool | None]:
    """Whether its claims agree; the figure can be drawn, and a claim that disagrees is stated first."""
    found = [one.is_met for one in reproduction.verdicts()]
    first = [*reproduction.findings()][: found.count(False)]
    assert all(isinstance(one, Text) and one.plain.startswith("Disagrees: ") for one in first)
    assert to_png(reproduction.figure()).startswith(b"\x89PNG")
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_claimed_before_anything_was_run(kind: type[SimulatedReproduction]) -> None:
    reproduction = kind(True)
    assert [*reproduction.verdicts(), *reproduction.findings()] == []
    assert reproduction.introduction().splitlines()[2].startswith("https://")


@pytest.mark.second_tier
def test_els(tmp_path: Path) -> None:
    """JSQ avoids the slow worker and is attracted by the failing one; failures weigh enough for quick service only."""
    found = measured(Els, tmp_path)
    assert isinstance(found, Els)
    assert agreements(found) == [True, True, True, False]
    slow, failing, long = (found.means(case) for case in (SLOW, FAILING, LONG))
    assert slow["round-robin"].low > 3 * slow["shortest queue"].high
    assert failing["round-robin"].ratio == pytest.approx(0.9 / 4, abs=0.03)
    assert failing["shortest queue"].low > 1.3 * failing["round-robin"].high
    assert failing["steelyard"].high < 0.2 * failing["round-robin"].low
    assert long["least-in-flight"].high < long["round-robin"].low
    assert long["round-robin"].high < long["peak-ewma"].low


@pytest.mark.second_tier
def test_ab_lies(tmp_path: Path) -> None:
    """A split errs in sign where the treatment crowds a region, and in size where it relieves all workers."""
    found = measured(AbLies, tmp_path)
    assert isinstance(found, AbLies)
    assert agreements(found)[:3] == [True, True, False]
    for case in (NEAREST, SHORTEST):
        means = found.means(case.name)
        assert means[SWITCHBACK].ratio * means[TRUTH].ratio > 0


def arms(every: float, share: float, instants: list[float]) -> list[bool]:
    """Arms that are drawn at these instants."""

    def child(rng: Random) -> Policy:
        return RandomChoice(rng)

    split = Split(Random(1), control=child, treatment=child, share=share, every=every)
    return [split._arm(at) for at in instants]


def test_a_split_by_request_treats_its_share() -> None:
    assert np.mean(arms(0.0, 0.1, [0.0] * 10_000)) == pytest.approx(0.1, abs=0.01)


def test_a_switchback_has_both_once_in_two_intervals() -> None:
    drawn = arms(5.0, 0.5, [5.0 * number + part for number in range(100) for part in (0.0, 4.9)])
    assert drawn[::2] == drawn[1::2]
    pairs = list(zip(drawn[::4], drawn[2::4], strict=True))
    assert all(first != second for first, second in pairs)
    assert 10 < sum(first for first, _ in pairs) < 40


def test_each_request_has_an_arm() -> None:
    scenario = ab_scenario(NEAREST, 3 * INTERVAL)
    run = simulated(scenario, scenario.entry(SWITCHBACK), 1)
    assert isinstance(run.policy, Split)
    assert len(run.policy.arms) == len(run.latency)


@pytest.mark.second_tier
def test_robinhood(tmp_path: Path) -> None:
    """Turns use the slower half more, as calibrated; reports even that out, and requests in flight do so in part."""
    found = measured(Robinhood, tmp_path)
    assert isinstance(found, Robinhood)
    assert False not in agreements(found)
    for cluster, (before, _) in SOURCE.items():
        means = found.means(cluster)
        assert means[BEFORE].ratio == pytest.approx(before, abs=0.02)
        assert means[AFTER].high < means["least-in-flight"].low < means[BEFORE].low


@pytest.mark.parametrize("ratio", [1.0, 1.26, 1.4])
def test_speed_for_a_ratio(ratio: float) -> None:
    """Two workers, equal shares: utilisation is inverse to speed."""
    used = [1.0, 1 / faster(ratio)]
    assert max(used) / np.mean(used) == pytest.approx(ratio)


@pytest.mark.second_tier
def test_prequal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Above the allocation the tail of weighted round-robin grows, and that of Prequal much less.

    Three steps of the ramp: the first, the middle, and the last. In runs of 8 s hardly any request misses 5 s.
    """
    monkeypatch.setattr(PrequalRamp, "cases", STEPS[::4])
    found = measured(PrequalRamp, tmp_path)
    assert agreements(found) == [True, None, None]
    runs = {(one["load"], one["policy"]): one["runs"] for one in found.content()["found"]}
    tails = {key: np.median([run["p99"] for run in value]) for key, value in runs.items()}
    assert tails[STEPS[-1], WEIGHTED] > 2 * tails[STEPS[-1], PREQUAL]


def test_ends_of_the_ramp() -> None:
    assert (STEPS[0], STEPS[-1]) == pytest.approx((0.75, 1.74), abs=0.005)


def test_other_jobs_take_a_third_of_the_time() -> None:
    """They follow from the seed, and spells on one worker do not overlap."""
    events = antagonists(1, 400.0)
    assert events == antagonists(1, 400.0) != antagonists(2, 400.0)
    share = sum(event["lasts"] for event in events) / (400.0 * WORKERS)
    assert share == pytest.approx(1 / 3, abs=0.05)
    for worker in range(WORKERS):
        own = [event for event in events if event["target"] == f"here-{worker}"]
        assert all(a["at"] + a["lasts"] <= b["at"] for a, b in pairwise(own))
