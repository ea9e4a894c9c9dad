"""Turning a knob: one value at one dotted path of a scenario, and the settings that a grid asks for.

Rule of this file: a scenario is checked as a whole after every knob has been turned, so no knob can do what a file
could not say.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from inspect import Parameter, signature
from itertools import product
from typing import Any

from pydantic import ValidationError

from experiments.campaign.scenario import Scenario
from experiments.campaign.shelf import first_complaint
from experiments.errors import BadInputError
from experiments.simulator.oracles import ORACLES, is_oracle
from experiments.sweep.grid import POLICY_KNOB
from policies.routing import registry

Setting = tuple[tuple[str, Any], ...]
"""Knob and value, in the grid's order."""

NAMES = ("name", "label", "target")
"""Keys by which a row of a list may be called: `regions.emea.rtt`."""


def settings(knobs: Mapping[str, Sequence[Any]]) -> list[Setting]:
    """Every combination; one empty setting without knobs."""
    return [tuple(zip(knobs, values, strict=True)) for values in product(*knobs.values())]


def scenario_knobs(knobs: Mapping[str, Sequence[Any]]) -> dict[str, Sequence[Any]]:
    """Those that turn something of the scenario."""
    return {knob: values for knob, values in knobs.items() if not knob.startswith(POLICY_KNOB)}


def policy_knobs(knobs: Mapping[str, Sequence[Any]], policy: str) -> dict[str, Sequence[Any]]:
    """Those that this policy has an option for; the others do not multiply its cells."""
    options = options_of(policy)
    return {
        knob: values
        for knob, values in knobs.items()
        if knob.startswith(POLICY_KNOB) and knob.removeprefix(POLICY_KNOB).split(".")[0] in options
    }


def options_of(policy: str) -> dict[str, Parameter]:
    """Also of those that only the simulator knows."""
    if is_oracle(policy):
        parameters = signature(ORACLES[policy]).parameters.values()
        return {
            parameter.name: parameter for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY
        }
    return registry.options_of(registry.find(policy))


def require_owners(knobs: Mapping[str, Sequence[Any]], policies: Sequence[str]) -> None:
    """Every knob of a policy is an option of at least one that takes part. Raises BadInputError."""
    owned = {knob for policy in policies for knob in policy_knobs(knobs, policy)}
    for knob in knobs:
        if knob.startswith(POLICY_KNOB) and knob not in owned:
            option = knob.removeprefix(POLICY_KNOB)
            raise BadInputError(
                f"knobs.{knob}: no policy of the grid has an option {option!r}; they are {', '.join(policies)}"
            )


def turned(scenario: Scenario, setting: Setting) -> Scenario:
    """The scenario with every knob at its value. Raises BadInputError naming the knob."""
    raw = scenario.model_dump(mode="json")
    try:
        for knob, value in setting:
            turn(raw, knob, value)
        return Scenario.model_validate(raw)
    except BadInputError as error:
        raise BadInputError(f"{scenario.name}: {error}") from None
    except ValidationError as error:
        said = ", ".join(f"{knob} = {value!r}" for knob, value in setting)
        raise BadInputError(f"knobs: {said} in {scenario.name}: {first_complaint(error)}") from None


def turn(raw: Any, knob: str, value: Any) -> None:
    """Set one value in place. Raises BadInputError when the path leads nowhere."""
    *way, last = knob.split(".")
    for step in way:
        raw = entered(raw, step, knob)
    raw[row_of(raw, last, knob) if isinstance(raw, list) else last] = value


def entered(raw: Any, step: str, knob: str) -> Any:
    """The table or list under `step`; a table that nobody has said yet is made."""
    if isinstance(raw, list):
        return raw[row_of(raw, step, knob)]
    if raw.get(step) is None:
        raw[step] = {}
    if not isinstance(raw[step], dict | list):
        raise BadInputError(f"knobs.{knob}: {step!r} is a value and has no keys")
    return raw[step]


def row_of(rows: list[Any], step: str, knob: str) -> int:
    """The place of the row that is called so, or has this number."""
    for place, row in enumerate(rows):
        if isinstance(row, dict) and step in (row.get(name) for name in NAMES):
            return place
    if step.isdecimal() and int(step) < len(rows):
        return int(step)
    called = [str(row[name]) for row in rows if isinstance(row, dict) for name in NAMES if name in row]
    raise BadInputError(f"knobs.{knob}: no {step!r}; known: {', '.join(called) or f'0 to {len(rows) - 1}'}")
