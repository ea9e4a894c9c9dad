"""Values of the options of `experiments live`."""

from __future__ import annotations

import json
from typing import Any

from experiments.errors import BadInputError
from experiments.scenario.labels import policy_label, shortened
from policies.loading.reference import located_here

LEAST_WASHOUT = 2.0
"""Seconds in which requests that the predecessor placed are usually answered."""


def usual_washout(period: float) -> float:
    """Seconds of wash-out for a period: a sixth, two seconds at least, half of a short one at most."""
    return min(max(LEAST_WASHOUT, period / 6), period / 2)


def policies_chosen(
    policies: str, tables: tuple[str, ...]
) -> tuple[dict[str, dict[str, Any]], tuple[str, str] | None]:
    """Policies by label, and the labels of the A/A pair if one was named twice. Raises `BadInputError`."""
    chosen: dict[str, dict[str, Any]] = {}
    control: tuple[str, str] | None = None
    wanted: list[dict[str, Any]] = [{"name": name.strip()} for name in policies.split(",") if name.strip()]
    wanted = located_here([*wanted, *map(table_in, tables)])
    for policy in wanted:
        label = policy_label(policy, chosen)
        if label not in chosen:
            chosen[label] = policy
        elif control is None:
            control = label, shortened(label, " again")
            chosen[control[1]] = policy
        else:
            raise BadInputError(
                f"--policies: {label!r} is one pair too many; one is enough to know the noise"
            )
    if len(chosen) < 2:
        raise BadInputError("--policies: name two or more, separated by commas")
    return chosen, control


def table_in(text: str) -> dict[str, Any]:
    """Parse a policy with its options. Raises `BadInputError`."""
    try:
        table = json.loads(text)
    except ValueError:
        table = None
    if not isinstance(table, dict) or not isinstance(table.get("name"), str):
        raise BadInputError(f"--policy: must be a JSON object with a name, got {text[:60]!r}")
    return table
