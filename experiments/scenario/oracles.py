"""Names of the oracle policies, which exist in the simulator only."""

from __future__ import annotations

INFORMED = "oracle-informed"
CLAIRVOYANT = "oracle-clairvoyant"

BOUNDS = {
    INFORMED: "knows the present speed, queue and faults of every worker, but not the work of a request",
    CLAIRVOYANT: "knows all work, queues and faults, future ones too, which no balancer can",
}
"""The oracles to which reports state the distance of every policy, and what each knows."""

ORACLE_NAMES = (
    "oracle-least-work",
    "oracle-least-work-of-two",
    "oracle-central-queue",
    "oracle-static-split",
    *BOUNDS,
)


def is_oracle(name: str) -> bool:
    """Whether the policy exists in the simulator only."""
    return name in ORACLE_NAMES
