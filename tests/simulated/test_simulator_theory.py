"""Compare the simulator with closed forms. Seeds are fixed, so a test either always passes or never.

Each bound is several standard errors away: a correct simulator passes with nearly every seed, and one that is wrong by
one to three per cent with none. `python -m benchmarks certificate --samples 20` is more precise.
"""

from __future__ import annotations

import pytest

from benchmarks.simulator.cases import SpeedCase, cases, farm, simulated, times
from experiments.simulator import theory

SEED = 1

QUICK = "M/D/1, ρ 0.5, mean"
"""Case of the first tier; the others take several seconds each."""

ALIKE = (
    *("random over 20, ρ 0.5, mean", "M/M/2, ρ 0.6, mean", "round-robin over 2, ρ 0.7, mean"),
    *("two choices of 500, ρ 0.7, mean", "least work of two of 500, ρ 0.7, mean"),
)
"""Cases of the certificate alone: each has another one with the same form and another number or load."""


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=case.name, marks=() if case.name == QUICK else pytest.mark.second_tier)
        for case in cases()
        if case.name not in ALIKE
    ],
)
def test_simulation_agrees_with_theory(case: SpeedCase) -> None:
    """Within 1 %, or 3 % where theory has infinitely many queues."""
    error = case.error(case.simulated(case.samples, SEED))
    assert abs(error) <= case.bound, f"{case.name}: off by {error:+.2%}"


def test_cases_that_are_left_out_exist() -> None:
    assert {*ALIKE} < {case.name for case in cases()}


@pytest.mark.second_tier
def test_shortest_queue_lies_between_a_common_queue_and_two_choices() -> None:
    """Join the shortest queue is worse than M/M/n and better than two choices."""
    model = farm(10, {"name": "least-in-flight", "choices": 10})
    mean = times(simulated(model, 9.0, 200_000, SEED).columns).mean()
    assert 1 + theory.mmc_wait(0.9, 10) < mean < theory.power_of_d_mean(0.9, 2)


@pytest.mark.parametrize(
    ("number", "form"),
    [
        (4.263158, theory.mmc_wait(0.9, 2)),
        (0.668732, theory.mmc_wait(0.9, 10)),
        (0.021694, theory.mmc_wait(0.9, 100)),
        (2.6006, theory.erlang_m1_mean(0.7, 2)),
        (5.6603, theory.erlang_m1_mean(0.9, 10)),
        (2.6141, theory.power_of_d_mean(0.9, 2)),
        (2.0279, theory.power_of_d_mean(0.9, 3)),
        (0.7305, theory.static_split((4.0, 4.0, 1.0), 5.4)[1]),
    ],
)
def test_the_closed_forms_give_published_numbers(number: float, form: float) -> None:
    """The closed forms themselves are compared with published values."""
    assert form == pytest.approx(number, rel=1e-4)


def test_static_split_gives_a_slow_server_little() -> None:
    """The best shares are not proportional to speed."""
    rates, _ = theory.static_split((4.0, 4.0, 1.0), 5.4)
    assert rates == pytest.approx([2.56, 2.56, 0.28])
