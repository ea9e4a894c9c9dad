"""The exception for a violated contract rule."""

from __future__ import annotations


class ContractBroken(AssertionError):
    """A policy violates a rule of the contract."""


def require(kept: bool, otherwise: str) -> None:
    """Raise ContractBroken with the message `otherwise` unless `kept`."""
    if not kept:
        raise ContractBroken(otherwise)
