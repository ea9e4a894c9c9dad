"""Scenarios by name: those in the package, random ones, and any TOML file by path.

Every error in a file becomes one line that names the file and the field.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from importlib import resources
from importlib.resources.abc import Traversable
from math import inf
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from balancer.config.documents import parsed, read_text
from experiments.errors import BadInputError
from experiments.scenario.drawn import drawn, is_drawn
from experiments.scenario.events import ALL
from experiments.scenario.scenario import Entry, Scenario
from experiments.scenario.supported import unread_with_engines
from experiments.scenario.table import complaint_in_words
from policies.loading.reference import located


def read_toml(source: Traversable, name: str) -> dict[str, Any]:
    """Parsed document of `source`, which messages call `name`. Raises `BadInputError`."""
    try:
        text = read_text(source) if isinstance(source, Path) else source.read_text("utf-8")
        document: dict[str, Any] = parsed(text)
    except OSError as error:
        raise BadInputError(f"{name}: cannot be read: {error.strerror}") from None
    except ValueError as error:  # invalid TOML or UTF-8, a number with thousands of digits, a NUL in the path
        raise BadInputError(f"{name}: not TOML: {error}") from None
    return document


Validated = TypeVar("Validated", bound=Scenario)

DEFAULT = "regions"

GROUPS = (
    "control",
    "workers that differ",
    "workers in trouble",
    "coming and going",
    "regions",
    "connections",
    "load",
    "many balancers",
    "inference",
)
"""Headings of `experiments show` in order of display; any other follows them."""


def packaged() -> dict[str, Traversable]:
    """Scenario files that come with the package, by name."""
    files = sorted(resources.files("experiments.scenarios").iterdir(), key=lambda file: file.name)
    return {file.name.removesuffix(".toml"): file for file in files if file.name.endswith(".toml")}


def grouped() -> dict[str, list[Scenario]]:
    """Packaged scenarios by heading, in the order of `GROUPS` and then by name. Raises `BadInputError`."""
    shelves: dict[str, list[Scenario]] = {group: [] for group in GROUPS}
    for name in packaged():
        scenario = load_scenario(name)
        shelves.setdefault(scenario.group, []).append(scenario)
    return {group: scenarios for group, scenarios in shelves.items() if scenarios}


def load_scenario(name_or_path: str) -> Scenario:
    """Load a packaged or random scenario by name, or any TOML file by path. Raises `BadInputError` naming the field."""
    if not is_scenario(name_or_path):
        raise BadInputError(f"unknown scenario {name_or_path!r}; known: {known_scenarios()}")
    try:
        scenario = Scenario.model_validate(document(name_or_path))
    except ValidationError as error:
        raise BadInputError(f"{name_or_path}: {first_complaint(error)}") from None
    for complaint in () if is_drawn(name_or_path) else unread_keys(scenario):
        raise BadInputError(f"{name_or_path}: {complaint}")
    for number, entry in enumerate(scenario.entries):
        if "," in entry.label:
            raise BadInputError(
                f"{name_or_path}: entries.{number}.label: must have no comma, got {entry.label!r}"
            )
    return scenario


def unread_keys(scenario: Scenario) -> Iterator[str]:
    """Yield a message for every key that no run would read; not for results, as those of earlier versions have some."""
    for key, instead in scenario.load.unread.items():
        yield f"load.{key}: is not read with {instead}; leave it out"
    key = "requests" if scenario.load.mode == "open" else "duration"
    if key in scenario.quick.model_fields_set:
        yield f"quick.{key}: is not read with mode = {scenario.load.mode!r}; leave it out"
    for number, entry in enumerate(scenario.entries):
        if entry.batch is not None and scenario.load.mode == "open":
            yield f"entries.{number}.batch: is not read with mode = 'open'; leave it out"
    yield from unreached(scenario)
    yield from unlike_pairs(scenario.entries)
    yield from unread_with_engines(scenario)


def unreached(scenario: Scenario) -> Iterator[str]:
    """Yield a message for every key that would be read after the load has ended."""
    load = scenario.load
    end = load.duration if load.mode == "open" else inf
    if load.arrivals == "burst" and load.start >= end:
        yield f"load.start: the load ends at {end:g} s"
    counts = {ALL: len(scenario.workers)} | {region.name: region.workers for region in scenario.regions}
    for number, event in enumerate(scenario.events):
        if event.stagger and (counts.get(event.target, 1) < 2 or event.at + event.stagger >= end):
            yield f"events.{number}.stagger: no second worker has its turn before the load ends; leave it out"


def unlike_pairs(entries: Sequence[Entry]) -> Iterator[str]:
    """Yield a message for a second A/A control, and for one that differs in more than label and thresholds."""
    again = [entry for entry in entries if entry.repeat_of is not None]
    for entry in again[1:]:
        yield f"repeat_of: {entry.label!r} is one too many; one A/A pair shows the noise"
    for entry in again:
        first = next((one for one in entries if one.label == entry.repeat_of), entry)
        odd = [key for key in ("policy", "batch", "balancer") if getattr(entry, key) != getattr(first, key)]
        if first is entry or odd:
            why = f"under another label{'; not the same: ' * bool(odd)}{', '.join(odd)}"
            yield f"repeat_of: {entry.label!r} must be {entry.repeat_of!r} {why}"


def is_scenario(name: str) -> bool:
    """Whether the name is that of a packaged or a random scenario, or a path of a scenario file."""
    return name in packaged() or is_drawn(name) or name.endswith(".toml")


def known_scenarios() -> str:
    """What names a scenario, for messages."""
    return f"{', '.join(packaged())}, random-SEED, or a path that ends in .toml"


def document(name_or_path: str) -> dict[str, Any]:
    """The document of a scenario, before validation. Raises `BadInputError`."""
    if is_drawn(name_or_path):
        return drawn(name_or_path)
    source = packaged().get(name_or_path) or Path(name_or_path)
    return beside(read_toml(source, name_or_path), source)


def beside(raw: dict[str, Any], source: Traversable) -> dict[str, Any]:
    """Resolve the file of a replay, and the files of policies, relative to the scenario file."""
    if isinstance(source, Path) and isinstance(raw.get("entries"), list):
        directory = str(source.absolute().parent)
        raw["entries"] = [
            entry | {"policy": located(entry["policy"], directory)}
            if isinstance(entry, dict) and "policy" in entry
            else entry
            for entry in raw["entries"]
        ]
    load = raw.get("load")
    if isinstance(load, dict) and isinstance(load.get("file"), str) and isinstance(source, Path):
        load["file"] = str(source.absolute().parent / load["file"])
    return raw


def validated(kind: type[Validated], content: dict[str, Any], prefix: str) -> Validated:
    """Scenario of a command's options. Raises `BadInputError` that names the option, without `prefix`."""
    try:
        return kind.model_validate(content)
    except ValidationError as error:
        raise BadInputError(f"--{re.sub(prefix, '', first_complaint(error, kind))}") from None


def first_complaint(error: ValidationError, model: type[BaseModel] = Scenario) -> str:
    """First pydantic error of `model` as one line; an unknown key at the top is followed by those that are known."""
    complaint = error.errors()[0]
    is_stray_key = complaint["type"] == "extra_forbidden" and len(complaint["loc"]) == 1
    allowed = f"; known: {', '.join(model.model_fields)}" if is_stray_key else ""
    return f"{complaint_in_words(error)}{allowed}"
