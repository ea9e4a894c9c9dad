"""`experiments reproduce headers`: cost of removing internal fields, absolute and as a share of a request.

Each method of removal is given its ideal input before the clock starts: the first three get a fresh map of lower-case
names, ours the raw bytes, and returns bytes. For the share two balancers run side by side, with and without internal
names, and are loaded in alternation for fractions of a second; CPU times of the kernel are compared within a block.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure
from rich.table import Table
from rich.text import Text

from balancer.http.h1.internal_fields import InternalFields
from experiments.errors import FleetFailedError
from experiments.platform.build import describe_build
from experiments.platform.cpu_time import cpu_of, is_known_here
from experiments.platform.processes import Child
from experiments.platform.session import BoundVerdict
from experiments.platform.terminal import plain_table
from experiments.report import canvas
from experiments.reproduce import launch
from experiments.reproduce.blocking_client import TIMEOUT, read_response
from experiments.reproduce.charts import SOURCE_STROKE, interval_bars
from experiments.reproduce.header_sets import INTERNAL, SETS, block_of, fields_of
from experiments.reproduce.judging import judged, written
from experiments.reproduce.reproduction import Publication, ReportProgress, Reproduction
from experiments.stats.comparison import Interval, typical
from experiments.stats.estimates import geometric_mean

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
    micros: Interval
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
            rows.append(Cost(method.name, typical(micros), method.source))
    return rows


def least_cost_of_names(costs: Sequence[Cost]) -> float:
    """Lower bound in µs of the names' cost for a new head, from both intervals; 0 if they overlap."""
    found = {one.method: one.micros for one in costs}
    if not {PASS, PASS_WITH_NAMES} <= found.keys():
        return 0.0
    return max(0.0, found[PASS_WITH_NAMES].low - found[PASS].high)


CONNECTIONS = 16
HEADS = [f"GET / HTTP/1.1\n{text}\n".replace("\n", "\r\n").encode() for text in SETS]


@dataclass(frozen=True, slots=True)
class RequestCost:
    """CPU time of a balancer per request in microseconds, in one block.

    `removes`: it has internal names to remove; `repeats`: each client repeats its fields.
    """

    block: int
    removes: bool
    repeats: bool
    micros: float


@dataclass(frozen=True, slots=True)
class Share:
    """Geometric means over blocks. `share` is relative to the time of a request without internal names, 0 to 1."""

    repeats: bool
    without: float
    share: Interval

    @property
    def added(self) -> float:
        return self.without * self.share.ratio


def shares_of(found: Sequence[RequestCost]) -> list[Share]:
    """Added time, paired within a block: for clients whose fields change, and for clients that repeat theirs."""
    shares = []
    for repeats in (False, True):
        own = {(one.block, one.removes): one.micros for one in found if one.repeats is repeats}
        without = {block: micros for (block, removes), micros in own.items() if not removes}
        pairs = [(own[block, True], base) for block, base in without.items() if (block, True) in own]
        if pairs:
            ratio = typical([with_ / base for with_, base in pairs])
            share = Interval(ratio.ratio - 1, ratio.low - 1, ratio.high - 1, ratio.blocks)
            shares.append(Share(repeats, geometric_mean(base for _, base in pairs), share))
    return shares


async def measure_shares(
    blocks: int, requests: int, seed: int, folder: Path, measured: Callable[[RequestCost], None]
) -> None:
    """Measure both balancers with both kinds of clients in each block. Raises `FleetFailedError`."""
    async with AsyncExitStack() as stack:
        plain = {"endpoints": [{"id": "w", "region": "here", "address": await launch.fast_worker(stack)}]}
        names = {"headers": {"internal": list(INTERNAL)}}
        balancers = {
            removes: await launch.balancer(f"internal names {removes}", keys, folder, stack)
            for removes, keys in ((True, plain | names), (False, plain))
        }
        rng = Random(seed)
        cases = [(removes, repeats) for removes in (False, True) for repeats in (False, True)]
        for block in range(-1, blocks):  # the first block is warm-up
            for removes, repeats in rng.sample(cases, len(cases)):
                micros = await asyncio.to_thread(request_cost, balancers[removes], requests, repeats)
                if block >= 0:
                    measured(RequestCost(block, removes, repeats, micros))


