"""Figures, bounds and tables of a storm, from client rows and the workers' records. Pure functions.

Success counts only requests due within the storm; a failure counts with the timeout as its latency. Latencies exclude
requests due while the host had taken a core away, in the quiet period and in the storm alike. They are not judged if
too little of a run is left, or if the generator itself was late in the rest.

Tables have a column for each proxy. Counts of several rounds are summed; for times the worst is shown, for p99 the
geometric mean, with the interval of the ratio.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import median

import numpy as np
from rich.table import Table

from benchmarks.harness.verdicts import bracketed, over_blocks, side_of
from benchmarks.harness.verified.account import NO_WORKER, Account
from benchmarks.harness.verified.messages import WORKERS, Ending
from benchmarks.storm.plan import FAULTS, Episode, Pace
from benchmarks.storm.runs import Spans, Storm
from experiments.platform.session import BoundVerdict
from experiments.run_data import Flags, Floats
from experiments.stats.estimates import geometric_mean
from experiments.stats.measures import percentile

GET_SUCCESS = 0.9999
RECOVERY = 3.0
"""Bound on the seconds from a worker's return until it has its share of requests again."""

MAX_P99_RATIO = 1.5
"""Bound on p99 in the storm, as a multiple of the p99 in the quiet period before it."""

DETECTION_S = 1.0
"""Seconds at the start of each fault that p99 excludes: some requests must fail before a fault is detected."""

WINDOW, STEP = 0.5, 0.05
"""Seconds over which a share is counted, and step between windows."""

RECOVERED_SHARE = 0.7
"""Fraction of the quiet share that counts as recovered; a smaller one would be within the noise of a window."""

LOOK = 10.0
"""Seconds after which a worker without its share counts as not recovered."""

LAG_LIMIT = 0.001
"""Maximum p99 lag of a generator by which latencies can be judged, in seconds."""

MIN_UNDISTURBED = 0.5
"""Least undisturbed fraction of the quiet period and of the storm for latencies to be judged."""


@dataclass(frozen=True, slots=True)
class Recovery:
    """Recovery of one worker. `seconds` from its return to the first window with its share; None: never."""

    fault: str
    worker: str
    seconds: float | None


@dataclass(frozen=True, slots=True)
class ByFault:
    """Failed requests from the start of a fault to that of the next; p99 in seconds, during the fault."""

    fault: str
    gets_failed: int
    posts_failed: int
    p99: float
    recovery: float | None


@dataclass(frozen=True, slots=True)
class Figures:
    """Figures of one proxy in one storm. Times in seconds; `failures` by method and kind of ending."""

    peer: str
    round: int
    gets: int = 0
    gets_ok: int = 0
    posts: int = 0
    posts_ok: int = 0
    twice: int = 0
    """POSTs executed more than once."""

    crossed: int = 0
    """Responses of another request or with wrong bytes, and request bodies that reached a worker with wrong bytes."""

    untrue: int = 0
    """POSTs answered with success but not executed."""

    in_doubt: int = 0
    """POSTs that failed for the client but were executed."""

    failures: dict[str, dict[str, int]] = field(default_factory=dict)
    faults: tuple[ByFault, ...] = ()
    recoveries: tuple[Recovery, ...] = ()
    quiet_p99: float = 0.0
    storm_p99: float = 0.0
    whole_p99: tuple[float, float] = (0.0, 0.0)
    """p99 of quiet period and storm, including disturbed seconds."""

    undisturbed: tuple[float, float] = (1.0, 1.0)
    """Undisturbed fraction of the quiet period and of the storm."""

    lag: float = 0.0
    """p99 of the generator's own lag in the undisturbed part, in seconds."""

    busy: tuple[float, float] = (0.0, 0.0)
    """Utilisation of the proxy's core and of the core of all else."""

    fault: str = ""

    @property
    def ratio(self) -> float | None:
        return self.storm_p99 / self.quiet_p99 if self.quiet_p99 else None

    @property
    def is_punctual(self) -> bool:
        """Whether the generator's lag is within `LAG_LIMIT`."""
        return self.lag <= LAG_LIMIT

    @property
    def is_timed(self) -> bool:
        """Whether latencies can be judged."""
        return self.is_punctual and min(self.undisturbed) >= MIN_UNDISTURBED

    @property
    def recovery(self) -> float:
        """Longest recovery in seconds; infinite if a worker never had its share again."""
        found = [float("inf") if one.seconds is None else one.seconds for one in self.recoveries]
        return max(found, default=0.0)


