"""`experiments reproduce reuse`: gain of connection reuse for a service that calls a third party.

The nine calls go through a balancer for each way to connect to the third party. Each way has fresh third parties and a
fresh balancer, in random order; the ways differ by two configuration lines only. Times are those of the source,
compressed by `time_scale`.

All users of the source's nine calls start at once and wait for each response before the next call. Failures are counted
and the user continues.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, closing
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from random import Random
from typing import Any

from matplotlib.figure import Figure
from rich.table import Table
from rich.text import Text

from experiments.platform.processes import Child, all_of
from experiments.platform.session import BoundVerdict
from experiments.platform.terminal import plain_table
from experiments.report import canvas
from experiments.report.palette import GREY
from experiments.reproduce import launch
from experiments.reproduce.charts import bar, draw_percentiles, label_bars, label_percentiles, nines
from experiments.reproduce.client import (
    SUMMARY_HEADS,
    Calls,
    ClientAnswer,
    LatencySummary,
    OneCaller,
    calls_of,
    scheduled,
)
from experiments.reproduce.launch import UNVERIFIED, Keys
from experiments.reproduce.reproduction import Publication, ReportProgress, Reproduction, failures_verdict

BEFORE = LatencySummary(109.195, 375, 3493, 4941, 9035, 14522, 23363, 4289, 2599)
AFTER = LatencySummary(168.142, 212, 1587, 2063, 5725, 24686, 48450, 2546, 3956)
SOURCE = {"source: new connections": BEFORE, "source: reuse, libcurl": AFTER}

GAIN = 1.54
HALF_RATIO = 0.5

COLOURS = ("#D55E00", "#009E73", "#CC79A7", "#0072B2")
SOURCE_COLOURS = (GREY, "#222222")
RANKS = (0.0, 50.0, 75.0, 95.0, 99.0, 99.9)


@dataclass(frozen=True, slots=True)
class Call:
    """One kind of call, made `times` times by every user. `size`: bytes of its body."""

    name: str
    method: str
    times: int
    size: int = 0

    @property
    def body(self) -> bytes:
        return json.dumps({"call": self.name, "data": "x" * self.size}).encode() if self.size else b""


MIX = (
    Call("create zone", "POST", 1, 120),
    Call("create DNS records", "POST", 10, 160),
    Call("list records", "GET", 3),
    Call("change mode on", "PATCH", 1, 40),
    Call("update records", "PUT", 10, 160),
    Call("change mode off", "PATCH", 1, 40),
    Call("purge caches", "POST", 1, 60),
    Call("delete records", "DELETE", 10),
    Call("delete zone", "DELETE", 1),
)
CALLS_PER_USER = sum(call.times for call in MIX)
"""The source's 19 000 calls are those of 500 users."""


@dataclass(frozen=True, slots=True)
class LowTraffic:
    """Part with little traffic, not compressed: `calls` at Poisson instants, `gap` seconds apart on average, over
    `parties` third parties, so that each is called rarely.
    """

    parties: int = 8
    calls: int = 100
    gap: float = 0.5


@dataclass(frozen=True, slots=True)
class ReusePlan:
    """Seconds of the source's time, which `time_scale` compresses. `at_once`: concurrent calls of the service.

    Handshakes take milliseconds of Python on both ends, so the third party is `machines` processes. `idle`: range of
    the idle timeout after which it closes a connection without notice; `requests`: range of its request limit per
    connection.
    """

    users: int = 500
    at_once: int = 50
    machines: int = 2
    round_trip: float = 0.090
    service: tuple[float, float] = (0.100, 0.160)
    idle: tuple[float, float] = (4.5, 9.0)
    requests: tuple[int, int] = (20, 200)
    time_scale: float = 0.5
    low_traffic: LowTraffic = LowTraffic()

    @property
    def calls(self) -> int:
        return self.users * CALLS_PER_USER


QUICK = ReusePlan(users=14, at_once=7, machines=1, time_scale=0.25, low_traffic=LowTraffic(2, 12))