def request_cost(balancer: Child, requests: int, repeats: bool) -> float:
    """CPU microseconds per request, with sixteen connections. Raises `FleetFailedError`."""
    try:
        sockets = [socket.create_connection(balancer.address, TIMEOUT) for _ in range(CONNECTIONS)]
        before = cpu_of(balancer.pid).total
        for number in range(rounds := max(1, requests // CONNECTIONS)):
            for at, one in enumerate(sockets):
                one.sendall(HEADS[(at + (0 if repeats else number)) % len(HEADS)])
            for one in sockets:
                if (status := read_response(one).status) != 200:
                    raise FleetFailedError(f"the balancer answered {status}")
        spent = cpu_of(balancer.pid).total - before
        for one in sockets:
            one.close()
    except OSError as failure:
        raise FleetFailedError(f"the balancer: {failure}{balancer.tail}") from None
    return 1e6 * spent / (rounds * CONNECTIONS)


MICROS, PERCENT = "{:.2f}".format, "{:.2%}".format
BOUND = 0.0034
"""The source's final share; it began at 1.71 %."""


class Headers(Reproduction):
    """Methods of removal timed alone, then two balancers under load."""

    name = "headers"
    document = Publication(
        "A good day to trie-hard: saving compute 1% at a time", "Kevin Guthrie, The Cloudflare Blog, 2024"
    )
    summary = "Four ways of removing internal fields, and the share of a forwarded request's CPU time that ours takes."
    duration = "two minutes"

    def __init__(self, is_quick: bool) -> None:
        self._is_quick = is_quick
        self._timed: list[tuple[RemovalMethod, float]] = []
        self._request_costs: list[RequestCost] = []

    def introduction(self) -> str:
        sets = [fields_of(text) for text in SETS]
        internal = sum(name in INTERNAL for fields in sets for name, _ in fields)
        sizes = list(map(len, sets))
        return (
            f"{len(INTERNAL)} internal names; {len(sets)} heads of {min(sizes)} to {max(sizes)} fields, "
            f"{internal / sum(sizes):.1%} of them internal.\nOurs: {describe_build()}.\n"
        )

    async def measure(self, seed: int, folder: Path, progress: ReportProgress) -> None:
        """Time the methods in this process before other processes start; then two balancers."""
        self._timed += timed_methods(10 if self._is_quick else 200, seed)
        if is_known_here():
            progress("loading two balancers in turns")
            blocks, requests = (6, 400) if self._is_quick else (40, 1600)
            await measure_shares(blocks, requests, seed, folder, self._request_costs.append)

    @property
    def _costs(self) -> list[Cost]:
        return costs_of(self._timed)

    @property
    def _shares(self) -> list[Share]:
        return shares_of(self._request_costs)

    def findings(self) -> Sequence[Table | Text | str]:
        costs, shares = self._costs, self._shares
        if not costs:
            return ()
        found: list[Table | Text | str] = [table_of_methods(costs), table_of_shares(shares)]
        if not is_known_here():
            absence = "No share: CPU time is read from Linux' accounting, which is not here."
            found.append(Text(absence, "yellow"))
        for one in shares[:1]:
            least = least_cost_of_names(costs) / one.without
            found.append(
                f"The names make the pass over new fields longer by at least {least:.2%} of the {one.without:.1f} µs "
                "of a request."
            )
        return found

    def verdicts(self) -> list[BoundVerdict]:
        least = least_cost_of_names(self._costs)
        return [
            BoundVerdict(
                client_of(one),
                f"internal fields take ≤ {BOUND:.2%} of a request",
                is_met(one, least),
                written(one.share, PERCENT),
            )
            for one in self._shares
        ]

    def figure(self) -> Figure:
        return headers_figure(self._costs, self._shares)

    def content(self) -> dict[str, Any]:
        costs = self._costs
        least = least_cost_of_names(costs)
        return {
            "build": describe_build(),
            "methods": [asdict(one) | with_ends("micros", one.micros) for one in costs],
            "shares": [
                asdict(one)
                | {"added": one.added, "is_met": is_met(one, least)}
                | with_ends("share", one.share)
                for one in self._shares
            ],
            "measurements": self._request_costs,
        }


def with_ends(name: str, found: Interval) -> dict[str, Any]:
    """A figure for JSON."""
    return {name: found.ratio, "interval": (found.low, found.high)}


def table_of_methods(costs: Sequence[Cost]) -> Table:
    title = "µs per request: mean [95 % interval]; the source's are of compiled code on another machine"
    rows = [
        (one.method, written(one.micros, MICROS), "–" if one.source is None else MICROS(one.source))
        for one in costs
    ]
    return plain_table(("method", "µs", "source"), rows, title=title)


def table_of_shares(shares: Sequence[Share]) -> Table:
    title = "CPU time of the proxy per forwarded request, without and with the names"
    rows = [
        (
            client_of(one),
            f"{one.without:.1f}",
            f"{one.added:+.2f}",
            written(one.share, PERCENT),
            "1.71% → 0.34%",
        )
        for one in shares
    ]
    return plain_table(
        ("client", "without, µs", "added, µs", "share [95 % interval]", "source"), rows, title=title
    )


def client_of(share: Share) -> str:
    return "repeats its fields" if share.repeats else "other fields each time"


def is_met(share: Share, least: float = 0.0) -> bool | None:
    """Whether the bound is met.

    Two balancers differ by a few µs for many reasons. The additional time of the pass over fields for the names,
    `least` µs, is a lower bound for a request with new fields, however noisy the difference of two balancers is.
    (Repeated heads are cached, a worker's like a client's.) Removal cannot save time: an interval below 0 shows
    that the balancers differ in something else, so it is no evidence for the bound.
    """
    if not share.repeats and least > BOUND * share.without:
        return False
    return None if share.share.high < 0 else judged(share.share, most=BOUND)


@mpl.rc_context(canvas.STYLE)
def headers_figure(costs: Sequence[Cost], shares: Sequence[Share]) -> Figure:
    """Cost of each method in microseconds, and the share of a request's CPU time that the names take."""
    figure, (methods, request) = canvas.blank(1.4 + 0.5 * len(costs), 1, 2, width_ratios=(2, 1))
    source = {one.method: one.source for one in costs if one.source is not None}
    micros = "µs per request: mean, 95 % interval; stroke: the source's, of compiled code"
    interval_bars(methods, {one.method: one.micros for one in costs}, micros, MICROS, expected=source)
    methods.set_title("Cost of removing internal fields", fontweight="bold")
    found = {client_of(one): one.share for one in shares}
    label, form = f"% of CPU time; {SOURCE_STROKE}", "{:.2f} %".format
    interval_bars(request, found, label, form, expected=dict.fromkeys(found, 100 * BOUND), unit=100.0)
    request.set_title("Share of a forwarded request", fontweight="bold")
    return figure
