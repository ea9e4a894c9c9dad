"""Contract tests that every policy must pass, for use with policies of other packages.

The contract imports nothing of the policies it tests.

`check` tests what every policy must satisfy, and `python -m policies.contract FILE.py:CLASS` does so as a command.
`Trial` is the test bench, and `spread` measures distributions whose bounds depend on the policy.
"""

from collections.abc import Callable

from policies.contract import rules, spread
from policies.contract.trial import REGION, Answer, ContractBroken, ManualClock, Trial, endpoints, steady
from policies.loading.construction import maker_of
from policies.policy import Policy

RULES = (
    rules.stays_within_the_set,
    rules.repeats_itself,
    rules.changes_no_counts,
    spread.begins_anywhere,
    rules.avoids_starvation,
    rules.spares_a_cold_endpoint,
    rules.avoids_failing,
    rules.ends_with_failures,
    rules.ends_rejections,
    rules.returns_in_time,
    rules.respects_slow_start,
)


def check(make: Callable[..., Policy]) -> None:
    """Test a policy against all rules; `make` is its class, or makes it of a random source.

    Raises ContractBroken with the violation.
    """
    for rule in RULES:
        rule(maker_of(make))


__all__ = [
    "REGION",
    "RULES",
    "Answer",
    "ContractBroken",
    "ManualClock",
    "Trial",
    "check",
    "endpoints",
    "rules",
    "spread",
    "steady",
]
