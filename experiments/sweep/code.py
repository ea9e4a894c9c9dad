"""Which code a result is of: a digest of every source file of ours that a simulation can reach.

Rule of this file: what a simulation does not import does not matter to it. So a changed page or table keeps all
results, and a changed policy or mechanism asks for every cell again.
"""

from __future__ import annotations

import dis
import hashlib
import platform
from collections.abc import Callable, Iterator
from functools import cache
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from types import CodeType
from typing import Any

import numpy as np

from policies.routing import registry

ROOMS = ("policies", "balancer", "workers", "experiments")
SHORT = 12
"""Characters of a digest that people see."""


def version_of(function: Callable[..., Any]) -> str:
    """The digest for what `function` can reach, in the interpreter that runs it."""
    return digest_from(function.__module__)


@cache
def digest_from(module: str) -> str:
    """Over names and bytes of all files, and the versions of what draws random numbers or adds policies."""
    found = hashlib.sha256()
    for name, path in sorted(reached(module).items()):
        found.update(f"{name}\0".encode())
        found.update(path.read_bytes())
    found.update("\n".join(surroundings()).encode())
    return found.hexdigest()[:SHORT]


def surroundings() -> list[str]:
    """What is not ours and still decides results."""
    python = ".".join(platform.python_version_tuple()[:2])
    plugins = sorted(
        f"{plugin.name} {plugin.dist.name} {plugin.dist.version}"
        for plugin in entry_points(group=registry.GROUP)
        if plugin.dist is not None
    )
    return [f"python {python}", f"numpy {np.__version__}", *plugins]


def reached(start: str) -> dict[str, Path]:
    """Module -> file, of the module itself and all of ours that it imports, however far away and however late."""
    found: dict[str, Path] = {}
    waiting = [start]
    while waiting:
        name = waiting.pop()
        path = None if name in found else source_of(name)
        if path is not None:
            found[name] = path
            waiting += [other for other in imported(name, path) if other.split(".")[0] in ROOMS]
    return found


def source_of(module: str) -> Path | None:
    """Its source; also that of a compiled one, which stands beside it. None for a name inside of a module."""
    try:
        spec = find_spec(module)
    except ModuleNotFoundError:
        return None
    origin = Path(spec.origin) if spec is not None and spec.origin else None
    if origin is None or origin.suffix == ".py":
        return origin
    beside = origin.with_name(f"{origin.name.partition('.')[0]}.py")
    return beside if beside.is_file() else origin


def imported(module: str, path: Path) -> Iterator[str]:
    """Every name that it may import as a module, the packages around each included."""
    if path.suffix == ".py":
        yield from imports_of(compile(path.read_bytes(), str(path), "exec", dont_inherit=True))


def imports_of(code: CodeType) -> Iterator[str]:
    """By its bytecode, functions and classes within included."""
    source = ""
    for instruction in dis.get_instructions(code):
        if instruction.opname == "IMPORT_NAME":
            source = str(instruction.argval)
            yield from with_packages(source)
        elif instruction.opname == "IMPORT_FROM":
            yield f"{source}.{instruction.argval}"
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from imports_of(constant)


def with_packages(module: str) -> Iterator[str]:
    """a.b.c -> a, a.b, a.b.c."""
    parts = module.split(".")
    yield from (".".join(parts[: length + 1]) for length in range(len(parts)))
