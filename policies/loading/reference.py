"""References to policies outside the table: `FILE.py:CLASS` and `MODULE:CLASS`.

A name without a colon that does not end in `.py` is one of the registry.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from policies.errors import BrokenPolicy

FILE = re.compile(r"(?P<place>.*[^/\\]\.py):(?P<class_name>[^\W\d]\w*)", re.DOTALL)
MODULE = re.compile(r"(?P<place>[^\W\d]\w*(?:\.[^\W\d]\w*)*):(?P<class_name>[^\W\d]\w*)")
NOT_IN_LABELS = re.compile(r"[^\w.-]")

LABEL_LIMIT = 40
"""Characters of a label, for which tables and figures have room."""


@dataclass(frozen=True, slots=True)
class Reference:
    """A class in a file, or in a module. `place` is the file's path or the module's dotted name."""

    place: str
    class_name: str
    is_file: bool


def is_reference(name: str) -> bool:
    """Return whether a policy's name refers to a file or a module."""
    return ":" in name or name.endswith(".py")


def reference_in(name: str) -> Reference:
    """Parse a reference. Raises `BrokenPolicy`."""
    if found := FILE.fullmatch(name):
        return Reference(found["place"], found["class_name"], is_file=True)
    if found := MODULE.fullmatch(name):
        return Reference(found["place"], found["class_name"], is_file=False)
    if name.startswith("{"):
        raise BrokenPolicy(f"'{name}' is not valid JSON, or options cannot be given here")
    if name.endswith(".py"):
        raise BrokenPolicy(f"'{name}' must name the class too, as in {os.path.basename(name)}:Tempered")
    raise BrokenPolicy(f"'{name}' must be FILE.py:CLASS or MODULE:CLASS")


def located(spec: Any, directory: str) -> Any:
    """Return a policy's specification with all files that it names as absolute paths.

    Relative paths are relative to `directory`, "" is the working directory. Every text of the form FILE.py:CLASS is
    such a path, also in options that name another policy, in a canary and in shadows.
    """
    if isinstance(spec, str):
        found = FILE.fullmatch(spec)
        if found is None:
            return spec
        place = os.path.join(directory, found["place"])
        try:
            return f"{os.path.abspath(place)}:{found['class_name']}"
        except OSError:
            raise BrokenPolicy(f"the working directory of {place} has been removed") from None
    if isinstance(spec, Mapping):
        return {key: located(value, directory) for key, value in spec.items()}
    if isinstance(spec, list | tuple):
        return [located(value, directory) for value in spec]
    return spec


def located_here(spec: Any) -> Any:
    """Return the specification with paths relative to the working directory made absolute."""
    return located(spec, "")


def label_of(name: str) -> str:
    """Return a name for tables, metrics and logs: the class of a reference, else the name itself."""
    return name.rpartition(":")[2][:LABEL_LIMIT] if is_reference(name) and ":" in name else name


def long_label_of(name: str) -> str:
    """Return a label with the file's stem or the module's last part, where two classes have the same name."""
    if not is_reference(name) or ":" not in name:
        return name
    reference = reference_in(name)
    stem = os.path.basename(reference.place).removesuffix(".py").rpartition(".")[2]
    return NOT_IN_LABELS.sub("-", f"{stem}.{reference.class_name}")[:LABEL_LIMIT]


def labels_of(names: Iterable[str]) -> list[str]:
    """Return one label for each of some different names: as short as possible, and all different."""
    found: list[str] = []
    for name in names:
        numbered = (f"{long_label_of(name)[: LABEL_LIMIT - 4]}-{number}" for number in range(2, 1000))
        candidates = (label_of(name), long_label_of(name), *numbered)
        found.append(next(label for label in candidates if label not in found))
    return found
