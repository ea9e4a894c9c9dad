"""Discovery of the balancer's regular expressions, and a count of their steps while it runs."""

from __future__ import annotations

import ast
import pkgutil
import re
import sys
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest

import balancer
from balancer.cluster.affinity import key_of
from balancer.config.schema.sticky import KeyConfig
from balancer.http.h1 import fields
from tests.support.backtracking import Counted
from tests.support.sources import modules as sources
from tests.support.sources import nodes_of
from tests.support.wireless import Wireless

SOURCE = Path(balancer.__file__).parent

IS_COMPILED = not (fields.__file__ or "").endswith(".py")
"""Compiled code has no frames, and its constants cannot be replaced."""

METHODS = ("search", "match", "fullmatch", "findall", "finditer", "sub", "split")
ALL_AT_ONCE = {"finditer": "findall", "sub": "findall", "split": "findall"}
"""Methods with the same number of steps."""

CONFIGURED: tuple[dict[str, Any], ...] = (
    {
        "key": (("by", "header"), ("name", "X-User")),
        "headers": (("internal", ("x-shard", "x-int-*", "X_Old")),),
    },
    {"key": (("by", "cookie"), ("name", "sid"))},
    {"sticky": (("header", "X-User"),), "explain": (("header", "X-Explain"),)},
    {
        "sticky": (("cookie", "steel.yard"), ("key", "secret of thirty-two characters!")),
        "queue": (("timeout_header", "X-Timeout"), ("start_header", "X-Request-Start")),
        "admission": (("header", "X-Priority"), ("trust", "all")),
    },
)
"""Settings that create every expression that depends on configuration."""


class Expression(NamedTuple):
    """An expression with its place in the source and the methods called on it."""

    where: str
    pattern: re.Pattern[Any]
    methods: tuple[str, ...]

    def __str__(self) -> str:
        return self.where


def modules() -> Iterator[ModuleType]:
    """All modules of the balancer."""
    for found in pkgutil.walk_packages(balancer.__path__, "balancer."):
        if not found.name.endswith("__main__"):
            try:
                yield import_module(found.name)
            except ModuleNotFoundError:  # pycurl is optional
                continue


@cache
def bound() -> list[tuple[Any, str, Any]]:
    """Expressions of modules and classes, and bound methods of them: owner, name and value."""
    found = []
    for module in modules():
        for owner in (module, *(each for each in vars(module).values() if isinstance(each, type))):
            found += [
                (owner, name, value)
                for name, value in list(vars(owner).items())
                if pattern_of(value) is not None
            ]
    return found


def pattern_of(value: object) -> re.Pattern[Any] | None:
    """The expression of a value that is one or a bound method of one."""
    pattern = value if isinstance(value, re.Pattern) else getattr(value, "__self__", None)
    return pattern if isinstance(pattern, re.Pattern) else None


class RecordingCompile:
    """Replacement of `re.compile` that records what the balancer compiles: `made` has the function and the result."""

    def __init__(self) -> None:
        self.made: list[tuple[str, re.Pattern[Any]]] = []
        self._compile = re.compile

    def __call__(self, pattern: Any, flags: int = 0) -> Any:
        code, compiled = sys._getframe(1).f_code, self._compile(pattern, flags)
        if Path(code.co_filename).is_relative_to(SOURCE):
            self.made.append((f"{Path(code.co_filename).stem}.{code.co_name}", compiled))
            return self.result(compiled)
        return compiled

    def result(self, compiled: re.Pattern[Any]) -> Any:
        """The object that the balancer gets."""
        return compiled


@cache
def made() -> list[tuple[str, re.Pattern[Any]]]:
    """Expressions that functions compile while balancers with each of `CONFIGURED` are built."""
    recorder = RecordingCompile()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(re, "compile", recorder)
        for options in CONFIGURED:
            with Wireless(**options) as stage:
                stage.leave()
        key_of(KeyConfig(by="client"))
    return recorder.made


@cache
def expressions() -> list[Expression]:
    """All expressions, each once."""
    known, found = uses(), dict[tuple[object, tuple[str, ...]], Expression]()

    def add(where: str, pattern: re.Pattern[Any], methods: set[str]) -> None:
        kinds = tuple(sorted({ALL_AT_ONCE.get(method, method) for method in methods}))
        found.setdefault((pattern, kinds), Expression(where, pattern, kinds))

    for owner, name, value in bound():
        pattern = pattern_of(value)
        assert pattern is not None
        methods = known.get(name, set(METHODS)) if value is pattern else {value.__name__}
        add(f"{owner.__name__}.{name}", pattern, methods)
    for where, pattern in made():
        add(where, pattern, {"search", "findall"})
    return list(found.values())


# --- the source


def nodes() -> Iterator[tuple[Path, ast.AST]]:
    """Syntax nodes of every file of the balancer."""
    for file in sources("balancer").values():
        for node in nodes_of(file):
            yield file, node


def uses() -> dict[str, set[str]]:
    """Name -> methods that are called on it anywhere in the source."""
    found: dict[str, set[str]] = {}
    for _, node in nodes():
        if isinstance(node, ast.Attribute) and node.attr in METHODS:
            for name in names_in(node.value):
                found.setdefault(name, set()).add(node.attr)
        elif isinstance(node, ast.Call) and names_in(node.func) == {"found"}:
            for name in names_in(node.args[0]):
                found.setdefault(name, set()).add("finditer")
    return found


def names_in(node: ast.AST) -> set[str]:
    """Names of variables and attributes."""
    inside = list(ast.walk(node))
    attributes = {each.attr for each in inside if isinstance(each, ast.Attribute)}
    return attributes | {each.id for each in inside if isinstance(each, ast.Name)}


# --- while it runs


@cache
def counted(pattern: re.Pattern[Any]) -> Counted:
    """The matcher of an expression, parsed once."""
    return Counted(pattern)


class CountedPattern:
    """Replacement of an expression that adds its steps to a tally."""

    def __init__(self, pattern: re.Pattern[Any], tally: list[int]) -> None:
        self._pattern = pattern
        self._counted = counted(pattern)
        self._tally = tally

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._pattern, name)
        if name not in METHODS:
            return method

        def counting(text: bytes, at: int = 0, *end: int) -> Any:
            part = text if name == "split" else text[at : end[0] if end else None]  # `at` is the most splits
            self._tally.append(self._counted.of(ALL_AT_ONCE.get(name, name), part))
            return method(text, at, *end)

        return counting


def watch(patch: pytest.MonkeyPatch) -> list[int]:
    """Tally of the steps of every expression that the balancer uses from now on."""
    tally: list[int] = []
    recorder = RecordingCompile()
    recorder.result = lambda compiled: CountedPattern(compiled, tally)  # type: ignore[method-assign]
    for owner, name, value in bound():
        pattern = pattern_of(value)
        assert pattern is not None
        watched = CountedPattern(pattern, tally)
        patch.setattr(owner, name, watched if value is pattern else getattr(watched, value.__name__))
    patch.setattr(re, "compile", recorder)
    return tally
