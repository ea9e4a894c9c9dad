"""Budgets of bytes that are kept for the clients of a process."""

from __future__ import annotations


class ByteBudget:
    """Bytes that may be kept for all clients of a process, and counts of bodies.

    `total` is the bound, which a reload may set below what is `kept` now. `requests` and `responses` count bodies that
    were kept whole while the client was slow; `requests_streamed` and `responses_streamed` those that were not because
    of the bound.
    """

    def __init__(self) -> None:
        self.total = 0
        self.kept = 0
        self.requests = self.responses = 0
        self.requests_streamed = self.responses_streamed = 0


class Charge:
    """The bytes of one body that are charged to a budget. At its end, `resize(0)` gives them back."""

    def __init__(self, budget: ByteBudget) -> None:
        self.budget = budget
        self.size = 0

    def resize(self, size: int) -> bool:
        """Charge `size` bytes. Returns False, and changes nothing, if they are more than before and beyond the
        bound."""
        budget = self.budget
        kept = budget.kept + size - self.size
        if size > self.size and kept > budget.total:
            return False
        budget.kept = kept
        self.size = size
        return True

    def whole(self, unsent: int) -> None:
        """Count a response that was taken over whole; charges its last read too, if that is within the bound."""
        self.resize(unsent)
        self.budget.responses += 1
