"""What is expected of each policy of the table, beyond the contract."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from policies import contract, registry
from policies.policy import PolicyMaker


@dataclass(frozen=True)
class Expected:
    """Bounds for one policy, beyond the rules for all; the defaults are those of the less loaded of two."""

    imbalance: float = 1.02  # the largest share among equal endpoints, over the fair share
    weights: float | None = 0.02  # how far a share may be from the weights; None: they are ignored on purpose
    idle: float = 1.0  # the least share of the idle one of two
    fullest: float = (
        12.5  # most that one of 100 holds of 1000 requests, on average (random 19, two choices 12)
    )
    begins_by_weight: bool = True  # balancers that start together begin at others than the heaviest, too
    back: float = 0.7  # the part of a fair share in the third second after recovery
    options: dict[str, Any] = field(default_factory=dict)


IN_TURN = Expected(imbalance=1.001, weights=0.001, idle=0.5, fullest=10.0)

OTHERS = {
    "random": Expected(imbalance=1.08, idle=0.4, fullest=20.0),
    **dict.fromkeys(("round-robin", "region-round-robin", "smooth-round-robin", "edf-round-robin"), IN_TURN),
    "reported-load": IN_TURN,
    "single-region": Expected(options={"region": contract.REGION}),
    "latency-weighted": Expected(imbalance=1.08, idle=0.4, fullest=15.5),
    "least-time": Expected(fullest=10.0),
    # the quickest cold endpoint gets all until it is hot, so shares vary; weights count only in what is hot
    "prequal": Expected(imbalance=1.1, weights=None, back=1 / 3),
    "c3": Expected(fullest=11.5),
    # the idle queue ignores weights; where none is idle, the pick is random
    "join-idle-queue": Expected(imbalance=1.08, fullest=20.0),
    # requests of the contract have no key; each of its hundreds of balancers makes a table all the same
    "ring-hash": Expected(options={"points": 8}),
    "maglev": Expected(options={"table": 251}),
}
"""Policies for which the defaults are too strict or not strict enough."""

EXPECTED = {name: OTHERS.get(name, Expected()) for name in registry.TABLE}


def maker(name: str) -> PolicyMaker:
    """A maker of the policy with the options of its row."""
    return lambda rng: registry.make(name, EXPECTED[name].options, rng)
