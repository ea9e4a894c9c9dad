"""How hard the property tests of this room try.

The examples are the same in every run, so that a change fails for what it changes; `pytest --seed=N` draws others.
STEELYARD_EXAMPLES=5000 in the environment tries that many. What fails is printed with how to see it again.
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

_ASKED = int(os.environ.get("STEELYARD_EXAMPLES", "0"))


def tries(usual: int) -> settings:
    """Settings with so many examples, unless the environment asks for more; the rest is the profile's."""
    return settings(
        max_examples=_ASKED or usual,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
