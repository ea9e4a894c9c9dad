"""Methods of removing internal header fields, and their cost per request.

Each method is given its ideal input before the clock starts: the first three get a fresh map of lower-case names, ours
the raw bytes, and returns bytes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from balancer.http.h1.internal_fields import InternalFields
from experiments.reproduce.header_sets import INTERNAL, SETS, block_of, fields_of
from experiments.stats.comparison import typical

REPETITIONS = 20
"""Repetitions of every set within one measurement."""


@dataclass(frozen=True, slots=True)
class RemovalMethod:
    """`prepare` makes a fresh input from a set's text; `remove` is timed. `source`: the source's µs."""

    name: str
    prepare: Callable[[str], Any]
    remove: Callable[[Any], Any]
    source: float | None = None


@dataclass(frozen=True, slots=True)
class Cost:
    """Microseconds per request: geometric mean over rounds and its 95 % interval."""

    method: str
    micros: float
    interval: tuple[float, float]
    source: float | None


def as_map(text: str) -> dict[str, str]:
    return {name.lower(): value for name, value in fields_of(text)}


def over_the_table(fields: dict[str, str]) -> dict[str, str]:
    """Look up every internal name in the request."""
    for name in INTERNAL:
        fields.pop(name, None)
    return fields


_SET = frozenset(INTERNAL)


def over_the_request(fields: dict[str, str]) -> dict[str, str]:
    """Look up every field of the request in the set of internal names."""
    return {name: value for name, value in fields.items() if name not in _SET}


_END = ""


def trie_of(names: Iterable[str]) -> dict[str, Any]:
    """Build a trie: each node maps the next letter to the next node."""
    root: dict[str, Any] = {}
    for name in names:
        node = root
        for letter in name:
            node = node.setdefault(letter, {})
        node[_END] = {}
    return root


_TRIE = trie_of(INTERNAL)


def is_in_trie(name: str) -> bool:
    node = _TRIE
    for letter in name:
        if letter not in node:
            return False
        node = node[letter]
    return _END in node


def through_the_trie(fields: dict[str, str]) -> dict[str, str]:
    """Look up every field of the request in the trie; most fail at their first letter."""
    return {name: value for name, value in fields.items() if not is_in_trie(name)}


OURS = "ours, on the bytes of the head"
PASS, PASS_WITH_NAMES = "the pass over every new head", "  the same, for the names too"
_no_fields, _fields = InternalFields(()), InternalFields(INTERNAL)


def in_lower_case(text: str) -> bytes:
    return block_of(text).lower()


METHODS = (
    RemovalMethod("loop over the table", as_map, over_the_table, 3.65),
    RemovalMethod("loop over the request, set", as_map, over_the_request, 1.53),
    RemovalMethod("loop over the request, trie", as_map, through_the_trie),
    RemovalMethod(OURS, block_of, _fields.without),
    # Parts of its time; the rest is removing lines, if any.
    RemovalMethod("  of it: to lower case", block_of, bytes.lower),
    RemovalMethod("  of it: the search", in_lower_case, _fields._next),
    # A request's head is read in one pass for all special fields; `without` runs only if the pass finds an internal
    # one.
    RemovalMethod(PASS, in_lower_case, _no_fields.find_special),
    RemovalMethod(PASS_WITH_NAMES, in_lower_case, _fields.find_special),
)


def timed_methods(rounds: int, seed: int) -> Iterator[tuple[RemovalMethod, float]]:
    """Method and seconds per request; every method once in each round, in random order."""
    rng = Random(seed)
    for _ in range(rounds):
        for method in rng.sample(METHODS, len(METHODS)):
            inputs = [method.prepare(text) for _ in range(REPETITIONS) for text in SETS]
            remove, began_at = method.remove, time.perf_counter()
            for one in inputs:
                remove(one)
            yield method, (time.perf_counter() - began_at) / len(inputs)


def costs_of(found: Sequence[tuple[RemovalMethod, float]]) -> list[Cost]:
    """Cost of each method that was measured."""
    rows = []
    for method in METHODS:
        micros = [1e6 * seconds for one, seconds in found if one is method]
        if micros:
            mean = typical(micros)
            rows.append(Cost(method.name, mean.ratio, (mean.low, mean.high), method.source))
    return rows


def least_cost_of_names(costs: Sequence[Cost]) -> float:
    """Lower bound in µs of the names' cost for a new head, from both intervals; 0 if they overlap."""
    intervals = {one.method: one.interval for one in costs}
    if not {PASS, PASS_WITH_NAMES} <= intervals.keys():
        return 0.0
    return max(0.0, intervals[PASS_WITH_NAMES][0] - intervals[PASS][1])
