"""Code version of a result: a digest of every project source file that a simulation can import.

A changed page or table therefore keeps all results, and a changed policy or mechanism invalidates every cell.
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

from policies import registry

ROOMS = ("policies", "balancer", "workers", "experiments")
SHORT = 12
"""Number of characters of a displayed digest."""


def version_of(function: Callable[..., Any]) -> str:
    """Digest of the code that `function` can reach, in the current interpreter."""
    return digest_from(function.__module__)


@cache
def digest_from(module: str) -> str:
    """Digest of names and bytes of all reached files, and of the versions of Python, NumPy and policy plug-ins."""
    found = hashlib.sha256()
    for name, path in sorted(reached(module).items()):
        found.update(f"{name}\0".encode())
        found.update(path.read_bytes())
    found.update("\n".join(surroundings()).encode())
    return found.hexdigest()[:SHORT]


def surroundings() -> list[str]:
    """Versions outside the project that influence results."""
    python = ".".join(platform.python_version_tuple()[:2])
    plugins = sorted(
        f"{plugin.name} {plugin.dist.name} {plugin.dist.version}"
        for plugin in entry_points(group=registry.GROUP)
        if plugin.dist is not None
    )
    return [f"python {python}", f"numpy {np.__version__}", *plugins]


def reached(start: str) -> dict[str, Path]:
    """Module -> file, of the module and all project modules that it imports, transitively and lazily."""
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
    """Source file of a module, also for a compiled one, whose source is beside it. None if the name is not a module."""
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
    """Every name that the file may import as a module, with its parent packages."""
    if path.suffix == ".py":
        yield from imports_of(compile(path.read_bytes(), str(path), "exec", dont_inherit=True))


def imports_of(code: CodeType) -> Iterator[str]:
    """Imported names in the bytecode, including that of nested functions and classes."""
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
    """Yield the module's packages and the module: a.b.c -> a, a.b, a.b.c."""
    parts = module.split(".")
    yield from (".".join(parts[: length + 1]) for length in range(len(parts)))
