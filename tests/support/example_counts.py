"""Number of examples for property tests.

Examples are the same in every run unless `pytest --seed=N` draws others; STEELYARD_EXAMPLES overrides their number.
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

_REQUESTED = int(os.environ.get("STEELYARD_EXAMPLES", "0"))


def examples(default: int) -> settings:
    """Settings with `default` examples, or with as many as the environment requests."""
    return settings(
        max_examples=_REQUESTED or default,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
