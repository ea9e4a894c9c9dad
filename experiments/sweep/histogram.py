"""Latency histogram of a few hundred bytes: counts in buckets that are each at most 3 % wide.

Buckets follow from the bits of a number alone, so all machines agree. The error is bounded by the bucket width;
quantiles that a report ranks by are taken from raw samples.
"""

from __future__ import annotations

import numpy as np

from experiments.stats.samples import Floats, Ints

STEPS = 32
"""Buckets from each power of two to the next."""

ROW = np.dtype([("bucket", "<i2"), ("count", "<u4")])


def packed(seconds: Floats) -> bytes:
    """Counts of the non-empty buckets, in order. `seconds` of shape (n,), finite and not negative."""
    buckets, counts = np.unique(bucket_of(seconds), return_counts=True)
    rows = np.empty(len(buckets), dtype=ROW)
    rows["bucket"], rows["count"] = buckets, counts
    return rows.tobytes()


def bucket_of(seconds: Floats) -> Ints:
    """Bucket number of each value; values below a nanosecond share one bucket."""
    fraction, exponent = np.frexp(np.maximum(seconds, 1e-9))
    return np.asarray(exponent * STEPS + np.floor((fraction - 0.5) * 2 * STEPS), dtype=np.int64)


def unpacked(data: bytes) -> tuple[Floats, Ints]:
    """Upper edge of each bucket in seconds, and its count; both of shape (buckets,)."""
    rows = np.frombuffer(data, dtype=ROW)
    exponent, step = np.divmod(rows["bucket"].astype(np.int64), STEPS)
    return np.ldexp(0.5 + (step + 1) / (2 * STEPS), exponent), rows["count"].astype(np.int64)
