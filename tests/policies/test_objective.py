"""What the default policy minimises: its options `objective` and `prices`, and the loss of each objective."""

from __future__ import annotations

from collections import Counter
from math import e, inf, nan
from random import Random
from typing import Any

import pytest

from policies import registry
from policies.errors import BadPolicyOption
from policies.steelyard.costs import Prices, late
from tests.support.steelyard_routers import Connections, costs_by_name, endpoint, measure, picks, router

OBJECTIVE = r"policy\.objective: must be 'tail', 'mean' or \{ deadline = SECONDS \}.*, got "
PRICES = r"policy\.prices: must be a table of seconds from -3600 to 3600, got "


def prices(deviations: float = 0.0, deadline: float = inf) -> Prices:
    return Prices(deviations, deadline, 0.0, 0.0, {})


def test_loss_beyond_the_mean() -> None:
    """Of 100 ms that are certain and 10 ms with a standard deviation of 30 ms."""
    assert prices().risk(0.1, 0.01, 0.0009) == 0.0
    assert prices(2.0).risk(0.1, 0.01, 0.0009) == pytest.approx(0.06)
    assert prices(deadline=0.08).risk(0.1, 0.01, 0.0009) == 0.08


@pytest.mark.parametrize(
    ("left", "probability"),
    [
        (0.05, 0.30853754),  # ln 1 + 1/2, which a normal variable exceeds in 31 %
        (0.05 / e**0.5, 0.5),  # the median
        (0.05 * e**1.5, 0.02275013),  # two standard deviations
        (0.0, 1.0),
        (-1.0, 1.0),
    ],
)
def test_probability_that_a_lognormal_time_is_late(left: float, probability: float) -> None:
    """The mean is 50 ms, the variance such that the logarithm's is 1."""
    variance = 0.05**2 * (e - 1.0)
    assert late(left, 0.05, variance) == pytest.approx(probability, abs=1e-7)
    assert prices(deadline=0.3 + left).risk(0.3, 0.05, variance) == pytest.approx(
        (0.3 + left) * probability, abs=1e-7
    )


@pytest.mark.parametrize("variance", [0.0, 1e-300, 1e-20, 1e-15])
def test_time_that_hardly_varies_is_late_or_not(variance: float) -> None:
    """Variances of constant services are rounding errors."""
    assert late(0.1, 0.05, variance) == pytest.approx(0.0)
    assert late(0.05, 0.1, variance) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("objective", "chosen"),
    [("mean", "near"), ("tail", "far"), ({"deadline": 0.08}, "far"), ({"deadline": 1}, "near")],
)
def test_objective_decides_between_distance_and_service(objective: Any, chosen: str) -> None:
    """10 and 95 ms of service in turn, or a fifth of that at a distance of 42 ms."""
    r, clock = router(
        endpoint("near"), endpoint("far", "away"), objective=objective, load=0.0, margin=0.0, explore=0.0
    )
    r.find("far").connections = Connections(has_idle=True, round_trip=0.042)
    for _ in range(30):
        measure(r, clock, 1, near=0.01, far=0.044)
        measure(r, clock, 1, near=0.095, far=0.061)
    assert set(picks(r)) == {chosen}


@pytest.mark.parametrize(
    "objective",
    [
        *("p99", "", None, 0.25, True, ["tail"], {}, {"slo": 0.1}, {"deadline": 0.1, "tail": 1.0}),
        *({"deadline": seconds} for seconds in (0, -1.0, nan, inf, 3601, "1", None, True)),
    ],
)
def test_bad_objectives_are_rejected(objective: Any) -> None:
    with pytest.raises(BadPolicyOption, match=OBJECTIVE):
        registry.make("steelyard", {"objective": objective}, Random(1))


@pytest.mark.parametrize(
    "table",
    [
        *(3.0, 0, False, "", "us", [], [1]),
        *({"us": seconds} for seconds in ("cheap", None, True, nan, inf, 3601.0, -3601.0)),
    ],
)
def test_bad_prices_are_rejected(table: Any) -> None:
    with pytest.raises(BadPolicyOption, match=PRICES):
        registry.make("steelyard", {"prices": table}, Random(1))


def compared(**table: float) -> tuple[dict[str, float], set[str]]:
    """Costs of endpoints of three regions by these prices, and where requests go; region "c" has no price."""
    r, clock = router(endpoint("near"), endpoint("b", "b"), endpoint("c", "c"), explore=0.0, prices=table)
    measure(r, clock, near=0.02, b=0.08, c=0.2)
    return costs_by_name(r), set(picks(r))


def test_price_adds_to_the_costs_of_its_region() -> None:
    """The choice changes where the price exceeds the difference in cost, and a discount counts as a price does."""
    free, at_home = compared()
    assert at_home == {"near"}
    assert compared(near=0.0, elsewhere=1.0) == (free, at_home)
    difference = free["b"] - free["near"]
    for table in ({"near": 1.0}, {"b": -1.0}):
        for part, chosen in ((0.999, "near"), (1.001, "b")):
            charged = {region: sign * part * difference for region, sign in table.items()}
            costs, picked = compared(**charged)
            assert picked == {chosen}
            assert costs == {name: pytest.approx(free[name] + charged.get(name, 0.0)) for name in free}


@pytest.mark.parametrize("price", [-5.0, 5.0])
def test_price_changes_nothing_within_its_region(price: float) -> None:
    """Clearly faster endpoints are picked, those that are nearly as fast in turn."""
    r, clock = router(*map(endpoint, "abc"), explore=0.0, prices={"near": price})
    measure(r, clock, a=0.02, b=0.0204, c=0.06)
    found = Counter[str]()
    for _ in range(10):
        clock.time += 0.01
        found += picks(r, 1)
    assert found == {"a": 5, "b": 5}
