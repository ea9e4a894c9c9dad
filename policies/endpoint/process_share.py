"""Share of one process in a limit that applies to all sibling processes together."""

from __future__ import annotations


def share(whole: int, index: int, of: int) -> int:
    """Return the share of process `index` in `whole`, at least 1.

    The shares add up to `whole` unless it is less than `of`.
    """
    return max(1, whole // of + (index < whole % of))
