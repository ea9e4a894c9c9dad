"""Command-line overrides of a scenario.

An option that contradicts another is rejected by name, never ignored. An overridden scenario is validated as a whole
again, so an option obeys the same rules as a file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from random import Random
from typing import Any

from pydantic import ValidationError

from experiments.errors import BadInputError
from experiments.scenario.files import first_complaint, unreached
from experiments.scenario.oracles import is_oracle
from experiments.scenario.scenario import Entry, PolicySpec, Scenario
from policies import registry
from policies.errors import PoliciesError
from policies.loading.reference import is_reference, labels_of, located_here


@dataclass(frozen=True, slots=True, kw_only=True)
class Overrides:
    """Options of `experiments run`; None where not given. `duration` in seconds, `rate` per second."""

    policies: tuple[str, ...] = ()
    requests: int | None = None
    batch: int | None = None
    rate: float | None = None
    duration: float | None = None
    blocks: int | None = None
    seed: int | None = None
    time_scale: float | None = None
    quick: bool = False


def overridden(scenario: Scenario, given: Overrides) -> Scenario:
    """Scenario with the overrides applied. Raises `BadInputError` naming the option."""
    mode = chosen_mode(scenario, given)
    if given.rate is not None and scenario.load.arrivals == "replay":
        raise BadInputError("--rate: a replay has the rate that was recorded")
    if scenario.load.arrivals == "stages" and (given.rate, given.duration) != (None, None):
        raise BadInputError("--rate, --duration: the stages of this scenario have their own")
    scenario = scenario.quickened() if given.quick else scenario
    changes: dict[str, Any] = {"blocks": given.blocks, "seed": given.seed, "time_scale": given.time_scale}
    load: dict[str, Any] = {"mode": mode, "requests": given.requests, "batch": given.batch}
    load |= {"rate": given.rate, "duration": given.duration}
    raw = scenario.model_dump(mode="json")
    raw |= present(changes)
    raw["load"] |= present(load)
    entries = competing(scenario, given.policies, mode)
    raw["entries"] = [entry.model_dump() for entry in entries]  # options as they are
    labels = [entry.label for entry in entries]
    raw["baseline"] = scenario.baseline if scenario.baseline in labels else labels[0]
    options = [field.name for field in fields(given) if getattr(given, field.name) not in (None, (), False)]
    chosen = checked(raw, options)
    if chosen.load.is_replay:
        raw["load"]["duration"] = chosen.load.recorded_duration
        chosen = checked(raw, ())
    for complaint in unreached(chosen) if given.duration and not any(unreached(scenario)) else ():
        raise BadInputError(f"--duration: {complaint}")
    return chosen


def present(values: dict[str, Any]) -> dict[str, Any]:
    """The items whose value is not None."""
    return {name: value for name, value in values.items() if value is not None}


def chosen_mode(scenario: Scenario, given: Overrides) -> str:
    """Loop mode: open for `--rate` and `--duration`, closed for `--requests` and `--batch`; a mix is an error."""
    closed = [name for name in ("requests", "batch") if getattr(given, name) is not None]
    opened = [name for name in ("rate", "duration") if getattr(given, name) is not None]
    if closed and opened:
        raise BadInputError(
            f"--{closed[0]} and --{opened[0]}: choose a closed loop (--requests, --batch) or an open one "
            "(--rate, --duration)"
        )
    if opened == ["duration"] and scenario.load.mode == "closed":
        raise BadInputError("--duration: this scenario is a closed loop; an open one needs --rate too")
    return "closed" if closed else "open" if opened else scenario.load.mode


def competing(scenario: Scenario, wanted: Sequence[str], mode: str) -> list[Entry]:
    """Selected entries, by label or policy name; a policy without an entry gets a new one.

    An open loop has no batch, so entries that override the batch are left out.
    """
    entries = [entry for entry in scenario.entries if mode == "closed" or entry.batch is None]
    if wanted:
        own = {entry.label for entry in entries}
        names = [name if name in own else located_here(name) for name in wanted]
        labels = labels_of_files([name for name in names if name not in own and is_reference(name)])
        entries = [entry for name in names for entry in entries_named(entries, name, labels.get(name, name))]
    found = [entry.label for entry in entries]
    if len(set(found)) < len(found):
        raise BadInputError(f"--policies: an entry is named twice in {','.join(wanted)!r}")
    alone = [entry for entry in entries if entry.repeat_of is not None and entry.repeat_of not in found]
    if wanted and alone:
        control = alone[0]
        raise BadInputError(
            f"--policies: {control.label!r} is the A/A control of {control.repeat_of!r}: name that too"
        )
    return [entry for entry in entries if entry not in alone]


def labels_of_files(references: Sequence[str]) -> dict[str, str]:
    """Labels by reference. Raises `BadInputError` for one that is malformed."""
    try:
        return dict(zip(references, labels_of(references), strict=True))
    except PoliciesError as error:
        raise BadInputError(f"--policies: {error}") from None


def entries_named(entries: Sequence[Entry], name: str, label: str) -> list[Entry]:
    """Entries with this label, else with this policy (A/A controls aside), else a new entry if the policy exists.

    A new entry has the given label: of FILE.py:CLASS the class.
    """
    by_label = [entry for entry in entries if entry.label == name]
    by_policy = [entry for entry in entries if entry.policy.name == name and entry.repeat_of is None]
    if by_label or by_policy:
        return by_label or by_policy
    if name not in registry.known() and not is_oracle(name) and not is_reference(name):
        labels = ", ".join(dict.fromkeys([*(entry.label for entry in entries), *registry.known()]))
        raise BadInputError(f"--policies: unknown {name!r}; known: {labels}")
    return [Entry(label=label, policy=PolicySpec(name=name))]


def checked(raw: dict[str, Any], options: Sequence[str]) -> Scenario:
    """Validate the scenario and construct every policy once. A complaint names its option, else all that were given."""
    try:
        scenario = Scenario.model_validate(raw)
    except ValidationError as error:
        complaint = re.sub(r"^load(: |\.)", "", first_complaint(error))
        named, _, rest = complaint.partition(": ")
        words, rest = ([named], rest) if named in options else (options, complaint)
        prefix = ", ".join(f"--{word.replace('_', '-')}" for word in words)
        raise BadInputError(f"{prefix}: {rest}".removeprefix(": ")) from None
    for entry in scenario.entries:
        if not is_oracle(entry.policy.name):
            place = f"entries.{entry.label}"
            require_policy(f"{place}: ", entry.policy.model_dump(), f"{place}.policy")
    return scenario


def require_policy(prefix: str, table: Mapping[str, Any], place: str = "policy") -> None:
    """Construct a policy once. Raises `BadInputError` that begins with `prefix`."""
    try:
        registry.make(table["name"], {key: table[key] for key in table if key != "name"}, Random(0), place)
    except PoliciesError as error:
        raise BadInputError(f"{prefix}{error}") from None