def figures_of(storm: Storm, pace: Pace) -> Figures:
    if storm.account is None:
        return Figures(storm.peer, storm.round, fault=storm.fault or "nothing was measured")
    rows, ran = storm.account, storm.executions
    is_ok = rows.ending == Ending.OK
    in_storm = rows.due >= pace.quiet
    quiet, rest = is_quiet(rows, pace), in_storm & ~in_first_seconds(rows, storm.episodes)
    fair = ~within(rows, storm.disturbed)
    gets, posts = in_storm & ~rows.is_post, in_storm & rows.is_post
    recoveries = [found for episode in storm.episodes for found in recovered(rows, episode, pace)]
    identities = [b"p%07d" % number for number in np.flatnonzero(rows.is_post)]
    answered = dict(zip(identities, is_ok[rows.is_post].tolist(), strict=True))
    return Figures(
        peer=storm.peer,
        round=storm.round,
        gets=int(gets.sum()),
        gets_ok=int((gets & is_ok).sum()),
        posts=int(posts.sum()),
        posts_ok=int((posts & is_ok).sum()),
        twice=sum(times > 1 for times in ran.executed.values()),
        crossed=rows.crossed + len(ran.damaged),
        untrue=sum(is_true and not ran.executed[one] for one, is_true in answered.items()),
        in_doubt=sum(not is_true and ran.executed[one] > 0 for one, is_true in answered.items()),
        failures={"GET": rows.failures(gets), "POST": rows.failures(posts)},
        faults=tuple(by_fault(rows, storm.episodes, recoveries, fault) for fault in FAULTS),
        recoveries=tuple(recoveries),
        quiet_p99=percentile(rows.latency[quiet & fair], 99),
        storm_p99=percentile(rows.latency[rest & fair], 99),
        whole_p99=(percentile(rows.latency[quiet], 99), percentile(rows.latency[rest], 99)),
        undisturbed=(part(fair, quiet), part(fair, rest)),
        lag=rows.lag_of((quiet | in_storm) & fair),
        busy=storm.busy,
        fault=storm.fault,
    )


def is_quiet(rows: Account, pace: Pace) -> Flags:
    return np.asarray((rows.due >= 0) & (rows.due < pace.quiet))


def in_first_seconds(rows: Account, episodes: Sequence[Episode]) -> Flags:
    """Requests in flight when a fault began, or due in its first second."""
    found = np.zeros(len(rows.due), dtype=np.bool_)
    for episode in episodes:
        found |= (rows.ended >= episode.at) & (rows.due < episode.at + DETECTION_S)
    return found


def within(rows: Account, spans: Spans) -> Flags:
    """Requests due in any of the spans. Only the due time decides: slow requests must not be excluded as slow."""
    found = np.zeros(len(rows.due), dtype=np.bool_)
    for since, until in spans:
        found |= (rows.due >= since) & (rows.due < until)
    return found


def part(which: Flags, among: Flags) -> float:
    return float(which[among].mean()) if among.any() else 0.0


