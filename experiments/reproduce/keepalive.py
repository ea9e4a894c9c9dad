"""`experiments reproduce keepalive`: gain of keep-alive, TLS 1.3 and HTTP/2 for one sequential client.

One call at a time on the whole machine; every block has every case once in random order, so that temporary slowness
affects all alike.

A round trip is R = 2 × one way, S the service time. A new connection costs 1R for TCP, and 2R more with TLS 1.2 or 1R
with TLS 1.3; the request itself R + S: that is the bound. Computation on both ends is not in it: every case has a
counterpart whose worker has no delay, and its time plus the round trips shows whether that explains a miss.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from statistics import fmean, median
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from rich.table import Table

from experiments.errors import FleetFailedError
from experiments.platform.session import BoundVerdict
from experiments.platform.terminal import plain_table
from experiments.report import canvas
from experiments.reproduce import launch
from experiments.reproduce.blocking_client import Target, client_context, consecutive_calls
from experiments.reproduce.charts import BAD, GOOD, SOURCE_MARK, bar, label_bars
from experiments.reproduce.launch import UNVERIFIED
from experiments.reproduce.reproduction import (
    Publication,
    ReportProgress,
    Reproduction,
    all_met,
    judged,
    ratio_of,
    written,
)
from experiments.stats.comparison import Interval, average

SOURCE = {("1.2", True): 135, ("1.2", False): 30}
"""The source's results in ms, by TLS version and whether a connection is opened; the first is a lower bound. It counts
TCP's third packet, which travels with TLS's first, as a round trip of its own, and no service time.
"""

SAVED_BY_SOURCE = {"1.2": "206 ms, over a longer distance", "1.3": "–"}
SOURCE_HTTP2_RATIO = 1.09
"""The source's gain by keep-alive, by TLS version, and its ratio of HTTP/2 to HTTP/1.1 for one client."""

HANDSHAKES = {"1.2": 3, "1.3": 2}
"""Round trips before the first byte of a request, including TCP's."""

MAX_DEVIATION = 0.05
"""Allowed relative distance of a median from theory."""

MOST_OVERSLEEP = 0.001
"""Bound on the p90 of oversleeping in seconds; beyond it other processes use the machine, and no miss is judged."""


@dataclass(frozen=True, slots=True)
class KeepalivePlan:
    """`one_way` and `service` in seconds; `blocks`, in each of which every case makes `calls` requests."""

    one_way: float = 0.015
    service: float = 0.020
    blocks: int = 24
    calls: int = 4


QUICK = KeepalivePlan(blocks=4, calls=3)


@dataclass(frozen=True, slots=True)
class KeepaliveCase:
    """One way to call. `is_proxied`: through the balancer, which is near and keeps the connection to the worker.
    `is_near`: the worker has no network delay, so that only service and computation remain.
    """

    http: str
    tls: str
    keep_alive: bool
    is_proxied: bool = False
    is_near: bool = False

    @property
    def near(self) -> KeepaliveCase:
        return replace(self, is_near=True)

    @property
    def name(self) -> str:
        kept = "keep-alive" if self.keep_alive else "none"
        near = ", near" if self.is_near else ""
        return f"HTTP/{self.http}, TLS {self.tls}, {'proxy' if self.is_proxied else kept}{near}"


DIRECT = tuple(
    KeepaliveCase(http, tls, kept) for tls, http, kept in product(("1.2", "1.3"), ("1.1", "2"), (True, False))
)
PROXIED = KeepaliveCase("1.1", "1.3", True, is_proxied=True)
CASES = (*DIRECT, PROXIED)


@dataclass(frozen=True, slots=True)
class Measurement:
    """Consecutive calls of a case in one block: seconds of the first and of each later one.

    `oversleep` is how late a short sleep ended just before, in seconds: the delay that the machine itself adds.
    """

    first: float
    later: tuple[float, ...]
    oversleep: float = 0.0


