"""Latency samples of sibling processes: pooled with own samples, and never published as own."""

from __future__ import annotations

from math import exp

import pytest

from policies.stats.latency import TAU, LatencyModel
from policies.stats.load import Histogram
from policies.stats.shared_latency import NOTHING, SharedLatency, pooled


def model(*latencies: float, at: float = 100.0, ahead: int = 0) -> LatencyModel:
    made = LatencyModel()
    for latency in latencies:
        made.record(latency, ahead, at)
    return made


def test_pooled_models_predict_like_one_model_of_all_samples() -> None:
    one, other, every_sample = model(0.1, 0.3), model(0.2, 0.6), model(0.1, 0.3, 0.2, 0.6)
    one.pool(pooled([other.own()], TAU))
    for in_flight in (0, 3, 20):
        assert one.predict(in_flight, 0.0, 1.0) == pytest.approx(every_sample.predict(in_flight, 0.0, 1.0))


def test_only_own_samples_are_published() -> None:
    """However often two models pool each other, nothing is counted twice."""
    one, other = model(0.1), model(0.4, 0.4, at=101.0)
    for _ in range(5):
        one.pool(pooled([other.own()], TAU))
        other.pool(pooled([one.own()], TAU))
    assert one.own().floor == 0.1
    assert other.own().floor == 0.4
    assert one.own().successes == pytest.approx(exp(-1.0 / TAU))
    assert other.own().successes == pytest.approx(2.0)
    assert one.floor == other.floor == 0.1


def test_pooling_again_replaces_the_earlier_pool() -> None:
    one = model(0.1)
    for latency in (5.0, 0.3):
        one.pool(pooled([model(latency).own()], TAU))
    assert one.predict(0, 0.0, 1.0) == pytest.approx(model(0.1, 0.3).predict(0, 0.0, 1.0))
    one.pool(NOTHING)
    assert one.predict(0, 0.0, 1.0) == pytest.approx(0.1)
    assert one.floor == 0.1


def test_pooled_samples_fade_like_own_ones() -> None:
    """Recording a later sample lowers the weight of both."""
    one = model(at=100.0)
    one.pool(pooled([model(0.4, at=100.0).own()], TAU))
    one.record(0.1, 0, 103.0)
    assert one.own().successes == pytest.approx(1.0)
    alone = model(0.4, at=100.0)
    alone.record(0.1, 0, 103.0)
    assert one.predict(0, 0.0, 1.0) == pytest.approx(alone.predict(0, 0.0, 1.0))


def test_older_samples_are_faded_to_the_newest_before_adding() -> None:
    shared = [
        SharedLatency(2.0, 1.0, 4.0, 0.0, 0.5, 0.2, 10.0),
        SharedLatency(1.0, 3.0, 0.0, 1.0, 0.4, 0.3, 10.0 + TAU),
    ]
    kept = exp(-1)
    assert pooled(shared, TAU) == pytest.approx(
        SharedLatency(1 + 2 * kept, 3 + kept, 4 * kept, 1.0, 0.4, 0.2, 10.0 + TAU)
    )


def test_pool_without_samples_is_empty() -> None:
    """No latency is known, and no instant is set."""
    assert pooled([], TAU) == pooled([LatencyModel().own(), NOTHING], TAU) == NOTHING
    empty = LatencyModel()
    empty.pool(NOTHING)
    assert not empty.successes
    assert empty.measured_at == LatencyModel().measured_at


def test_failures_of_siblings_are_charged() -> None:
    other = LatencyModel()
    other.record_failure(5.0, 100.0)
    one = model(0.1)
    one.pool(pooled([other.own()], TAU))
    assert one.failure_share == pytest.approx(0.5)
    assert one.own().failures == 0.0


def test_histogram_from_added_counts() -> None:
    """Counts of several processes can be added; quantiles cannot."""
    whole, half, rest = Histogram(), Histogram(), Histogram()
    for at in range(100):
        (half if at < 50 else rest).record(0.001 * (at + 1))
        whole.record(0.001 * (at + 1))
    counts = [a + b for a, b in zip(half.counts, rest.counts, strict=True)]
    merged = Histogram.of(counts, half.total + rest.total)
    assert [merged.quantile(q) for q in (0.5, 0.9, 0.99)] == [whole.quantile(q) for q in (0.5, 0.9, 0.99)]
    assert merged.count == 100
    assert merged.total == pytest.approx(whole.total)
