"""A token bucket by its definition, and strategies for its sizes."""

from __future__ import annotations

from hypothesis import strategies as st


class Plain:
    """A token bucket with a level: the definition."""

    def __init__(self, burst: float, rate: float) -> None:
        self.burst, self.rate = burst, rate
        self.tokens, self.at = burst, 0.0

    def look(self, now: float) -> float:
        self.tokens = min(self.burst, self.tokens + self.rate * (now - self.at))
        self.at = now
        return self.tokens


EIGHTHS = st.integers(0, 64).map(lambda number: number / 8)


BURSTS = st.integers(1, 20)


RATES = st.sampled_from([0.125, 0.5, 1.0, 2.0, 8.0])
