"""Sources of the project's packages, each parsed at most once in a process."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

from tests.support.root import ROOT

PACKAGES = ("policies", "balancer", "workers", "experiments", "benchmarks")


def module_name(path: Path) -> str:
    """policies/routing/router.py -> policies.routing.router; policies/__init__.py -> policies."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


@cache
def modules(*packages: str) -> dict[str, Path]:
    """Module -> file, of the packages named or else of all."""
    files = (path for package in packages or PACKAGES for path in sorted((ROOT / package).rglob("*.py")))
    return {module_name(path): path for path in files}


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def nodes_of(path: Path) -> tuple[ast.AST, ...]:
    """All syntax nodes of a file, as `ast.walk` gives them."""
    return tuple(ast.walk(tree_of(path)))
