"""`experiments reproduce headers`: cost of removing internal fields, absolute and as a share of a request.

Each method of removal is given its ideal input before the clock starts: the first three get a fresh map of lower-case
names, ours the raw bytes, and returns bytes. For the share two balancers run side by side, with and without internal
names, and are loaded in alternation for fractions of a second; CPU times of the kernel are compared within a block.

The heads, in `header_sets.txt`, are as browsers, apps, CDNs and proxies send them, written by hand in the order and
spelling of the sender; the internal names are those of a fictitious network. Each head has 10 to 30 fields; fewer than
one in ten of all is internal, and most heads have none.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from importlib import resources
from itertools import product
from pathlib import Path
from random import Random
from typing import Any, Final

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
from experiments.reproduce.reproduction import (
    Publication,
    ReportProgress,
    Reproduction,
    judged,
    ratio_of,
    written,
)
from experiments.stats.comparison import Interval, typical
from experiments.stats.estimates import geometric_mean

_TOPICS = ("edge", "cache", "mesh", "auth", "bot", "waf", "dns", "log", "ray", "colo", "plan", "zone")
_SUFFIXES = ("id", "key", "source", "time", "state", "rule", "flag", "target", "score", "trace")

INTERNAL: Final = (
    *(f"steel-int-{topic}-{suffix}" for topic in _TOPICS for suffix in _SUFFIXES),
    *("x-origin-shard", "x-worker-token", "x-tenant-internal", "x-debug-upstream", "x-raw-client-hello"),
)
"""Names that must not pass in either direction: 125."""

SETS: Final = tuple(
    heads.partition("\n")[2].rstrip("\n") + "\n"
    for heads in resources.files(__package__).joinpath("header_sets.txt").read_text("utf-8").split("\n\n")
)
"""A text for each head, without the comment that names its sender."""


def fields_of(text: str) -> list[tuple[str, str]]:
    return [(name, value) for name, _, value in (line.partition(": ") for line in text.splitlines())]


def block_of(text: str) -> bytes:
    """Header block as a proxy stores it: the lines with surrounding CRLFs."""
    return b"\r\n" + text.replace("\n", "\r\n").encode()


REPETITIONS = 20
"""Repetitions of every set within one measurement."""


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


METHODS: dict[str, tuple[Callable[[str], Any], Callable[[Any], Any]]] = {
    "loop over the table": (as_map, over_the_table),
    "loop over the request, set": (as_map, over_the_request),
    "loop over the request, trie": (as_map, through_the_trie),
    OURS: (block_of, _fields.without),
    # Parts of its time; the rest is removing lines, if any.
    "  of it: to lower case": (block_of, bytes.lower),
    "  of it: the search": (in_lower_case, lambda lower: [*_fields._find(lower)]),
    # A request's head is read in one pass for all special fields; `without` runs only if the pass finds an internal
    # one.
    PASS: (in_lower_case, _no_fields.find_special),
    PASS_WITH_NAMES: (in_lower_case, _fields.find_special),
}
"""By name: the first makes a fresh input from a set's text, the second is timed."""

SOURCE = {"loop over the table": 3.65, "loop over the request, set": 1.53}
"""The source's µs by method."""


def time_methods(rounds: int, seed: int, found: dict[str, list[float]]) -> None:
    """Add to `found` the µs per request of every method, once in each round, in random order."""
    rng = Random(seed)
    for _ in range(rounds):
        for name in rng.sample(list(METHODS), len(METHODS)):
            prepare, remove = METHODS[name]
            inputs = [prepare(text) for _ in range(REPETITIONS) for text in SETS]
            began_at = time.perf_counter()
            for one in inputs:
                remove(one)
            found.setdefault(name, []).append(1e6 * (time.perf_counter() - began_at) / len(inputs))


Costs = Mapping[str, Interval]
"""Microseconds per request by method: geometric mean over rounds and its 95 % interval."""


def costs_of(found: Mapping[str, Sequence[float]]) -> Costs:
    return {name: typical(found[name]) for name in METHODS if name in found}


def least_cost_of_names(costs: Costs) -> float:
    """Lower bound in µs of the names' cost for a new head, from both intervals; 0 if they overlap."""
    if not {PASS, PASS_WITH_NAMES} <= costs.keys():
        return 0.0
    return max(0.0, costs[PASS_WITH_NAMES].low - costs[PASS].high)


CONNECTIONS = 16
HEADS = [f"GET / HTTP/1.1\n{text}\n".replace("\n", "\r\n").encode() for text in SETS]


RequestCosts = Sequence[Mapping[tuple[bool, bool], float]]
"""CPU time of a balancer per request in microseconds, for each block, by whether it has internal names to remove, and
whether each client repeats its fields."""


@dataclass(frozen=True, slots=True)
class Share:
    """Geometric means over blocks. `share` is relative to the time of a request without internal names, 0 to 1."""

    repeats: bool
    without: float
    share: Interval

    @property
    def added(self) -> float:
        return self.without * self.share.ratio

    @property
    def client(self) -> str:
        return "repeats its fields" if self.repeats else "other fields each time"

    def is_met(self, least: float) -> bool | None:
        """Whether the bound is met.

        Two balancers differ by a few µs for many reasons. The additional time of the pass over fields for the names,
        `least` µs, is a lower bound for a request with new fields, however noisy the difference of two balancers is.
        (Repeated heads are cached, a worker's like a client's.) Removal cannot save time: an interval below 0 shows
        that the balancers differ in something else, so it is no evidence for the bound.
        """
        if not self.repeats and least > BOUND * self.without:
            return False
        return None if self.share.high < 0 else judged(self.share, most=BOUND)