@dataclass(frozen=True, slots=True)
class Transport:
    """A way to connect, as keys of the endpoint."""

    name: str
    transport: str = "native"
    keep_alive: bool = True

    @property
    def why_absent(self) -> str:
        """Reason why it cannot take part; empty if it can."""
        missing = self.transport == "curl" and find_spec("pycurl") is None
        return "pycurl is not installed: pip install '.[curl]' in the checkout" if missing else ""


NEW_CONNECTIONS = Transport("new connection each time", keep_alive=False)
OURS = Transport("our pool")
TRANSPORTS = (NEW_CONNECTIONS, Transport("aiohttp session", "aiohttp"), Transport("libcurl", "curl"), OURS)


@dataclass(frozen=True, slots=True)
class TransportRun:
    """All calls of the users by one transport, and those with little traffic through a balancer of its own."""

    transport: Transport
    load: Calls
    low_traffic: Calls

    @property
    def cells(self) -> tuple[str, ...]:
        load, low = self.load.connections, self.low_traffic.connections
        is_native = self.transport.transport == "native"  # aiohttp and libcurl do not expose these counters
        lost = [str(low[name]) if is_native else "–" for name in ("lost_idle", "died")]
        counts = (load["opened"], load["reused"], low["opened"], low["reused"])
        ends = (low["retried"], self.low_traffic.failed, f"{self.low_traffic.latency().p50:.0f}")
        return (self.transport.name, *map(str, counts), *lost, *map(str, ends))


