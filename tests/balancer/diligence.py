"""How hard the property tests of this room try.

Rule of this file: by default the same examples every time, so that a change fails for what it changes. With
STEELYARD_EXAMPLES=5000 in the environment there are that many, others in each run; what fails is printed with how to
see it again.
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

_ASKED = int(os.environ.get("STEELYARD_EXAMPLES", "0"))


def tries(usual: int) -> settings:
    """So many examples, unless the environment asks for more. No deadline: a busy machine is no fault."""
    return settings(
        max_examples=_ASKED or usual,
        derandomize=not _ASKED,
        database=None,
        deadline=None,
        print_blob=True,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
