"""Names of the oracle policies, which exist in the simulator only."""

from __future__ import annotations

CLAIRVOYANT = "oracle-clairvoyant"
"""The bound to which reports state the distance of every policy."""

ORACLE_NAMES = (
    "oracle-least-work",
    "oracle-least-work-of-two",
    "oracle-central-queue",
    "oracle-static-split",
    CLAIRVOYANT,
)


def is_oracle(name: str) -> bool:
    """Whether the policy exists in the simulator only."""
    return name in ORACLE_NAMES
