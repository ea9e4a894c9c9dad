"""Performance bounds and verdicts: ratios within blocks and their interval. Pure functions of runs.

Ratios are computed within a block, under equal machine load. A bound is met or missed if the whole 95 % interval of
their geometric mean is on one side of it, and otherwise not judged. A fault in any run of
Steelyard misses its bounds; without a peer to compare with, nothing is judged.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from benchmarks.cost.plan import CostRun
from benchmarks.harness.cases import CASES
from benchmarks.harness.peers import HAPROXY, NGINX, OTHER_BUILD, OURS, SESSION, TRACED
from benchmarks.harness.verdicts import block_ratios, in_blocks, side_of
from experiments.platform.session import BoundVerdict
from experiments.stats.comparison import Interval, average, typical

NO_BLOCK = "no block has a valid run of each"


@dataclass(frozen=True, slots=True)
class Bound:
    """Bound of `limit` times the cheapest peer of `over`, or on the figure itself if `over` is empty."""

    case: str
    limit: float
    over: tuple[str, ...] = ()
    is_gain: bool = False
    """Whether the figure must be at least `limit` times cheaper, instead of at most `limit` times dearer."""

    words: str = "{peer} at most {limit:g} × {over}"
    digits: int = 2


BOUNDS = (
    Bound("get", 1.3, (NGINX, HAPROXY)),
    Bound("get", 5.0, (SESSION,), is_gain=True, words="{peer} at least {limit:g} × cheaper than the {over}"),
    Bound("tls", 1.3, (NGINX, HAPROXY)),
    Bound("http2", 1.3, (NGINX, HAPROXY)),
    Bound("http2x10", 1.4, (NGINX, HAPROXY)),
    Bound("get1m", 1.5, (NGINX,)),
    Bound("post16k", 1.5, (NGINX,)),
    Bound("stream", 1.15, (NGINX, HAPROXY)),
    Bound("half", 1.2, (NGINX,)),
    Bound("idle", 6 * 1024, words="{peer} at most {limit:g} bytes"),
    Bound("start", 400, words="{peer} at most {limit:g} ms"),
    Bound("rest", 40, words="{peer} at most {limit:g} MiB"),
)
AT_MOST_STEEPER = 1.1
"""Bound on the highest cost over the lowest, of all numbers of endpoints."""


def verdicts(runs: Sequence[CostRun]) -> list[BoundVerdict]:
    """Verdicts on every bound of every case that was run, for each policy of Steelyard."""
    made: list[BoundVerdict] = []
    for case in dict.fromkeys(run.case for run in runs):
        own = [run for run in runs if run.case == case]
        peers = list(dict.fromkeys(run.peer for run in own))
        ours = [peer for peer in peers if peer.startswith(OURS) and OTHER_BUILD not in peer]
        made += [judged(bound, own, peer) for bound, peer in beside_itself(case, peers)]
        if CASES[case].sizes:
            made += flatness([run for run in own if run.peer in ours])
        else:
            made += [judged(bound, own, peer) for peer in ours for bound in BOUNDS if bound.case == case]
    return made


def beside_itself(case: str, peers: Sequence[str]) -> Iterator[tuple[Bound, str]]:
    """Bounds on Steelyard over its other build, and with propagation of the trace context over without."""
    for peer in peers:
        if OTHER_BUILD in peer:
            words = "{peer} at most {limit:g} × the other build"
            yield Bound(case, 1.02, (peer,), words=words, digits=3), peer.replace(OTHER_BUILD, "")
        if peer.endswith(TRACED):
            over = (peer.removesuffix(TRACED),)
            yield Bound(case, 1.01, over, words="{peer} at most {limit:g} × without", digits=3), peer


def judged(bound: Bound, runs: Sequence[CostRun], peer: str) -> BoundVerdict:
    """Verdict on one bound for one peer; `runs` are of its case."""
    sides = [side for side in bound.over if any(run.peer == side for run in runs)]
    over = ("the cheaper of " if len(sides) > 1 else "") + " and ".join(sides or bound.over)
    words = bound.words.format(peer=peer, limit=bound.limit, over=over)
    verdict = partial(BoundVerdict, bound.case, words)
    if bound.over and not sides:
        return verdict(None, f"not measured: {' and '.join(bound.over)}")
    if invalid := [run.peer for run in runs if run.peer in (peer, *sides) and run.fault]:
        return verdict(False, f"{invalid[0]} is invalid")
    found = ratios(runs, peer, sides) if sides else [run.figure for run in runs_of(runs, peer)]
    if bound.is_gain:
        found = [1 / ratio for ratio in found]
    if not found:
        return verdict(None, NO_BLOCK)
    mean, unit = typical(found) if sides else average(found), "×" if sides else words.rpartition(" ")[2]
    return verdict(side_of(mean, bound.limit, bound.is_gain), figure_in_words(mean, unit, bound.digits))


def flatness(runs: Sequence[CostRun]) -> list[BoundVerdict]:
    """Verdicts on how the cost grows with the number of endpoints, for each policy."""
    policies: dict[str, list[str]] = {}
    for peer in dict.fromkeys(run.peer for run in runs):
        policies.setdefault(peer.partition(",")[0], []).append(peer)
    return [flat(policy, sorted(peers, key=endpoints_in), runs) for policy, peers in policies.items()]


def flat(policy: str, peers: Sequence[str], runs: Sequence[CostRun]) -> BoundVerdict:
    """Judge the interval of the ratio of the dearest size to the cheapest, within blocks that have all sizes."""
    sizes = [endpoints_in(peer) for peer in peers]
    words = f"{policy} flat from {sizes[0]} to {sizes[-1]} endpoints within {AT_MOST_STEEPER - 1:.0%}"
    verdict = partial(BoundVerdict, runs[0].case, words)
    if invalid := [run.peer for run in runs if run.peer in peers and run.fault]:
        return verdict(False, f"{invalid[0]} is invalid")
    columns = [figures_of(runs, peer) for peer in peers]
    whole = set.intersection(*map(set, columns))
    if not whole:
        return verdict(None, NO_BLOCK)
    costs = [[column[block] for block in sorted(whole)] for column in columns]
    means = [typical(cost).ratio for cost in costs]
    dearest, cheapest = costs[means.index(max(means))], costs[means.index(min(means))]
    slope = typical([dear / cheap for dear, cheap in zip(dearest, cheapest, strict=True)])
    each = ", ".join(f"{size}: {mean / means[0]:.2f}" for size, mean in zip(sizes, means, strict=True))
    return verdict(side_of(slope, AT_MOST_STEEPER), f"{figure_in_words(slope, '×')}; {each}")


def endpoints_in(peer: str) -> int:
    """Number of endpoints in a peer's name: 10 for `steelyard random, 10 endpoints`."""
    return int(peer.rpartition(", ")[2].split()[0])