class Reuse(Reproduction):
    """The same calls by every transport: all users at once, then little traffic."""

    name = "reuse"
    document = Publication(
        "Connection reuse and libcurl: load tests of an API service that calls external APIs",
        "publisher not stated in the copy that was used",
    )
    summary = "Nine calls, 19 000 requests, to a third party by https: new connections, aiohttp, libcurl and our pool."
    duration = "four minutes"

    def __init__(self, is_quick: bool) -> None:
        self._plan = QUICK if is_quick else ReusePlan()
        self._runs: list[TransportRun] = []

    def introduction(self) -> str:
        plan = self._plan
        (low, high), (fewest, most), (shortest, longest) = plan.service, plan.requests, plan.idle
        return (
            f"{plan.users} users at once, each with its nine kinds of calls one after the other, {plan.calls} in all; "
            f"the service makes {plan.at_once} at a time.\nThe third party: {1e3 * plan.round_trip:g} ms of round "
            f"trip, TLS 1.2, {1e3 * low:g} to {1e3 * high:g} ms of service; it ends connections after {fewest} to "
            f"{most} requests and, without notice, after {shortest:g} to {longest:g} idle seconds.\nTime is "
            f"compressed: a second takes {plan.time_scale:g} s here, and results are given in the source's time.\n"
        )

    async def measure(self, seed: int, folder: Path, progress: ReportProgress) -> None:
        available = [transport for transport in TRANSPORTS if not transport.why_absent]
        loads: dict[Transport, Calls] = {}
        for transport in Random(seed).sample(available, len(available)):
            progress(f"{transport.name}: starting")
            loads[transport] = await load(transport, self._plan, seed, folder, progress)
        progress(f"little traffic by all {len(available)} at once")
        rare = await low_traffic(available, self._plan, seed, folder)
        self._runs += [TransportRun(one, loads[one], rare[one]) for one in available]

    @property
    def _rows(self) -> dict[str, LatencySummary]:
        return {run.transport.name: run.load.latency(self._plan.time_scale) for run in self._runs}

    def findings(self) -> Iterator[Table | Text]:
        if not self._runs:
            return
        plan, low, rows = self._plan, self._plan.low_traffic, self._rows
        failed = {run.transport.name: run.load.failed for run in self._runs}
        cells = [(name, *row.texts(), str(failed.get(name, 0))) for name, row in (SOURCE | rows).items()]
        title = f"{plan.calls} requests; ms, in the source's time: 1 s of it took {plan.time_scale:g} s"
        heads = ("", "opened", "reused", "opened", "reused", "lost while idle", "died", "retried", "failed")
        of_connections = (
            f"connections: with all users; and with {low.calls} calls, to each of {low.parties} third parties one "
            f"every {low.gap * low.parties:g} s"
        )
        yield plain_table(("", *SUMMARY_HEADS, "failed"), cells, title=title)
        yield plain_table((*heads, "p50, ms"), [run.cells for run in self._runs], title=of_connections)
        for name, why in not_measured().items():
            yield Text(f"{name}: not measured, {why}.", style="yellow")

    def verdicts(self) -> Iterator[BoundVerdict]:
        rows, runs = self._rows, {run.transport: run for run in self._runs}
        if not {NEW_CONNECTIONS, OURS} <= runs.keys():
            return
        old, new, run = rows[NEW_CONNECTIONS.name], rows[OURS.name], runs[OURS]
        gain, half = new.rate / old.rate, new.p50 / old.p50
        median = f"≤ {HALF_RATIO} of theirs (source: {AFTER.p50 / BEFORE.p50:.2f})"
        yield BoundVerdict("throughput", f"≥ {GAIN} × that of new connections", gain >= GAIN, f"{gain:.2f} ×")
        yield BoundVerdict("median", median, half <= HALF_RATIO, f"{half:.2f}")
        for name, ours, theirs, grew in (
            ("p99", new.p99, old.p99, "it grew by 70 %"),
            ("max", new.max, old.max, "it doubled"),
        ):
            bound = f"< theirs, {theirs:.0f} ms (source: {grew})"
            yield BoundVerdict(name, bound, ours < theirs, f"{ours:.0f} ms")
        for part, calls in (("all users", run.load), ("little traffic", run.low_traffic)):
            yield failures_verdict(f"{part}, our pool", calls.failed, len(calls.answers))

    def figure(self) -> Figure:
        """Latency percentiles in milliseconds, of the source only those that it states, and throughput."""
        rows = SOURCE | self._rows
        colours = dict(zip(rows, (*SOURCE_COLOURS, *COLOURS), strict=False))
        figure, (latency, rate) = canvas.blank(4.6, 1, 2, width_ratios=(2.2, 1))
        ends = [row.p99 for row in SOURCE.values()]
        for run in self._runs:
            name, scale = run.transport.name, self._plan.time_scale
            seconds = [one.took / scale for one in run.load.answers if one.is_ok]
            draw_percentiles(latency, seconds, colours[name], name)
            ends += [1e3 * min(seconds), 1e3 * max(seconds)]
        at = nines((50.0, 75.0, 95.0, 99.0))
        for name, row in SOURCE.items():
            values = (row.p50, row.p75, row.p95, row.p99)
            latency.plot(at, values, "o--", color=colours[name], linewidth=1, markersize=4, label=name)
        canvas.milliseconds(latency.yaxis, ends)
        label_percentiles(latency, RANKS)
        latency.set_ylabel("ms, in the source's time")
        latency.set_title("Latency of a call", fontweight="bold")
        canvas.legend_above(figure, latency.get_legend_handles_labels()[0], columns=3)
        for place, (name, row) in enumerate(reversed(rows.items())):
            bar(rate, place, row.rate, f"{row.rate:.0f}", colours[name])
        rate.set_xlim(0, 1.18 * max(row.rate for row in rows.values()))
        label_bars(rate, list(rows)[::-1], "requests per second")
        rate.set_title("Throughput", fontweight="bold")
        return figure

    def content(self) -> dict[str, Any]:
        return {
            "plan": self._plan,
            "source": SOURCE,
            "rows": self._rows,
            "runs": [
                {
                    "transport": run.transport.name,
                    "load": part_content(run.load),
                    "low_traffic": part_content(run.low_traffic),
                }
                for run in self._runs
            ],
            "not_measured": not_measured(),
        }


def not_measured() -> dict[str, str]:
    """Reasons by the name of the transport."""
    return {one.name: one.why_absent for one in TRANSPORTS if one.why_absent}


