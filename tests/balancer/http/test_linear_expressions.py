"""Every regular expression of the balancer is linear in its input.

The expressions are run by a matcher that counts steps, on texts derived from them (`tests/support/backtracking.py`).
The tests compare growth: twice the text may take at most 2.5 times the steps.
"""

from __future__ import annotations

import ast
import re
from math import inf
from typing import Any

import pytest

from balancer.http.h1.response_head import HEAD_LIMIT
from tests.support.backtracking import Counted, Parts, TooManySteps, inner_parts, made_of, parser, parts
from tests.support.expressions import IS_COMPILED, Expression, bound, expressions, made, names_in, nodes

SMALL, CLEAR = 24, 512
"""Lengths of the texts for the first pass, and of those for the verdict."""

SUSPECT, TOO_MUCH = 2.2, 2.5
"""Growth of the steps for twice the text: re-examined from the first, an error from the second."""


def growth(counted: Counted, method: str, of: Parts, size: int) -> float:
    """Factor by which the steps grow with twice the text."""
    try:
        return counted.of(method, made_of(of, 2 * size)) / counted.of(method, made_of(of, size))
    except TooManySteps:
        return inf


def slow_at(counted: Counted, method: str) -> Parts | None:
    """Parts of a text that takes more than linear time, or None."""
    for of in parts(counted):
        if growth(counted, method, of, SMALL) > SUSPECT and growth(counted, method, of, CLEAR) > TOO_MUCH:
            return of
    return None


@pytest.mark.second_tier
@pytest.mark.no_cover
@pytest.mark.timeout(300)
def test_expressions_are_linear() -> None:
    """On every text derived from them."""
    slow = [
        (str(one), method)
        for one in expressions()
        for method in one.methods
        if slow_at(Counted(one.pattern), method) is not None
    ]
    assert slow == []


@pytest.mark.second_tier
@pytest.mark.no_cover
@pytest.mark.timeout(600)
def test_expressions_are_linear_at_the_largest_head() -> None:
    """On the text with the most steps per byte, at the largest allowed size."""
    for one in expressions():
        for method in one.methods:
            counted = Counted(one.pattern)
            tried = [(counted.of(method, made_of(of, SMALL)), of) for of in parts(counted)]
            assert growth(counted, method, max(tried)[1], HEAD_LIMIT // 2) < TOO_MUCH, (str(one), method)


def possessive_groups(items: Any) -> int:
    """Number of possessive repetitions of more than one character."""
    found = 0
    for op, argument in items:
        if str(op) == "POSSESSIVE_REPEAT":
            repeated = argument[2]
            found += len(repeated) > 1 or str(repeated[0][0]) in ("SUBPATTERN", "BRANCH")
        found += sum(map(possessive_groups, inner_parts(op, argument)))
    return found


def test_no_group_is_possessive() -> None:
    """Before CPython 3.11.5 it also takes what an iteration that fails has matched; `(?>…)` does not."""
    for one in expressions():
        assert possessive_groups(parser.parse(one.pattern.pattern, one.pattern.flags)) == 0, str(one)


# --- completeness


def test_all_expressions_are_found() -> None:
    """Those of modules and classes are bound to names, those of functions are made when a balancer is built."""
    names = {name for _, name, _ in bound()}
    functions = {where.partition(".")[2] for where, _ in made()}
    unknown = []
    for file, node in nodes():
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        for statement in node.body:
            if isinstance(statement, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) or not compiles(
                statement
            ):
                continue
            name = node.name if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) else ""
            if not ((name and (name in functions or IS_COMPILED)) or targets(statement) & names):
                unknown.append(f"{file}:{statement.lineno}")
    assert unknown == []


def compiles(statement: ast.stmt) -> bool:
    return any(
        isinstance(node, ast.Attribute) and ast.unparse(node) == "re.compile" for node in ast.walk(statement)
    )