def by_fault(
    rows: Account, episodes: Sequence[Episode], recoveries: Sequence[Recovery], fault: str
) -> ByFault:
    begins = [*(episode.at for episode in episodes[1:]), float("inf")]
    near, inside = np.zeros(len(rows.due), dtype=np.bool_), np.zeros(len(rows.due), dtype=np.bool_)
    for episode, next_at in zip(episodes, begins, strict=True):
        if episode.fault == fault:
            near |= (rows.ended >= episode.at) & (rows.ended < next_at)
            inside |= (rows.due >= episode.at + DETECTION_S) & (rows.due < episode.until)
    failed = near & (rows.ending != Ending.OK)
    seconds = [one.seconds for one in recoveries if one.fault == fault]
    known = [one for one in seconds if one is not None]
    return ByFault(
        fault,
        int((failed & ~rows.is_post).sum()),
        int((failed & rows.is_post).sum()),
        percentile(rows.latency[inside], 99),
        max(known, default=0.0) if len(known) == len(seconds) else None,
    )


def recovered(rows: Account, episode: Episode, pace: Pace) -> list[Recovery]:
    found = []
    for worker in episode.workers:
        index = WORKERS.index(worker)
        usual = share(rows, index, is_quiet(rows, pace))
        last = min(episode.until + LOOK, pace.seconds - WINDOW)
        starts: Floats = np.arange(episode.until, last, STEP)
        windows = ((at, (rows.due >= at) & (rows.due < at + WINDOW)) for at in starts)
        back = (at for at, window in windows if share(rows, index, window) >= RECOVERED_SHARE * usual)
        first = next(back, None)
        found.append(Recovery(episode.fault, worker, None if first is None else float(first) - episode.until))
    return found


def share(rows: Account, index: int, among: Flags) -> float:
    """Share of one worker in the responses that came from workers."""
    answered = among & (rows.worker != NO_WORKER)
    return float((rows.worker[answered] == index).mean()) if answered.any() else 0.0


def verdicts(runs: Sequence[Figures]) -> list[BoundVerdict]:
    """Verdicts on all runs of one proxy, at least one, against every bound."""
    verdict = partial(BoundVerdict, runs[0].peer)
    if faults := [run.fault for run in runs if run.fault]:
        return [verdict("every run is valid", False, faults[0])]
    gets, ok = sum(run.gets for run in runs), sum(run.gets_ok for run in runs)
    twice, wrong = sum(run.twice for run in runs), sum(run.crossed + run.untrue for run in runs)
    longest = max(run.recovery for run in runs)
    ratios = [run.ratio for run in runs if run.ratio is not None and run.is_timed]
    ratio = over_blocks(ratios)
    is_timed = all(run.is_timed for run in runs)
    recovered_in_time = True if longest <= RECOVERY else (False if is_timed else None)
    return [
        verdict(
            f"GET success ≥ {GET_SUCCESS:.2%}",
            ok >= GET_SUCCESS * gets,
            f"{success(ok, gets)}, {gets - ok} of {gets} failed",
        ),
        verdict("no POST executed twice", twice == 0, str(twice)),
        verdict("no response crossed, corrupted or untrue", wrong == 0, str(wrong)),
        verdict(f"longest recovery ≤ {RECOVERY:g} s", recovered_in_time, seconds(longest)),
        verdict(
            f"p99 ≤ {MAX_P99_RATIO:g} × that without faults",
            side_of(ratio, MAX_P99_RATIO),
            bracketed(ratio),
        ),
    ]


def success(ok: int, total: int) -> str:
    """Success in per cent, rounded down so that a miss does not look like a pass."""
    return f"{100_000 * ok // total / 1000 if total else 0.0:.3f} %"


def seconds(value: float | None) -> str:
    return "never" if value is None or value == float("inf") else f"{value:.2f} s"


NOTHING = "–"


def table_of(proxies: Sequence[Sequence[Figures]]) -> Table:
    table = with_columns(Table(), "in the storm", proxies)
    for name, cells in rows_of(proxies):
        table.add_row(name, *cells, end_section=name == CELLS[-1][0])
    return table