def runs_of(runs: Sequence[CostRun], peer: str) -> list[CostRun]:
    """Runs of one peer that are not void."""
    return [run for run in runs if run.peer == peer and not run.void]


def figures_of(runs: Sequence[CostRun], peer: str) -> dict[int, float]:
    """Figure of one peer by block; empty if any of its runs is invalid."""
    is_invalid = any(run.fault for run in runs if run.peer == peer)
    return {} if is_invalid else {run.block: run.figure for run in runs_of(runs, peer)}


def ratios(runs: Sequence[CostRun], peer: str, others: Sequence[str]) -> list[float]:
    """Figure of `peer` over the least of `others`, for every block that has all; none if any run is invalid.

    Figures that are not above zero, such as a small growth of memory, give no ratio.
    """
    figures = [figures_of(runs, other) for other in others]
    whole = set.intersection(*(set(own) for own in figures))
    least = {block: min(own[block] for own in figures) for block in whole}
    return block_ratios(figures_of(runs, peer), least)


def figure_in_words(found: Interval, unit: str, digits: int = 2) -> str:
    """Text such as `1.25 ×, interval 1.20–1.31 over 5 blocks`; a single block has no interval."""
    digits = digits if unit == "×" else 0
    mean, low, high = (f"{value:.{digits}f}" for value in (found.ratio, found.low, found.high))
    span = "" if found.blocks < 2 else f", interval {low}–{high}"
    return f"{mean} {unit}{span} over {in_blocks(found.blocks)}"