def targets(statement: ast.stmt) -> set[str]:
    """Names that a statement binds."""
    if isinstance(statement, ast.AnnAssign):
        return names_in(statement.target)
    return (
        {name for target in statement.targets for name in names_in(target)}
        if isinstance(statement, ast.Assign)
        else set()
    )


def test_re_module_is_used_only_through_compile() -> None:
    """Neither by functions that take an expression as text nor under another name."""
    allowed = {"compile", "escape", "Pattern", "Match"}
    for file, node in nodes():
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "re":
            assert node.attr in allowed, f"{file}:{node.lineno}"
        elif isinstance(node, ast.ImportFrom):
            assert node.module != "re", f"{file}:{node.lineno}"
        elif isinstance(node, ast.Import):
            assert all(each.asname is None for each in node.names if each.name == "re"), (
                f"{file}:{node.lineno}"
            )


# --- the matcher and the texts


@pytest.mark.second_tier
@pytest.mark.timeout(300)
def test_matcher_agrees_with_re() -> None:
    """Same spans as `re` for every method, so the steps are those of the same search."""
    for one in expressions():
        check_matcher(one)


def check_matcher(expression: Expression) -> None:
    """Compare the spans of the matcher with those of `re`. Raises AssertionError."""
    counted = Counted(expression.pattern)
    is_text = isinstance(expression.pattern.pattern, str)
    for of in list(parts(counted))[::7]:
        sent = made_of(of, 9)
        for method in ("match", "fullmatch", "search"):
            match = getattr(expression.pattern, method)(sent.decode("latin-1") if is_text else sent)
            assert counted.spans(method, sent) == ([match.span()] if match else []), (method, sent)
        matches = expression.pattern.finditer(sent.decode("latin-1") if is_text else sent)
        assert counted.spans("findall", sent) == [match.span() for match in matches]


@pytest.mark.second_tier
@pytest.mark.parametrize(
    ("pattern", "method"),
    [
        (rb"\n(?i:x-user):[ \t]*([^\r]*[^\r \t])", "search"),  # used before: a field's value as a key,
        (rb"\n(?i:x-forwarded-for):[ \t]*([^\r,]*[^\r, \t])", "search"),  # the first address,
        (rb"\r\n([^:\r]+):[ \t]*([^\r]*?)[ \t]*(?=\r\n)", "findall"),  # fields for other transports,
        (rb"\n(host|if-[^:]*|x-forwarded-[^:]*):[ \t]*([^\r]*)", "findall"),  # fields that are removed,
        (rb"\n(?i:cookie):(?:[^\r]*;)?[ \t]*sid=([^;\r]*[^;\r \t])", "search"),  # and a cookie
        (rb"[A-Za-z0-9._~%-]+:[0-9]{1,5}", "search"),
        (rb"(?:[a-z]+)+;", "match"),
        (rb"(?:a|ab|b)*c", "fullmatch"),
        (rb"[ \t]*,[ \t]*$", "search"),
        (rb'"(?:[^"\\]|\\.)*"', "search"),
        (rb"a*a*b", "match"),
        (rb"x{0,2000}y", "search"),
        (rb"(?=[ ]*a)b| c", "search"),
    ],
)
def test_superlinear_expressions_are_detected(pattern: bytes, method: str) -> None:
    """Expressions that were used here before, and similar ones."""
    assert slow_at(Counted(re.compile(pattern)), method) is not None


@pytest.mark.parametrize(
    ("pattern", "method"),
    [
        (rb"[A-Za-z0-9._~%-]+:[0-9]{1,5}", "fullmatch"),
        (rb"(?:[a-z]++)++;", "match"),
        (rb"(?>[ \t]*),", "match"),
        (rb"a+?b", "match"),
        (rb"\n[^\n]*?;", "search"),
    ],
)
def test_linear_expressions_are_accepted(pattern: bytes, method: str) -> None:
    assert slow_at(Counted(re.compile(pattern)), method) is None
