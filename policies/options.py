"""Range checks for policy options.

A policy's keyword-only arguments are its options; they are not declared anywhere else.
"""

from __future__ import annotations

from typing import TypeVar

from policies.errors import BadPolicyOption

Number = TypeVar("Number", int, float)


def at_least(least: float, **option: Number) -> Number:
    """Return the value of the one option given. Raises BadPolicyOption if it is below `least`.

    The error carries the option's name; the registry prefixes the policy's path in the configuration.
    """
    [(name, value)] = option.items()
    if not value >= least:
        raise BadPolicyOption(name, f"must be >= {least}, got {value}")
    return value


def above(bound: float, **option: Number) -> Number:
    """Return the value of the one option given. Raises BadPolicyOption unless it is above `bound`."""
    [(name, value)] = option.items()
    if not value > bound:
        raise BadPolicyOption(name, f"must be > {bound}, got {value}")
    return value


def between(least: float, most: float, **option: Number) -> Number:
    """Return the value of the one option given. Raises BadPolicyOption if it is outside [least, most]."""
    [(name, value)] = option.items()
    if not least <= value <= most:
        raise BadPolicyOption(name, f"must be from {least} to {most}, got {value}")
    return value
