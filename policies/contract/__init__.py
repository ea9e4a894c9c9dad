"""Contract tests that every policy must pass, for use with policies of other packages.

The contract imports nothing of the policies it tests.

`check` tests what every policy must satisfy, and `python -m policies.contract FILE.py:CLASS` does so as a command.
`Trial` is the test bench, and `spread` has tests whose bounds depend on the policy.
"""

from policies.contract.broken import ContractBroken
from policies.contract.rules import (
    RecoverySignal,
    avoids_failing,
    avoids_starvation,
    ends_rejections,
    ends_with_failures,
    repeats_itself,
    respects_slow_start,
    returns_in_time,
    share_after_return,
    spares_a_cold_endpoint,
    stays_within_the_set,
)
from policies.contract.spread import (
    begins_anywhere,
    begins_by_weight,
    evens_out,
    finds_the_idle,
    fullest,
    idle_share,
    imbalance,
    keeps_the_fullest_low,
    most_first,
    respects_weights,
    weight_error,
)
from policies.contract.trial import REGION, Answer, ManualClock, Trial, endpoints, steady
from policies.loading.construction import maker_of
from policies.policy import PolicyMaker

RULES = (
    stays_within_the_set,
    repeats_itself,
    begins_anywhere,
    avoids_starvation,
    spares_a_cold_endpoint,
    avoids_failing,
    ends_with_failures,
    ends_rejections,
    returns_in_time,
    respects_slow_start,
)


def check(make: PolicyMaker) -> None:
    """Test a policy against all rules; `make` is its class, or makes it. Raises ContractBroken with the violation."""
    for rule in RULES:
        rule(maker_of(make))


__all__ = [
    "REGION",
    "RULES",
    "Answer",
    "ContractBroken",
    "ManualClock",
    "RecoverySignal",
    "Trial",
    "avoids_failing",
    "avoids_starvation",
    "begins_anywhere",
    "begins_by_weight",
    "check",
    "endpoints",
    "ends_rejections",
    "ends_with_failures",
    "evens_out",
    "finds_the_idle",
    "fullest",
    "idle_share",
    "imbalance",
    "keeps_the_fullest_low",
    "most_first",
    "repeats_itself",
    "respects_slow_start",
    "respects_weights",
    "returns_in_time",
    "share_after_return",
    "spares_a_cold_endpoint",
    "stays_within_the_set",
    "steady",
    "weight_error",
]
