"""What one process of several has of a bound that is stated for the whole unit."""

from __future__ import annotations


def share(whole: int, index: int, of: int) -> int:
    """What process `index` has of `whole`. The shares add up to it; but each process has one at least."""
    return max(1, whole // of + (index < whole % of))