def with_columns(table: Table, first: str, proxies: Sequence[Sequence[Figures]]) -> Table:
    table.add_column(first, no_wrap=True)
    for runs in proxies:
        table.add_column(runs[0].peer.partition(" ")[0], justify="right")
    return table


def rows_of(proxies: Sequence[Sequence[Figures]]) -> list[tuple[str, list[str]]]:
    """Row names and a cell for each proxy."""
    good = [[run for run in runs if not run.fault] for runs in proxies]
    rows = [(name, [cell(runs) if runs else "INVALID" for runs in good]) for name, cell in CELLS]
    for method in ("GET", "POST"):
        kinds = dict.fromkeys(kind for runs in good for run in runs for kind in run.failures[method])
        for kind in kinds:
            totals = [sum(run.failures[method].get(kind, 0) for run in runs) for runs in good]
            rows.append((f"{method}: {kind}", list(map(count, totals))))
    return rows


def count(number: int) -> str:
    return str(number) if number else NOTHING


def ratio_words(rounds: Sequence[tuple[float, float]]) -> str:
    """Text such as `23.3 ms = 1.04 × [1.01–1.07] 22.4 ms`, from the p99 without and with faults of each round."""
    known = [both for both in rounds if min(both) > 0]
    if not known:
        return NOTHING
    quiet, storm = (geometric_mean(column) * 1e3 for column in zip(*known, strict=True))
    return f"{storm:.1f} ms = {bracketed(over_blocks([b / a for a, b in known]))} {quiet:.1f} ms"


def medians(rounds: Sequence[tuple[float, float]]) -> str:
    """Text such as `98% / 100%`."""
    return " / ".join(f"{median(column):.0%}" for column in zip(*rounds, strict=True))


CELLS: tuple[tuple[str, Callable[[Sequence[Figures]], str]], ...] = (
    ("GET success", lambda runs: success(sum(r.gets_ok for r in runs), sum(r.gets for r in runs))),
    ("POST success", lambda runs: success(sum(r.posts_ok for r in runs), sum(r.posts for r in runs))),
    ("POSTs executed twice", lambda runs: count(sum(r.twice for r in runs))),
    ("responses crossed or corrupted", lambda runs: count(sum(r.crossed for r in runs))),
    ("POSTs answered but not executed", lambda runs: count(sum(r.untrue for r in runs))),
    ("POSTs failed but executed", lambda runs: count(sum(r.in_doubt for r in runs))),
    ("longest recovery", lambda runs: seconds(max(r.recovery for r in runs))),
    ("p99", lambda runs: ratio_words([(r.quiet_p99, r.storm_p99) for r in runs])),
    ("p99 without exclusions", lambda runs: ratio_words([r.whole_p99 for r in runs])),
    ("undisturbed before / in the storm", lambda runs: medians([r.undisturbed for r in runs])),
    ("lag of the generator", lambda runs: f"{max(r.lag for r in runs) * 1e3:.2f} ms"),
    ("utilisation of cores: proxy / rest", lambda runs: medians([r.busy for r in runs])),
)


def faults_table_of(proxies: Sequence[Sequence[Figures]]) -> Table:
    title = "GETs failed / POSTs failed / p99 after the first second / longest recovery"
    table = with_columns(Table(title=title, title_justify="left"), "fault", proxies)
    for number, fault in enumerate(FAULTS):
        table.add_row(fault, *(fault_cell([run for run in runs if run.faults], number) for runs in proxies))
    return table


def fault_cell(runs: Sequence[Figures], number: int) -> str:
    if not runs:
        return "INVALID"
    found = [run.faults[number] for run in runs]
    gets, posts = sum(one.gets_failed for one in found), sum(one.posts_failed for one in found)
    back = [one.recovery for one in found]
    longest = None if None in back else max(one for one in back if one is not None)
    p99 = max(one.p99 for one in found)
    return f"{gets} / {posts} / {p99 * 1e3:.0f} ms / {seconds(longest)}"
