"""A cell of a sweep: one policy under one scenario, knob setting and seed, identified by a digest of all of it.

Two cells have the same identity exactly if they must have the same result. Descriptive parts of a scenario (its
question, its other entries, its thresholds) do not enter the identity.

A knob is a value at a dotted path of a scenario, which is validated as a whole after the knobs are applied, so a knob
obeys the same rules as a file.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from inspect import Parameter, signature
from itertools import product
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from experiments.errors import BadInputError
from experiments.scenario.balancer_keys import MEANINGLESS, read_settings
from experiments.scenario.files import first_complaint, load_scenario
from experiments.scenario.oracles import is_oracle
from experiments.scenario.overrides import require_policy
from experiments.scenario.scenario import DESCRIPTIVE, Entry, Scenario
from experiments.scenario.supported import require_simulated_entry
from experiments.simulator.oracles import ORACLES
from experiments.sweep.grid import POLICY_KNOB, Grid, GridPolicy
from policies import registry
from policies.errors import PoliciesError
from policies.loading.reference import is_reference, reference_in
from policies.loading.source import Source


@dataclass(frozen=True, slots=True)
class Cell:
    """Unit of computation. `scenario` contains only this entry and this seed."""

    identity: str
    scenario: Scenario
    setting: Setting
    seed: int
    code: str
    files: tuple[Source, ...] = ()

    @property
    def entry(self) -> Entry:
        return self.scenario.entries[0]

    @property
    def size(self) -> int:
        """Number of requests, from which the computing time is estimated."""
        return self.scenario.load_of(self.entry).planned


def cells_of(grid: Grid, code: str) -> list[Cell]:
    """Cells of a grid, seed by seed, so that a stopped sweep has complete blocks. Raises `BadInputError`."""
    try:
        require_owners(grid.knobs, known_policies(grid))
    except PoliciesError as error:
        raise BadInputError(f"policies: {error}") from None
    bases = [
        (content_of(scenario, entry), scenario, entry, around + within)
        for scenario, around in scenarios_of(grid)
        for entry, within in entries_of(grid, scenario)
    ]
    require_different([read_content(*base) for base in bases], grid)
    return [
        Cell(
            identity_of(content, seed, code),
            scenario.model_copy(update={"entries": (entry,), "baseline": entry.label, "seed": seed}),
            setting,
            seed,
            code,
            files_of(entry),
        )
        for seed in grid.seeds
        for content, scenario, entry, setting in bases
    ]


def read_content(content: dict[str, Any], scenario: Scenario, entry: Entry, _: Setting) -> dict[str, Any]:
    """The content without settings of mechanisms that are off in the cell, which change nothing."""
    own = content["entry"] | {"balancer": read_settings(scenario.balancer_settings(entry))}
    return content | {"scenario": content["scenario"] | {"balancer": {}}, "entry": own}


def require_different(contents: list[dict[str, Any]], grid: Grid) -> None:
    """Raise `BadInputError` if a knob changes nothing, which would compute every cell again under another name."""
    if len({identity_of(content, 0, "") for content in contents}) < len(contents):
        raise BadInputError(
            f"knobs: one of {', '.join(grid.knobs)} decides nothing in a run, or its mechanism is off"
        )


def known_policies(grid: Grid) -> list[str]:
    """Policy names of the grid. Raises `BadInputError` for an unknown one."""
    names = [competitor.policy.name for competitor in grid.policies]
    for name in names:
        if name not in registry.known() and not is_oracle(name) and not is_reference(name):
            raise BadInputError(f"policies: unknown {name!r}; known: {', '.join(registry.known())}")
    return names


def scenarios_of(grid: Grid) -> list[tuple[Scenario, Setting]]:
    """Every scenario under every setting of its knobs."""
    loaded = [load_scenario(name) for name in grid.scenarios]
    names = [scenario.name for scenario in loaded]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise BadInputError(f"scenarios: two have the name {twice!r}")
    short = [scenario.quickened() if grid.quick else scenario for scenario in loaded]
    own_knobs = {knob: values for knob, values in grid.knobs.items() if not knob.startswith(POLICY_KNOB)}
    return [
        (with_setting(scenario, setting), setting) for scenario in short for setting in settings(own_knobs)
    ]


def entries_of(grid: Grid, scenario: Scenario) -> list[tuple[Entry, Setting]]:
    """Every policy under every setting of its own knobs, constructed once so that a bad option fails before a run."""
    return [
        (entry_of(competitor, setting, scenario), setting)
        for competitor in grid.policies
        for setting in settings(policy_knobs(grid.knobs, competitor.policy.name))
    ]


def entry_of(competitor: GridPolicy, setting: Setting, scenario: Scenario) -> Entry:
    """Entry of a policy with its knobs; a missing option `region` is the home region. Raises `BadInputError`."""
    spec: dict[str, Any] = competitor.policy.model_dump()
    region = options_of(competitor.policy.name).get("region")
    if region is not None and region.default is region.empty:
        spec.setdefault("region", scenario.home_region)
    for knob, value in setting:
        set_knob(spec, knob.removeprefix(POLICY_KNOB), value)
    extra = {"balancer": competitor.balancer} if competitor.balancer else {}
    if not is_oracle(spec["name"]):
        require_policy("", spec, f"policies.{competitor.name}")
    try:
        entry = Entry.model_validate({"label": competitor.name, "policy": spec, **extra})
    except ValidationError as error:
        raise BadInputError(f"policies.{competitor.name}: {first_complaint(error, Entry)}") from None
    require_simulated_entry(scenario, entry)
    return entry


def content_of(scenario: Scenario, entry: Entry) -> dict[str, Any]:
    """Content that determines the result besides seed and code."""
    raw = scenario.model_dump(mode="json", exclude={*DESCRIPTIVE, "entries"})
    content: dict[str, Any] = {
        "scenario": raw,
        "entry": entry.model_dump(mode="json"),
        "replayed": replayed(scenario),
    }
    if versions := {name: registry.LIBRARY.source_of(name).version for name in references_of(entry)}:
        content["files"] = versions  # a changed file is another policy
    return content


def references_of(entry: Entry) -> list[str]:
    """References of an entry's policy, and of those that it wraps, to files and modules."""
    return list(registry.references_in(entry.policy.model_dump()))


def files_of(entry: Entry) -> tuple[Source, ...]:
    """Contents of the entry's files, which the process that computes the cell uses instead of the disk's."""
    found = {name: registry.LIBRARY.source_of(name) for name in references_of(entry)}
    return tuple(source for name, source in found.items() if reference_in(name).is_file)


def replayed(scenario: Scenario) -> str | None:
    """Digest of the recording that a scenario replays, if any. Raises `BadInputError` when it cannot be read."""
    file = scenario.load.file
    if file is None:
        return None
    try:
        return hashlib.sha256(Path(file).read_bytes()).hexdigest()
    except OSError as error:
        raise BadInputError(f"{scenario.name}: load.file: {file}: {error.strerror}") from None


def identity_of(content: dict[str, Any], seed: int, code: str) -> str:
    """Digest that identifies the cell, independent of the machine and of the order of keys."""
    text = json.dumps(content | {"seed": seed, "code": code}, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:32]


Setting = tuple[tuple[str, Any], ...]
"""Knob and value, in the grid's order."""

NAMES = ("name", "label", "target")
"""Keys by which a row of a list is addressed, as in `regions.emea.rtt`."""


def settings(knobs: Mapping[str, Sequence[Any]]) -> list[Setting]:
    """Cartesian product of the knob values; one empty setting without knobs."""
    return [tuple(zip(knobs, values, strict=True)) for values in product(*knobs.values())]


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
