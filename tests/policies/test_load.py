"""Accumulators: mean, minimum and histogram; reading changes nothing."""

from __future__ import annotations

from math import exp, inf
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.stats.load import LONGEST, NEGLIGIBLE_WEIGHT, SHORTEST, Ewma, Histogram, WindowedMinimum


def test_ewma_weighs_by_age() -> None:
    """A sample one tau old counts 1/e of a fresh one."""
    mean = Ewma(2.0)
    mean.add(10.0, 0.0)
    mean.add(20.0, 2.0)
    assert mean.read() == pytest.approx((10 * exp(-1) + 20) / (exp(-1) + 1))


def test_ewma_counts_every_sample_of_one_instant() -> None:
    """Samples that arrive together count equally, as does one that arrives out of order."""
    mean = Ewma(1.0)
    for value, now in ((1.0, 5.0), (2.0, 5.0), (3.0, 4.9)):
        mean.add(value, now)
    assert mean.read() == pytest.approx(2.0)


def test_ewma_read_does_not_mutate() -> None:
    """Reading at a far later time does not forget."""
    mean = Ewma(1.0)
    mean.add(7.0, 0.0)
    assert mean.read(100.0) is None
    assert mean.weight(100.0) < NEGLIGIBLE_WEIGHT
    assert mean.read(1.0) == 7.0


def test_minimum_remembers_one_to_two_windows() -> None:
    """It outlives one window and is forgotten after two."""
    minimum = WindowedMinimum(10.0)
    for value, now in ((1.0, 0.0), (5.0, 9.0), (5.0, 12.0)):
        minimum.add(value, now)
    assert minimum.least == 1.0
    minimum.add(4.0, 23.0)
    assert minimum.least == 4.0


def test_minimum_forgets_all_after_a_long_silence() -> None:
    """What was measured two windows ago does not survive as the previous bucket."""
    minimum = WindowedMinimum(10.0)
    minimum.add(1.0, 0.0)
    minimum.add(3.0, 100.0)
    assert minimum.least == 3.0


def test_without_samples_nothing_is_known() -> None:
    """The minimum of nothing is above everything."""
    assert (Ewma(1.0).read(), Ewma(1.0).read(5.0)) == (None, None)
    assert WindowedMinimum(1.0).least == inf
    assert (Histogram().quantile(0.5), Histogram().count) == (None, 0)


@given(st.lists(st.floats(SHORTEST, LONGEST), min_size=1, max_size=50), st.floats(0, 1))
def test_quantile_is_within_five_percent(samples: list[float], q: float) -> None:
    """Any quantile of any samples from 100 µs to 600 s is off by 5 % at most."""
    histogram = Histogram()
    for sample in samples:
        histogram.record(sample)
    rank = max(1, -int(-q * len(samples) // 1))
    assert histogram.quantile(q) == pytest.approx(sorted(samples)[rank - 1], rel=0.05)


def test_histogram_counts_values_out_of_range_at_its_ends() -> None:
    histogram = Histogram()
    for sample in (0.0, 1e-6, 5000.0):
        histogram.record(sample)
    assert histogram.count == 3
    assert histogram.quantile(0.5) == SHORTEST
    assert histogram.quantile(1.0) == LONGEST
    assert histogram.total == pytest.approx(5000.0, rel=1e-6)


def test_cumulative_buckets_grow_to_the_count() -> None:
    """Bounds rise, counts never fall, the last is (inf, all), and each counts the samples up to its bound."""
    rng, histogram = Random(1), Histogram()
    samples = [rng.lognormvariate(-2, 2) for _ in range(500)]
    for sample in samples:
        histogram.record(sample)
    rows = list(histogram.cumulative())
    assert rows == sorted(rows)
    assert rows[-1] == (inf, 500)
    assert all(abs(seen - sum(x <= bound * 1.0000001 for x in samples)) <= 1 for bound, seen in rows)
    assert len(rows) < 25
