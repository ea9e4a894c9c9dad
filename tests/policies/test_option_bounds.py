"""Bounds of policy options: no accepted value costs more memory than a balancer can spare."""

from __future__ import annotations

import math
import tracemalloc
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

from policies import registry
from policies.algorithms.ring_hash import MAX_RING_POINTS, points_of_weight_one
from policies.clock import Clock
from policies.errors import BadPolicyOption
from policies.facts import Endpoint, RequestFacts
from policies.options import OneOf, Range
from policies.routing.router import Router

MOST_MEMORY = 256 << 20
"""Bytes for a policy before a few endpoints, whatever its options."""

REQUIRED: dict[str, dict[str, Any]] = {"single-region": {"region": "r"}}


class Stopped(Clock):
    """A clock that stands still."""

    def now(self) -> float:
        return 1.0


def numbers() -> Iterator[tuple[str, str, Any]]:
    """Each numeric option of each policy of this package."""
    for name, factory in registry.TABLE.items():
        for option, parameter in registry.options_of(factory).items():
            if parameter.annotation in (int, float):
                yield name, option, parameter.annotation


def made(name: str, option: str, value: Any) -> Any:
    return registry.make(name, REQUIRED.get(name, {}) | {option: value}, Random(1))


@pytest.mark.parametrize(
    "value", [math.inf, -math.inf, math.nan, 10**400, -(10**400), 1e300, 2e9, True, "1", None, [1], {}]
)
def test_values_out_of_range_are_rejected(value: Any) -> None:
    """In one short line that names the option."""
    for name, option, _ in numbers():
        with pytest.raises(BadPolicyOption, match=option) as caught:
            made(name, option, value)
        line = str(caught.value)
        assert len(line.splitlines()) == 1, line
        assert len(line) < 250, line


@pytest.mark.parametrize(("name", "option", "kind"), [*numbers()])
def test_each_bound_of_a_number_is_checked(name: str, option: str, kind: Any) -> None:
    """The last value within is accepted and the next one refused, at both ends; the default is within."""
    [bound] = registry.bounds_of(registry.TABLE[name])[option]
    assert isinstance(bound, Range)
    step = 1 if kind is int else 1e-6
    least, most = bound.least + bound.is_above * step, bound.most
    ends = [most] if most < math.inf else []
    default = registry.options_of(registry.TABLE[name])[option].default
    for value in (least, *ends, *([0] if bound.zero else []), default):
        made(name, option, value)
    for value in (least - step, *(end + step for end in ends)):
        with pytest.raises(BadPolicyOption) as caught:
            made(name, option, value)
        assert str(caught.value) == f"policy.{option}: must be {bound}, got {value!r}"
    unknown = math.nan
    assert unknown not in bound


def test_each_list_of_texts_is_checked() -> None:
    for name, factory in registry.TABLE.items():
        for option, bounds in registry.bounds_of(factory).items():
            for bound in (one for one in bounds if isinstance(one, OneOf)):
                for text in bound:
                    made(name, option, text)
                with pytest.raises(
                    BadPolicyOption, match=rf"^policy\.{option}: must be {bound}, got 'never'$"
                ):
                    made(name, option, "never")


@pytest.mark.second_tier
@pytest.mark.parametrize(("name", "option", "kind"), [*numbers()])
def test_the_largest_value_costs_bounded_memory(name: str, option: str, kind: Any) -> None:
    """The largest accepted power of ten, with three endpoints, one of great weight, and one pick."""
    policy = None
    for power in range(9, -4, -1):
        try:
            policy = made(name, option, kind(10**power) if power >= 0 else 10.0**power)
            break
        except BadPolicyOption:
            continue
    if policy is None:
        pytest.skip("no power of ten is accepted: the option's range is narrower")
    endpoints = [Endpoint(f"e{at}", f"http://127.0.0.1:{80 + at}", "r", 10.0**at) for at in (0, 1, 6)]
    tracemalloc.start()
    try:
        router = Router(endpoints, policy, Stopped(), Random(1))
        router.route(RequestFacts("GET", "/", None, "key"))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < MOST_MEMORY


def test_total_number_of_ring_points_is_bounded() -> None:
    """Halved as often as needed; unchanged below the bound."""
    assert points_of_weight_one(512, 2048) == 512
    assert points_of_weight_one(512, 2049) == 256
    for weight in (1e5, 1e6, 1e10, 1e15):
        assert MAX_RING_POINTS / 2 < points_of_weight_one(16_384, weight) * weight <= MAX_RING_POINTS
