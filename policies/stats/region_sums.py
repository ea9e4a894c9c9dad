"""Decayed sums over the answers of one region, from which its service time and concurrency are estimated."""

from __future__ import annotations


class RegionSums:
    """Sums that decay with time.

    `samples` is how many answers count. `logs`, `errors` and `squares` have an element per possible concurrency: of the
    logarithms of service times, and of the errors of predicted logarithms and their squares. The others are of the
    concurrency at the position `choice`, since it was chosen: `count` answers, the logarithms `excesses` relative to
    each endpoint's mean, their exponentials `works`, and the squares of those, `work_squares`.
    """

    __slots__ = (
        "choice",
        "count",
        "errors",
        "excesses",
        "logs",
        "samples",
        "squares",
        "work_squares",
        "works",
    )

    def __init__(self, size: int) -> None:
        self.choice = 0
        self.samples = self.count = self.excesses = self.works = self.work_squares = 0.0
        self.logs, self.errors, self.squares = [0.0] * size, [0.0] * size, [0.0] * size

    def choose(self, choice: int) -> None:
        """Choose another concurrency, and begin anew the sums that depend on it."""
        self.choice = choice
        self.count = self.excesses = self.works = self.work_squares = 0.0

    def variance(self, i: int) -> float:
        """Return the variance of the errors with the concurrency at position `i`."""
        mean = self.errors[i] / self.samples
        return max(1e-4, self.squares[i] / self.samples - mean * mean)

    def copy(self) -> RegionSums:
        """Return a copy that later answers do not change."""
        other = RegionSums(0)
        other.choice, other.samples, other.count = self.choice, self.samples, self.count
        other.excesses, other.works, other.work_squares = self.excesses, self.works, self.work_squares
        other.logs, other.errors, other.squares = self.logs[:], self.errors[:], self.squares[:]
        return other
