"""Thresholds: syntax, values of deadline-mapped samples, and messages."""

from __future__ import annotations

import pytest

from experiments.errors import BadInputError
from experiments.run_data import Kind
from experiments.scenario.thresholds import parse_threshold
from experiments.verdict.summary import judge
from tests.support.runs import hand_made


@pytest.mark.parametrize(
    ("text", "measure", "bound"),
    [
        ("p99 < 800 ms", "p99", 0.8),
        ("p99.9<1.5s", "p99.9", 1.5),
        ("errors < 0.1 %", "errors", 0.001),
        ("goodput > 99 %", "goodput", 0.99),
        ("throughput > 100 /s", "throughput", 100.0),
        ("mean < 500 µs", "mean", 0.0005),
    ],
)
def test_syntax_of_thresholds(text: str, measure: str, bound: float) -> None:
    """In the forms that the documentation shows."""
    threshold = parse_threshold(text)
    assert threshold.measure == measure
    assert threshold.bound == pytest.approx(bound)


@pytest.mark.parametrize(
    "text", ["p99", "p99 < 800", "errors < 3 ms", "p99 < 5 %", "p999 < 1 s", "q50 < 1 s", ""]
)
def test_invalid_thresholds_are_rejected(text: str) -> None:
    """Also a unit that does not fit the measure."""
    with pytest.raises(BadInputError, match="write one like 'p99 < 800 ms'"):
        parse_threshold(text)


@pytest.mark.parametrize(
    ("text", "passed", "message"),
    [
        ("max < 800 ms", True, "max is 500 ms, met by 300 ms"),
        ("max < 400 ms", False, "max is 500 ms, missed by 100 ms"),
        ("errors < 1 %", True, "errors is 0.00 %, met by 1.00 %"),
        ("goodput > 60 %", False, "goodput is 50.0 %, missed by 10.0 %"),
    ],
)
def test_messages_have_value_and_distance(text: str, passed: bool, message: str) -> None:
    """Of passed and failed thresholds."""
    judgement = judge(
        parse_threshold(text), "random", [hand_made([0.1, 0.49 + 0.01])], slo=0.3, time_scale=1.0
    )
    assert (judgement.passed, judgement.message) == (passed, message)


def test_fast_failures_fail_a_latency_threshold() -> None:
    """Half of the requests are reset after a millisecond: p50 passes, p99 is the deadline."""
    run = hand_made([0.1, 0.001] * 500, kind=[Kind.OK, Kind.RESET] * 500, timeout=5.0)
    assert judge(parse_threshold("p99 < 1 s"), "random", [run], slo=1.0, time_scale=1.0).passed is False


def test_thresholds_follow_the_time_scale() -> None:
    """At a time scale of 0.1, "800 ms" means 80 ms of measured time, which is said."""
    run = hand_made([0.09] * 1000, timeout=5.0)
    judgement = judge(parse_threshold("p99 < 800 ms"), "random", [run], slo=1.0, time_scale=0.1)
    assert judgement.passed is False
    assert judgement.message == "p99 is 90.0 ms, missed by 10.0 ms; at time scale 0.1 the bound is 80.0 ms"
    assert judge(parse_threshold("p99 < 800 ms"), "random", [run], slo=1.0, time_scale=1.0).passed
    errors = judge(parse_threshold("errors < 1 %"), "random", [run], slo=1.0, time_scale=0.1)
    assert errors.message == "errors is 0.00 %, met by 1.00 %"


@pytest.mark.parametrize(
    ("text", "least"), [("p50 < 1 s", 20), ("p95 > 1 s", 200), ("p99 < 1 ms", 1000), ("p99.9 < 1 s", 10_000)]
)
def test_percentiles_of_too_few_requests_are_not_judged(text: str, least: int) -> None:
    """As reports do not show them either; the requests of all runs count."""
    threshold, half = parse_threshold(text), hand_made([0.09] * (least // 2))
    enough = judge(threshold, "random", [half, half], slo=1.0, time_scale=1.0)
    assert enough.passed is not None
    few = judge(threshold, "random", [half, hand_made([0.09] * (least // 2 - 1))], slo=1.0, time_scale=1.0)
    assert few.passed is None
    assert few.message.replace("\u202f", "") == f"{least - 1} requests, a {threshold.measure} takes {least}"
