"""What a rule says of a policy that breaks it."""

from __future__ import annotations


class ContractBroken(AssertionError):
    """A policy did what no policy may do."""


def demand(kept: bool, otherwise: str) -> None:
    """Raises ContractBroken unless it is kept."""
    if not kept:
        raise ContractBroken(otherwise)