Block = Mapping[KeepaliveCase, Measurement]
"""All cases, and the counterpart of each without delay."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Milliseconds of a call: `found` is the mean over blocks, `theory` round trips plus service, `expected` round
    trips plus the time of the counterpart without delay, `source` the source's figure, a lower bound if `is_new`: if
    a connection is opened for the call.
    """

    is_new: bool
    theory: float
    expected: float
    found: Interval
    source: float | None

    @property
    def is_explained(self) -> bool:
        """Whether the mean is within 5 % of the round trips plus the counterpart's time."""
        return abs(self.found.ratio / self.expected - 1) <= MAX_DEVIATION

    def is_met(self, is_busy: bool) -> bool | None:
        """Whether it is within 5 % of theory."""
        low, high = ((1 + side * MAX_DEVIATION) * self.theory for side in (-1, 1))
        return judged(self.found, low, high, is_busy)

    @property
    def cells(self) -> tuple[str, ...]:
        source = "–" if self.source is None else f"{'≥ ' if self.is_new else ''}{self.source}"
        return str(self), f"{self.expected:.1f} ({self.theory:.0f})", source

    def content(self, name: str) -> dict[str, Any]:
        interval = (self.found.low, self.found.high)
        figures = {"theory": self.theory, "expected": self.expected, "interval": interval}
        return {name: self.found.ratio} | {f"{name}_{key}": value for key, value in figures.items()}

    def __str__(self) -> str:
        return f"{self.found.ratio:.1f} [{self.found.low:.0f}, {self.found.high:.0f}]"


class KeepaliveRow(NamedTuple):
    """First and later calls of a case."""

    first: Timing
    later: Timing

    @property
    def is_explained(self) -> bool:
        return all(timing.is_explained for timing in self)

    def is_met(self, is_busy: bool) -> bool | None:
        """Whether both are within 5 % of theory."""
        return all_met(timing.is_met(is_busy) for timing in self)


def network_delay(case: KeepaliveCase, plan: KeepalivePlan) -> tuple[float, float]:
    """Seconds of network delay in the first call and in later calls."""
    new = 2 * plan.one_way * (HANDSHAKES[case.tls] + 1)
    return new, 2 * plan.one_way if case.keep_alive else new


def row_of(case: KeepaliveCase, found: Sequence[Block], plan: KeepalivePlan) -> KeepaliveRow:
    """Row of a case over the blocks, of which there is at least one."""
    first_delay, later_delay = network_delay(case, plan)

    def timing(is_new: bool, delay: float, seconds: Callable[[Measurement], float]) -> Timing:
        far, near = ([1e3 * seconds(block[which]) for block in found] for which in (case, case.near))
        theory, expected = 1e3 * (delay + plan.service), 1e3 * delay + fmean(near)
        return Timing(is_new, theory, expected, average(far), SOURCE.get((case.tls, is_new)))

    return KeepaliveRow(
        timing(True, first_delay, lambda one: one.first),
        timing(not case.keep_alive, later_delay, lambda one: median(one.later)),
    )


def http2_to_http1(found: Sequence[Block]) -> Interval:
    """Ratio of HTTP/2 to HTTP/1.1 for later calls with keep-alive, paired by block and TLS, with interval."""
    return ratio_of(
        *(
            [median(block[KeepaliveCase(http, tls, True)].later) for block in found for tls in HANDSHAKES]
            for http in ("2", "1.1")
        )
    )


def oversleep_of(found: Sequence[Block]) -> float:
    """p90 of oversleeping in seconds."""
    each = [one.oversleep for block in found for one in block.values()]
    return float(np.percentile(each, 90)) if each else 0.0


HEIGHT = 0.36


