"""What is expected of each policy of the table, beyond the contract."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from policies import contract, registry
from policies.policy import PolicyMaker


@dataclass(frozen=True)
class Expected:
    """Bounds for one policy, beyond the rules for all."""

    imbalance: float  # the largest share among equal endpoints, over the fair share
    weights: float | None  # how far a share may be from the weights; None: they are ignored on purpose
    idle: float  # the least share of the idle one of two
    fullest: float = (
        20.0  # most that one of 100 holds of 1000 requests, on average (random 19, two choices 12)
    )
    begins_by_weight: bool = True  # balancers that start together begin at others than the heaviest, too
    back: float = 0.7  # the part of a fair share in the third second after recovery
    options: dict[str, Any] = field(default_factory=dict)


EXPECTED = {
    "random": Expected(imbalance=1.08, weights=0.02, idle=0.4),
    "round-robin": Expected(imbalance=1.001, weights=0.001, idle=0.5, fullest=10.0),
    "region-round-robin": Expected(imbalance=1.001, weights=0.001, idle=0.5, fullest=10.0),
    "single-region": Expected(
        imbalance=1.02, weights=0.02, idle=1.0, fullest=12.5, options={"region": contract.REGION}
    ),
    "least-in-flight": Expected(imbalance=1.02, weights=0.02, idle=1.0, fullest=12.5),
    "latency-weighted": Expected(imbalance=1.08, weights=0.02, idle=0.4, fullest=15.5),
    "region-aware": Expected(imbalance=1.02, weights=0.02, idle=1.0, fullest=12.5),
    "steelyard": Expected(imbalance=1.02, weights=0.02, idle=1.0, fullest=12.5),
    "smooth-round-robin": Expected(imbalance=1.001, weights=0.001, idle=0.5, fullest=10.0),
    "edf-round-robin": Expected(imbalance=1.001, weights=0.001, idle=0.5, fullest=10.0),
    "peak-ewma": Expected(imbalance=1.02, weights=0.02, idle=1.0, fullest=12.5),
    "least-time": Expected(imbalance=1.02, weights=0.02, idle=1.0, fullest=10.0),
    "reported-load": Expected(imbalance=1.001, weights=0.001, idle=0.5, fullest=10.0),
    # the quickest cold endpoint gets all until it is hot, so shares vary; weights count only in what is hot
    "prequal": Expected(imbalance=1.1, weights=None, idle=1.0, fullest=12.5, back=1 / 3),
    "c3": Expected(imbalance=1.02, weights=0.02, idle=1.0, fullest=11.5),
    # the idle queue ignores weights; where none is idle, the pick is random
    "join-idle-queue": Expected(imbalance=1.08, weights=0.02, idle=1.0),
}


def maker(name: str) -> PolicyMaker:
    """A maker of the policy with the options of its row."""
    return lambda rng: registry.make(name, EXPECTED[name].options, rng)
