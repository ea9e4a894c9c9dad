"""Backtracking matcher for regular expressions that counts its steps, and candidate slow inputs for an expression.

`re` counts no steps. The matcher walks the tree that `re` itself parses an expression to, in the order in which `re`
tries things: greedy and lazy repeats, possessive ones, branches, look-ahead. A step is a character compared, or a
position tried again. `re` skips some of those steps and adds none, so an expression that is linear here is linear
there.

Each candidate text is a lead, a pump repeated and a tail. Leads bring a match up to each repeat of the expression, and
half-way into it; pumps are what a repeat takes, what it searches for, and what fields are made of; tails let the match
fail.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from itertools import product
from typing import Any

constants: Any = import_module("re._constants")
parser: Any = import_module("re._parser")

Ends = Callable[[int], Iterator[int]]
"""Start position -> possible end positions of a part of an expression, in the order of trial."""

PLENTY = 1000
"""Steps per byte of a text that exceed those of any linear expression."""


class TooManySteps(Exception):
    """More steps than `PLENTY` per byte."""


class Counted:
    """An expression over bytes, or text of Latin-1."""

    def __init__(self, pattern: re.Pattern[Any]) -> None:
        self.pattern = pattern
        self.steps = 0
        self._budget = 0
        self.tree = parser.parse(pattern.pattern, pattern.flags)
        self._text = b""
        self._whole = self._sequence(self.tree, pattern.flags)

    # --- methods as in `re`

    def spans(self, method: str, text: bytes) -> list[tuple[int, int]]:
        """Where `pattern.method(text)` matches. Raises `TooManySteps`."""
        self.steps, self._budget = 1, PLENTY * (len(text) + 1)
        self._text = text
        if method == "match":
            return [(0, end) for end in self._first(0)]
        if method == "fullmatch":
            return [(0, end) for end in self._whole(0) if end == len(text)][:1]
        found = list(self._found())
        return found[:1] if method == "search" else found

    def of(self, method: str, text: bytes) -> int:
        """Number of steps of a method on a text. Raises `TooManySteps`."""
        self.spans(method, text)
        return self.steps

    def _first(self, at: int) -> Iterator[int]:
        for end in self._whole(at):
            yield end
            return

    def _found(self) -> Iterator[tuple[int, int]]:
        at = 0
        while at <= len(self._text):
            self._step()
            end = next(self._first(at), -1)
            if end >= 0:
                yield at, end
            at = end if end > at else at + 1

    def _step(self, steps: int = 1) -> None:
        self.steps += steps
        if self.steps > self._budget:
            raise TooManySteps

    # --- parts

    def _sequence(self, items: Any, flags: int) -> Ends:
        parts = [self._part(op, argument, flags) for op, argument in items]

        def ends(at: int) -> Iterator[int]:
            if not parts:
                yield at
                return
            stack = [parts[0](at)]
            while stack:
                end = next(stack[-1], -1)
                if end < 0:
                    stack.pop()
                elif len(stack) == len(parts):
                    yield end
                else:
                    stack.append(parts[len(stack)](end))

        return parts[0] if len(parts) == 1 else ends

    def _part(self, op: Any, argument: Any, flags: int) -> Ends:
        allowed = self.characters(op, argument, flags)
        if allowed is not None:
            return self._character(allowed)
        name = str(op)
        if name == "SUBPATTERN":
            _, add, remove, inner = argument
            return self._sequence(inner, (flags | add) & ~remove)
        if name == "BRANCH":
            return self._branch([self._sequence(branch, flags) for branch in argument[1]])
        if name in ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"):
            return self._repeat(name, argument, flags)
        if name == "ATOMIC_GROUP":
            return _only_first(self._sequence(argument, flags))
        if name in ("ASSERT", "ASSERT_NOT") and argument[0] == 1:
            return self._look_ahead(self._sequence(argument[1], flags), is_wanted=name == "ASSERT")
        if name == "AT" and str(argument) == "AT_BEGINNING" and not flags & re.MULTILINE:
            return lambda at: iter((at,) if at == 0 else ())
        if name == "AT" and str(argument) == "AT_END":
            return lambda at: iter((at,) if at == len(self._text) or self._text[at:] == b"\n" else ())
        raise NotImplementedError(
            f"{name} {argument} in {self.pattern.pattern!r}: not implemented in {__name__}"
        )

    def characters(self, op: Any, argument: Any, flags: int) -> frozenset[int] | None:
        """The bytes that a part of one character matches; None for other parts."""
        name = str(op)
        if name == "LITERAL":
            return _cased({argument}, flags)
        if name == "NOT_LITERAL":
            return ALL - _cased({argument}, flags)
        if name == "ANY":
            return ALL if flags & re.DOTALL else ALL - {10}
        if name == "IN":
            return self._set(argument, flags)
        return None

    def _set(self, items: Any, flags: int) -> frozenset[int]:
        is_negated, found = False, set[int]()
        for op, argument in items:
            name = str(op)
            if name == "NEGATE":
                is_negated = True
            elif name == "LITERAL":
                found.add(argument)
            elif name == "RANGE":
                found.update(range(argument[0], min(argument[1], 255) + 1))
            elif name == "CATEGORY":
                found |= _category(str(argument))
            else:
                raise NotImplementedError(f"{name} in a set of {self.pattern.pattern!r}")
        cased = _cased(found, flags)
        return ALL - cased if is_negated else cased

    def _character(self, allowed: frozenset[int]) -> Ends:
        def ends(at: int) -> Iterator[int]:
            self._step()
            return iter((at + 1,) if at < len(self._text) and self._text[at] in allowed else ())

        return ends

    def _branch(self, branches: list[Ends]) -> Ends:
        def ends(at: int) -> Iterator[int]:
            for branch in branches:
                self._step()
                yield from branch(at)

        return ends

    def _look_ahead(self, inner: Ends, *, is_wanted: bool) -> Ends:
        return lambda at: iter((at,) if (next(inner(at), -1) >= 0) is is_wanted else ())

    def _repeat(self, name: str, argument: Any, flags: int) -> Ends:
        low, high, items = argument
        high = int(high)
        op, inner = items[0]
        allowed = self.characters(op, inner, flags) if len(items) == 1 else None
        if allowed is not None:
            ends = self._run(allowed, low, high, is_lazy=name == "MIN_REPEAT")
        else:
            ends = self._group(self._sequence(items, flags), low, high, is_lazy=name == "MIN_REPEAT")
        return _only_first(ends) if name == "POSSESSIVE_REPEAT" else ends

    def _run(self, allowed: frozenset[int], low: int, high: int, *, is_lazy: bool) -> Ends:
        """A repeat of one character: greedy count, then backtracking one by one."""
        length = re.compile(b"[%b]*" % re.escape(bytes(sorted(allowed)))) if allowed else re.compile(b"")

        def ends(at: int) -> Iterator[int]:
            match = length.match(self._text, at, min(len(self._text), at + high))
            most = (match.end() if match is not None else at) - at
            if is_lazy:
                for count in range(low, most + 1):
                    self._step()
                    yield at + count
                return
            self._step(most + 1)
            for count in range(most, low - 1, -1):
                self._step()
                yield at + count

        return ends

    def _group(self, inner: Ends, low: int, high: int, *, is_lazy: bool) -> Ends:
        """A repeat of several parts, depth first."""

        def ends(at: int) -> Iterator[int]:
            stack = [(at, inner(at) if high else iter(()))]
            if is_lazy and low == 0:
                yield at
            while stack:
                self._step()
                begun, tried = stack[-1]
                end = next(tried, -1)
                if end < 0:
                    stack.pop()
                    if not is_lazy and len(stack) >= low:
                        yield begun
                elif end > begun or len(stack) < low:
                    stack.append((end, inner(end) if len(stack) < high else iter(())))
                    if is_lazy and len(stack) - 1 >= low:
                        yield end

        return ends


ALL = frozenset(range(256))


def _only_first(inner: Ends) -> Ends:
    def ends(at: int) -> Iterator[int]:
        for end in inner(at):
            yield end
            return

    return ends


def _cased(found: set[int], flags: int) -> frozenset[int]:
    if not flags & re.IGNORECASE:
        return frozenset(found)
    letters = bytes(code for code in found if code < 256)
    return frozenset(letters.lower() + letters.upper())


def _category(name: str) -> frozenset[int]:
    classes = {"SPACE": rb"\s", "DIGIT": rb"\d", "WORD": rb"\w"}
    inside = re.compile(classes[name.removeprefix("CATEGORY_").removeprefix("NOT_")])
    found = frozenset(code for code in range(256) if inside.match(bytes((code,))))
    return ALL - found if "NOT_" in name else found


# --- candidate texts

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