class Keepalive(Reproduction):
    """HTTP versions, TLS versions and keep-alive in all combinations, and a balancer between."""

    name = "keepalive"
    document = Publication(
        "Improving API Performance with HTTP Keepalive", "Clete Blackwell II, State Farm Engineering"
    )
    summary = "HTTP/1.1 and 2, TLS 1.2 and 1.3, with keep-alive and without, over 15 ms one way."
    duration = "about four minutes"

    def __init__(self, is_quick: bool) -> None:
        self._plan = QUICK if is_quick else KeepalivePlan()
        self._found: list[Block] = []

    def introduction(self) -> str:
        plan = self._plan
        return (
            f"One sequential client, workers {1e3 * plan.one_way:g} ms away one way, {1e3 * plan.service:g} ms of "
            f"service, {plan.blocks} blocks of {plan.calls} calls in each case, and as many to its counterpart without "
            "distance, which shows the time that both ends compute.\n"
            "The client is a blocking socket, with the ngh2 library for HTTP/2; no session is resumed.\n"
        )

    async def measure(self, seed: int, folder: Path, progress: ReportProgress) -> None:
        plan = self._plan
        async with AsyncExitStack() as stack:
            far = await targets_of(plan, folder, stack)
            near = await targets_of(replace(plan, one_way=0.0), folder, stack)
            targets = far | {case.near: target for case, target in near.items()}
            progress(f"{len(targets)} cases in turns, {plan.blocks} blocks")
            call = partial(measurement, targets, plan.calls)
            async for block in launch.paired_blocks(targets, plan.blocks, seed, call):
                self._found.append(block)
                progress(f"{len(self._found)} of {plan.blocks} blocks of {len(targets)} cases")

    @property
    def _rows(self) -> dict[KeepaliveCase, KeepaliveRow]:
        """Rows by case, in order; none before a block has ended."""
        return {case: row_of(case, self._found, self._plan) for case in CASES if self._found}

    @property
    def _is_busy(self) -> bool:
        """Whether other processes used the machine."""
        return oversleep_of(self._found) > MOST_OVERSLEEP

    def findings(self) -> Iterator[Table | str]:
        if not (rows := self._rows):
            return
        heads = ("case", "first", "near + trips", "source", "later", "near + trips", "source")
        title = (
            "ms: mean [95 % interval]; time without distance + round trips (arithmetic: service + round trips); "
            "the source's, without service"
        )
        cells = [(case.name, *row.first.cells, *row.later.cells) for case, row in rows.items()]
        yield plain_table(heads, cells, title=title)
        later = {case: row.later.found.ratio for case, row in rows.items()}
        for tls, theirs in SAVED_BY_SOURCE.items():
            without, kept = (later[KeepaliveCase("1.1", tls, keeps)] for keeps in (False, True))
            yield f"Keep-alive saves {without - kept:.1f} ms per later call with TLS {tls} (source: {theirs})."
        ratio = written(http2_to_http1(self._found), "{:.3f}".format)
        yield (
            f"HTTP/2 takes {ratio} times as long as HTTP/1.1 for one sequential client "
            f"(source: {SOURCE_HTTP2_RATIO} times)."
        )
        added = later[PROXIED] - later[replace(PROXIED, is_proxied=False)]
        yield f"The proxy, called without TLS, adds {added:+.2f} ms to a later call."
        explained = sum(row.is_explained for row in rows.values())
        yield (
            f"{explained} of {len(rows)} cases are within {MAX_DEVIATION:.0%} of round trips plus the time without "
            "distance."
        )
        if self._is_busy:
            late = 1e3 * oversleep_of(self._found)
            yield f"The machine was busy: every tenth sleep ended {late:.1f} ms late or more."

    def verdicts(self) -> Iterator[BoundVerdict]:
        bound = f"both within {MAX_DEVIATION:.0%} of arithmetic"
        for case, row in self._rows.items():
            met = row.is_met(self._is_busy)
            yield BoundVerdict(case.name, bound, met, f"{row.first} and {row.later} ms")

    def figure(self) -> Figure:
        """Two bars for each case, in milliseconds."""
        rows = self._rows
        figure, (axes,) = canvas.blank(1.4 + 0.48 * len(rows), 1, 1)
        for at, row in enumerate(reversed(rows.values())):
            for timing, colour, offset in ((row.first, BAD, HEIGHT / 2), (row.later, GOOD, -HEIGHT / 2)):
                mean, interval = timing.found.ratio, (timing.found.low, timing.found.high)
                place = at + offset
                bar(axes, place, mean, f"{mean:.1f}", colour, 0.92 * HEIGHT, interval, timing.expected)
                if timing.source is not None:
                    axes.plot(timing.source, place, **SOURCE_MARK)
        label = "ms per call: mean, its 95 % interval, and round trips plus the time without delay (stroke)"
        label_bars(axes, [case.name for case in reversed(rows)], label)
        axes.set_title("Gain of keep-alive, TLS 1.3 and HTTP/2 for one sequential client", fontweight="bold")
        bars = [Patch(color=BAD, label="first call"), Patch(color=GOOD, label="later calls")]
        circle = Line2D([], [], **SOURCE_MARK, label="source, without the time of service")
        canvas.legend_above(figure, [*bars, circle])
        return figure

    def content(self) -> dict[str, Any]:
        ratio = http2_to_http1(self._found) if self._found else None
        return {
            "plan": self._plan,
            "oversleep": oversleep_of(self._found),
            "rows": [
                {"case": case, "name": case.name}
                | {"is_met": row.is_met(self._is_busy), "is_explained": row.is_explained}
                | row.first.content("first")
                | row.later.content("later")
                for case, row in self._rows.items()
            ],
            "http2_to_http1": ratio and {"ratio": ratio.ratio, "interval": (ratio.low, ratio.high)},
            "measurements": [
                {"case": case, "block": number} | asdict(one)
                for number, block in enumerate(self._found)
                for case, one in block.items()
            ],
        }


