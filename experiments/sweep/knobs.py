"""Knobs of a sweep: set a value at a dotted path of a scenario, and enumerate the settings of a grid.

The scenario is validated as a whole after the knobs are applied, so a knob obeys the same rules as a file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from inspect import Parameter, signature
from itertools import product
from typing import Any

from pydantic import ValidationError

from experiments.errors import BadInputError
from experiments.scenario.balancer_keys import MEANINGLESS
from experiments.scenario.files import first_complaint
from experiments.scenario.oracles import is_oracle
from experiments.scenario.scenario import Scenario
from experiments.simulator.oracles import ORACLES
from experiments.sweep.grid import POLICY_KNOB
from policies import registry

Setting = tuple[tuple[str, Any], ...]
"""Knob and value, in the grid's order."""

NAMES = ("name", "label", "target")
"""Keys by which a row of a list is addressed, as in `regions.emea.rtt`."""


def settings(knobs: Mapping[str, Sequence[Any]]) -> list[Setting]:
    """Cartesian product of the knob values; one empty setting without knobs."""
    return [tuple(zip(knobs, values, strict=True)) for values in product(*knobs.values())]


def scenario_knobs(knobs: Mapping[str, Sequence[Any]]) -> dict[str, Sequence[Any]]:
    """Knobs whose key belongs to the scenario."""
    return {knob: values for knob, values in knobs.items() if not knob.startswith(POLICY_KNOB)}


def policy_knobs(knobs: Mapping[str, Sequence[Any]], policy: str) -> dict[str, Sequence[Any]]:
    """Knobs that are options of this policy; others do not multiply its cells."""
    options = options_of(policy)
    return {
        knob: values
        for knob, values in knobs.items()
        if knob.startswith(POLICY_KNOB) and knob.removeprefix(POLICY_KNOB).split(".")[0] in options
    }


def options_of(policy: str) -> dict[str, Parameter]:
    """Options of a policy, including those of the simulator's oracles."""
    if is_oracle(policy):
        parameters = signature(ORACLES[policy]).parameters.values()
        return {
            parameter.name: parameter for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY
        }
    return registry.options_of(registry.find(policy))


def require_owners(knobs: Mapping[str, Sequence[Any]], policies: Sequence[str]) -> None:
    """Check that every policy knob is an option of at least one policy of the grid. Raises `BadInputError`."""
    owned = {knob for policy in policies for knob in policy_knobs(knobs, policy)}
    for knob in knobs:
        if knob.startswith(POLICY_KNOB) and knob not in owned:
            option = knob.removeprefix(POLICY_KNOB)
            raise BadInputError(
                f"knobs.{knob}: no policy of the grid has an option {option!r}; they are {', '.join(policies)}"
            )


def with_setting(scenario: Scenario, setting: Setting) -> Scenario:
    """Scenario with the knobs of the setting applied. Raises `BadInputError` naming the knob."""
    raw = scenario.model_dump(mode="json")
    try:
        for knob, value in setting:
            set_knob(raw, knob, value)
        changed = Scenario.model_validate(raw)
        for knob, _ in setting:
            require_read(changed, knob)
        return changed
    except BadInputError as error:
        raise BadInputError(f"{scenario.name}: {error}") from None
    except ValidationError as error:
        applied = ", ".join(f"{knob} = {value!r}" for knob, value in setting)
        raise BadInputError(f"knobs: {applied} in {scenario.name}: {first_complaint(error)}") from None


def require_read(scenario: Scenario, knob: str) -> None:
    """Check that the knob is a key that simulated runs of the scenario read. Raises `BadInputError`."""
    table, _, key = knob.partition(".")
    if table == "balancer" and key in MEANINGLESS:
        raise BadInputError(f"knobs.{knob}: decides nothing in virtual time: {MEANINGLESS[key]}")
    if table == "load" and key in scenario.load.unread:
        raise BadInputError(f"knobs.{knob}: is not read with {scenario.load.unread[key]}")


def set_knob(raw: Any, knob: str, value: Any) -> None:
    """Set one value in place. Raises `BadInputError` when the path does not exist."""
    *path, last = knob.split(".")
    for step in path:
        raw = child(raw, step, knob)
    raw[knob_row(raw, last, knob) if isinstance(raw, list) else last] = value


def child(raw: Any, step: str, knob: str) -> Any:
    """Table or list under `step`; a missing table is created."""
    if isinstance(raw, list):
        return raw[knob_row(raw, step, knob)]
    if raw.get(step) is None:
        raw[step] = {}
    if not isinstance(raw[step], dict | list):
        raise BadInputError(f"knobs.{knob}: {step!r} is a value and has no keys")
    return raw[step]


def knob_row(rows: list[Any], step: str, knob: str) -> int:
    """Index of the row with this name or number. Raises `BadInputError`."""
    for place, row in enumerate(rows):
        if isinstance(row, dict) and step in (row.get(name) for name in NAMES):
            return place
    if step.isdecimal() and int(step) < len(rows):
        return int(step)
    known = [str(row[name]) for row in rows if isinstance(row, dict) for name in NAMES if name in row]
    raise BadInputError(f"knobs.{knob}: no {step!r}; known: {', '.join(known) or f'0 to {len(rows) - 1}'}")