def part_content(part: Calls) -> dict[str, Any]:
    """Counts for JSON, without single calls."""
    return {
        "requests": len(part.answers),
        "failed": part.failed,
        "calls": Counter(one.call for one in part.answers),
        "statuses": Counter(one.status for one in part.answers),
        "failed_calls": Counter(one.call for one in part.answers if not one.is_ok),
        "span": part.span,
        "connections": part.connections,
    }


async def load(
    transport: Transport, plan: ReusePlan, seed: int, folder: Path, progress: ReportProgress
) -> Calls:
    """Run all users by one transport, each with all calls of the mix on a connection of its own."""
    answers: list[ClientAnswer] = []

    async def user(address: tuple[str, int]) -> None:
        with closing(OneCaller(*address)) as client:
            for call in MIX:
                for _ in range(call.times):
                    answers.append(await client.ask(call.method, call.body, call.name))
                    if len(answers) % 100 == 0:
                        progress(f"{transport.name}: {len(answers)} of {plan.calls} calls")

    async with AsyncExitStack() as stack:
        numbers = range(plan.machines)
        options = [party_options(plan, plan.time_scale, seed + number) for number in numbers]
        parties = await launch.workers(stack, options)
        balancer = await balancer_of(transport, parties, plan.at_once, folder, stack)
        return await calls_of(balancer, (user(balancer.address) for _ in range(plan.users)), answers)


async def low_traffic(
    transports: Sequence[Transport], plan: ReusePlan, seed: int, folder: Path
) -> dict[Transport, Calls]:
    """The same calls at the same instants by all, each with its own balancer, to the same third parties."""
    low = plan.low_traffic
    async with AsyncExitStack() as stack:
        options = [party_options(plan, 1.0, seed + number) for number in range(low.parties)]
        parties = await launch.workers(stack, options)
        balancers = {one: await balancer_of(one, parties, plan.at_once, folder, stack) for one in transports}
        found: dict[Transport, Calls] = {}

        async def run(transport: Transport, balancer: Child) -> None:
            drawn = random_instants(low.calls, low.gap, Random(seed))
            requests = ((at, call.method, call.body, call.name) for call, at in drawn)
            found[transport] = await scheduled(balancer, requests)

        await all_of(run(*pair) for pair in balancers.items())
        return found


def random_instants(calls: int, gap: float, rng: Random) -> Iterator[tuple[Call, float]]:
    """Calls drawn by their share of the mix, with Poisson instants in seconds."""
    at = 0.0
    for call in rng.choices(MIX, [call.times for call in MIX], k=calls):
        at += rng.expovariate(1 / gap)
        yield call, at


def party_options(plan: ReusePlan, time_scale: float, seed: int) -> Keys:
    """Options of an emulated third party without TLS session resumption, because the source's client used none."""
    low, high = (f"{1e3 * seconds:g}" for seconds in plan.service)
    return {
        "rtt": f"{1e3 * plan.round_trip:g}ms",
        "service": f"{low}-{high}ms",
        "slots": 4 * plan.at_once,
        "tls": "1.2",
        "no_resumption": True,
        "close_idle_at_random": "{:g}-{:g}s".format(*plan.idle),
        "max_requests_per_connection": "{}-{}".format(*plan.requests),
        "time_scale": time_scale,
        "seed": seed,
    }


async def balancer_of(
    transport: Transport, parties: Sequence[Child], at_once: int, folder: Path, stack: AsyncExitStack
) -> Child:
    keys = keys_of(transport, at_once, [party.address for party in parties])
    return await launch.balancer(f"{transport.name}, {len(parties)}", keys, folder, stack)


def keys_of(transport: Transport, at_once: int, parties: Sequence[tuple[str, int]]) -> Keys:
    """Configuration of the balancer: a call goes to a random third party."""
    endpoints = [
        {
            "id": f"party-{number}",
            "address": f"https://{host}:{port}",
            "transport": transport.transport,
            "keep_alive": transport.keep_alive,
        }
        for number, (host, port) in enumerate(parties)
    ]
    limits = {"in_flight": at_once}
    return {"seed": 1, "policy": "random", "limits": limits, **UNVERIFIED, "endpoints": endpoints}