SLEEP = 0.002


async def targets_of(plan: KeepalivePlan, folder: Path, stack: AsyncExitStack) -> dict[KeepaliveCase, Target]:
    """Start workers and a balancer on the client's side of the link; returns the target of each case."""
    kinds = [*product(("1.2", "1.3"), ("1.1", "2")), (PROXIED.tls, PROXIED.http)]
    options = [worker_options(plan, *kind) for kind in kinds]
    options[-1]["max_requests_per_connection"] = plan.calls
    children = await launch.workers(stack, options)
    workers = {
        kind: Target(*child.address, *kind) for kind, child in zip(kinds[:-1], children[:-1], strict=True)
    }
    endpoint = {"id": "far", "region": "far", "address": "https://{}:{}".format(*children[-1].address)}
    balancer = await launch.balancer("near", {**UNVERIFIED, "endpoints": [endpoint]}, folder, stack)
    return {case: workers[case.tls, case.http] for case in DIRECT} | {PROXIED: Target(*balancer.address)}


def worker_options(plan: KeepalivePlan, tls: str, http: str) -> dict[str, object]:
    """Options of a worker behind the emulated delay."""
    return {
        "rtt": f"{2e3 * plan.one_way:g}ms" if plan.one_way else None,
        "service": f"fixed:{1e3 * plan.service:g}ms",
        "tls": tls,
        "http": http,
        "split_head": http == "2" or None,
    }


def measurement(targets: Mapping[KeepaliveCase, Target], calls: int, case: KeepaliveCase) -> Measurement:
    """Make the calls of one case. Raises `FleetFailedError`."""
    target = targets[case]
    try:
        # A new context has no session, so none is resumed. Made before the clock starts.
        context = client_context(target)
        oversleep = oversleeping()
        each = 1 if not case.keep_alive else calls
        took = [seconds for _ in range(calls // each) for seconds in consecutive_calls(target, context, each)]
    except (OSError, TimeoutError) as failure:
        raise FleetFailedError(f"{case.name}: {failure}") from None
    return Measurement(took[0], tuple(took[1:]), oversleep)


def oversleeping() -> float:
    """How late a sleep of 2 ms ends, in seconds."""
    due_at = time.perf_counter() + SLEEP
    time.sleep(SLEEP)
    return time.perf_counter() - due_at
