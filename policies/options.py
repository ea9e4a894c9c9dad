"""Options of a policy: checked where they are used, reported where they are written.

Rule of this file: a policy's keyword-only arguments are its options. Nothing states them a second time.
"""

from __future__ import annotations

from typing import TypeVar

from policies.errors import BadPolicyOption

Number = TypeVar("Number", int, float)


def at_least(least: float, **option: Number) -> Number:
    """The one option given, if it is not below `least`.

    Raises BadPolicyOption naming it; the registry puts the policy's place in the configuration before the
    name.
    """
    [(name, value)] = option.items()
    if not value >= least:
        raise BadPolicyOption(name, f"must be >= {least}, got {value}")
    return value


def between(least: float, most: float, **option: Number) -> Number:
    """The one option given, if it is in [least, most]. Raises BadPolicyOption as `at_least` does."""
    [(name, value)] = option.items()
    if not least <= value <= most:
        raise BadPolicyOption(name, f"must be from {least} to {most}, got {value}")
    return value