def shares_of(found: RequestCosts) -> list[Share]:
    """Added time, paired within a block: for clients whose fields change, and for clients that repeat theirs."""
    shares = []
    for repeats in (False, True) if found else ():
        with_, without = ([block[removes, repeats] for block in found] for removes in (True, False))
        ratio = ratio_of(with_, without)
        share = Interval(ratio.ratio - 1, ratio.low - 1, ratio.high - 1, ratio.blocks)
        shares.append(Share(repeats, geometric_mean(without), share))
    return shares


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
        self._timed: dict[str, list[float]] = {}
        self._request_costs: list[dict[tuple[bool, bool], float]] = []

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
        time_methods(10 if self._is_quick else 200, seed, self._timed)
        if is_known_here():
            progress("loading two balancers in turns")
            await self._measure_shares(seed, folder)

    async def _measure_shares(self, seed: int, folder: Path) -> None:
        """Measure both balancers with both kinds of clients in each block. Raises `FleetFailedError`."""
        blocks, requests = (6, 400) if self._is_quick else (40, 1600)
        async with AsyncExitStack() as stack:
            plain = {"endpoints": [{"id": "w", "region": "here", "address": await launch.fast_worker(stack)}]}
            names = {"headers": {"internal": list(INTERNAL)}}
            balancers = {
                removes: await launch.balancer(f"internal names {removes}", keys, folder, stack)
                for removes, keys in ((True, plain | names), (False, plain))
            }
            cases = product((False, True), (False, True))

            def call(case: tuple[bool, bool]) -> float:
                removes, repeats = case
                return request_cost(balancers[removes], requests, repeats)

            async for found in launch.paired_blocks(cases, blocks, seed, call):
                self._request_costs.append(found)

    def findings(self) -> Iterator[Table | Text | str]:
        costs, shares = costs_of(self._timed), shares_of(self._request_costs)
        if not costs:
            return
        of_methods = (
            "µs per request: mean [95 % interval]; the source's are of compiled code on another machine"
        )
        rows = [
            (name, written(cost, MICROS), MICROS(SOURCE[name]) if name in SOURCE else "–")
            for name, cost in costs.items()
        ]
        of_shares = "CPU time of the proxy per forwarded request, without and with the names"
        heads = ("client", "without, µs", "added, µs", "share [95 % interval]", "source")
        cells = [
            (
                one.client,
                f"{one.without:.1f}",
                f"{one.added:+.2f}",
                written(one.share, PERCENT),
                "1.71% → 0.34%",
            )
            for one in shares
        ]
        yield plain_table(("method", "µs", "source"), rows, title=of_methods)
        yield plain_table(heads, cells, title=of_shares)
        if not is_known_here():
            yield Text("No share: CPU time is read from Linux' accounting, which is not here.", "yellow")
        for one in shares[:1]:
            least = least_cost_of_names(costs) / one.without
            yield (
                f"The names make the pass over new fields longer by at least {least:.2%} of the {one.without:.1f} µs "
                "of a request."
            )

    def verdicts(self) -> Iterator[BoundVerdict]:
        least = least_cost_of_names(costs_of(self._timed))
        bound = f"internal fields take ≤ {BOUND:.2%} of a request"
        for one in shares_of(self._request_costs):
            yield BoundVerdict(one.client, bound, one.is_met(least), written(one.share, PERCENT))

    def figure(self) -> Figure:
        """Cost of each method in microseconds, and the share of a request's CPU time that the names take."""
        costs = costs_of(self._timed)
        shares = {one.client: one.share for one in shares_of(self._request_costs)}
        figure, (methods, request) = canvas.blank(1.4 + 0.5 * len(costs), 1, 2, width_ratios=(2, 1))
        micros = "µs per request: mean, 95 % interval; stroke: the source's, of compiled code"
        interval_bars(methods, costs, micros, MICROS, expected=SOURCE)
        methods.set_title("Cost of removing internal fields", fontweight="bold")
        label, bounds = f"% of CPU time; {SOURCE_STROKE}", dict.fromkeys(shares, 100 * BOUND)
        interval_bars(request, shares, label, "{:.2f} %".format, expected=bounds, unit=100.0)
        request.set_title("Share of a forwarded request", fontweight="bold")
        return figure

    def content(self) -> dict[str, Any]:
        costs = costs_of(self._timed)
        least = least_cost_of_names(costs)
        return {
            "build": describe_build(),
            "methods": [
                {"method": name} | with_ends("micros", cost) | {"source": SOURCE.get(name)}
                for name, cost in costs.items()
            ],
            "shares": [
                {"repeats": one.repeats, "without": one.without}
                | with_ends("share", one.share)
                | {"added": one.added, "is_met": one.is_met(least)}
                for one in shares_of(self._request_costs)
            ],
            "measurements": [
                {"block": block, "removes": removes, "repeats": repeats, "micros": micros}
                for block, found in enumerate(self._request_costs)
                for (removes, repeats), micros in found.items()
            ],
        }


def with_ends(name: str, found: Interval) -> dict[str, Any]:
    return {name: found.ratio, "interval": (found.low, found.high)}
