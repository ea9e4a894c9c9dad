"""Candidate slow inputs for a regular expression, derived from the expression.

Each text is a lead, a pump repeated and a tail. Leads bring a match up to each repeat of the expression, and half-way
into it; pumps are what a repeat takes, what it searches for, and what fields are made of; tails let the match fail.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import product
from typing import Any

from tests.support.backtracking import ALL, Counted

USUAL = (b" ", b"\t", b",", b'"', b"\\", b":", b";", b"=", b"a", b"0", b"\r\n", b"\r\na: b", b"a ", b" ,")
TAILS = (b"", b"\r\n", b"\0", b" ")
MOST_LEADS, MOST_KINDS = 16, 8


Parts = tuple[bytes, bytes, bytes]
"""A lead, a pump and a tail."""


def made_of(parts: Parts, size: int) -> bytes:
    """Text of at least `size` bytes."""
    lead, pump, tail = parts
    return lead + pump * (1 + size // len(pump)) + tail


def parts(counted: Counted) -> Iterator[Parts]:
    """Leads, pumps and tails of all candidate texts."""
    kinds = _kinds(counted)
    leads = list(_unique(_leads(counted)))[:MOST_LEADS]
    singles = list(_unique((*kinds, *USUAL, *_literals(counted.tree), *filter(None, leads))))
    pairs = [a + b for a, b in product(kinds, kinds) if a != b]
    yield from product(leads, singles, _unique((*TAILS, *kinds)))
    yield from product(leads, pairs, (b"", b"\0"))


def _unique(found: Iterable[bytes]) -> Iterator[bytes]:
    return iter(dict.fromkeys(found))


def _kinds(counted: Counted) -> list[bytes]:
    """One byte per class of bytes that no character set of the expression distinguishes."""
    sets = list(dict.fromkeys(_sets(counted, counted.tree, counted.pattern.flags)))
    by_kind: dict[tuple[bool, ...], int] = {}
    for code in sorted(ALL, key=lambda code: (not 32 <= code < 127, code)):
        by_kind.setdefault(tuple(code in allowed for allowed in sets), code)
    return [bytes((code,)) for code in by_kind.values()][:MOST_KINDS]


def _sets(counted: Counted, items: Any, flags: int) -> Iterator[frozenset[int]]:
    for op, argument in items:
        allowed = counted.characters(op, argument, flags)
        if allowed is None:
            for inner in inner_parts(op, argument):
                yield from _sets(counted, inner, flags)
        elif len(allowed) > 2 or not bytes(allowed).isalnum():  # a letter by itself is part of a name
            yield allowed


def inner_parts(op: Any, argument: Any) -> list[Any]:
    """Sequences within a part."""
    name = str(op)
    if name == "SUBPATTERN":
        return [argument[3]]
    if name == "BRANCH":
        return list(argument[1])
    if name.endswith("_REPEAT"):
        return [argument[2]]
    if name == "ATOMIC_GROUP":
        return [argument]
    return [argument[1]] if name in ("ASSERT", "ASSERT_NOT") else []


def _literals(items: Any) -> Iterator[bytes]:
    """Literal runs of the expression, and halves of them."""
    run = b""
    for op, argument in [*items, ("END", None)]:
        if str(op) == "LITERAL":
            run += bytes((argument,))
            continue
        if run:
            yield run
            yield run[: (len(run) + 1) // 2]
        run = b""
        for inner in inner_parts(op, argument) if argument is not None else []:
            yield from _literals(inner)


def _leads(counted: Counted) -> Iterator[bytes]:
    yield b""
    yield from _leads_in(counted, counted.tree, counted.pattern.flags, b"")
    yield _sample(counted, counted.tree, counted.pattern.flags)


def _leads_in(counted: Counted, items: Any, flags: int, before: bytes) -> Iterator[bytes]:
    """Prefixes up to each repeat, without and with one iteration of it."""
    for op, argument in items:
        if str(op).endswith("_REPEAT"):
            yield before
            yield before + _sample(counted, argument[2], flags)
        for branch in inner_parts(op, argument):
            yield from _leads_in(counted, branch, flags, before)
        before += _sample_of(counted, op, argument, flags)


def _sample(counted: Counted, items: Any, flags: int) -> bytes:
    """Text that matches, or nearly."""
    return b"".join(_sample_of(counted, op, argument, flags) for op, argument in items)


def _sample_of(counted: Counted, op: Any, argument: Any, flags: int) -> bytes:
    allowed = counted.characters(op, argument, flags)
    if allowed is not None:
        return bytes((min(allowed, key=lambda code: (not 48 <= code < 127, code)),))
    name = str(op)
    if name.endswith("_REPEAT"):
        return _sample(counted, argument[2], flags) * int(argument[0])
    inner = inner_parts(op, argument)
    return _sample(counted, inner[0], flags) if inner and not name.startswith("ASSERT") else b""
