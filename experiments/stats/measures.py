"""Statistics of one run or of several pooled runs, from raw samples only.

Percentiles are taken from raw samples, never from other percentiles, and each is an observed value (the inverted
empirical distribution). A failure is never dropped: success-only figures stand beside deadline-mapped ones, in which a
failed request counts as slow as the deadline, so that failing fast cannot look like answering fast.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from experiments.run_data import Flags, Floats, Kind, Place, Run, RunFacts, Samples

PERCENTS = (50.0, 75.0, 90.0, 95.0, 99.0, 99.9)
ENOUGH_BEYOND = 100
"""Minimum number of samples beyond a quantile; with fewer, it is shown greyed as unreliable."""

LEAST_BEYOND = 10
"""Minimum number of samples beyond a quantile for which it is shown at all: a p99 takes 1000 requests."""

TAILS = (99.0, 95.0, 90.0, 75.0)
"""Percentiles of which a line of text or a figure over time shows the highest that enough requests support."""

LAG_COUNTED = 2.0
"""Factor by which the lag of sending is counted: the generator reads answers as late, which it cannot record."""

MOST_LAG = 0.5
"""Maximum share (0..1) of a latency of a valid run that the generator's lag may be; more measures the generator."""

LAG = "generator lag"
ACHIEVED = "achieved"
POLICY_FAILED = "the policy failed"
INTERRUPTED = "interrupted"
"""Prefixes of the reasons of runs that are invalid because of lag, of too few requests sent in time, of faults of the
policy, or of a stop."""

ACHIEVED_LIMIT = 0.99
"""Minimum fraction of the offered rate that a valid open loop achieves."""


@dataclass(frozen=True, slots=True)
class Quantile:
    """A percentile: `percent` % of the samples lie at or below `seconds`; `few` when too few lie beyond it.

    `hidden` when so few lie beyond it that reports do not show it.
    """

    percent: float
    seconds: float
    few: bool
    hidden: bool


@dataclass(frozen=True, slots=True)
class StatisticsRow:
    """Numbers of the requests of some runs: Gatling's statistics, and whatever else needs nothing but the samples.

    Times in seconds, of successes; `rate` in successes per second.
    """

    total: int
    ok: int
    ko: int
    ko_percent: float
    rate: float
    minimum: float
    p50: float
    p75: float
    p95: float
    p99: float
    maximum: float
    mean: float
    std_dev: float


def percentile(values: Floats, percent: float) -> float:
    """Smallest observed value with `percent` % of the values at or below it; nan without values."""
    return float(np.percentile(values, percent, method="inverted_cdf")) if len(values) else float("nan")


def quantiles(values: Floats) -> tuple[Quantile, ...]:
    """Quantiles at `PERCENTS` and, as percent 100, the maximum. `values` of shape (n,) in seconds."""
    none = len(values) == 0
    return (
        *(quantile(values, percent) for percent in PERCENTS),
        Quantile(100.0, percentile(values, 100.0), none, none),
    )


def quantile(values: Floats, percent: float) -> Quantile:
    """One percentile below 100 and how well it is supported."""
    few = has_few_beyond(len(values), percent)
    hidden = has_few_beyond(len(values), percent, LEAST_BEYOND)
    return Quantile(percent, percentile(values, percent), few, hidden)


def has_few_beyond(count: int, percent: float, enough: int = ENOUGH_BEYOND) -> bool:
    """Whether fewer than `enough` of `count` samples lie beyond the quantile."""
    return round(count * (100.0 - percent) / 100.0, 6) < enough


def supported_tail(count: int) -> float | None:
    """Highest of `TAILS` with at least `LEAST_BEYOND` of `count` samples beyond it; None if there is none."""
    return next((percent for percent in TAILS if not has_few_beyond(count, percent, LEAST_BEYOND)), None)


def statistics_row(runs: Sequence[Run]) -> StatisticsRow:
    """Pool the raw samples of `runs` (at least one) into one row."""
    latency = success_latency(runs)
    total, ok = counts(runs)
    p50, p75, p95, p99 = (percentile(latency, percent) for percent in (50, 75, 95, 99))
    return StatisticsRow(
        total=total,
        ok=ok,
        ko=total - ok,
        ko_percent=100.0 * (total - ok) / total if total else 0.0,
        rate=throughput(runs),
        minimum=percentile(latency, 0),
        p50=p50,
        p75=p75,
        p95=p95,
        p99=p99,
        maximum=percentile(latency, 100),
        mean=mean(latency),
        std_dev=float(np.std(latency)) if len(latency) else float("nan"),
    )


def mean(values: Floats) -> float:
    """Mean of the values; nan without values."""
    return float(values.mean()) if len(values) else float("nan")


def throughput(runs: Sequence[Run]) -> float:
    """Successes per second over the total span of the runs."""
    span = sum(run.span for run in runs)
    return sum(run.samples.successes for run in runs) / span if span else 0.0


def success_latency(runs: Sequence[Run]) -> Floats:
    """Latency of every success in seconds, concatenated over the runs."""
    return np.concatenate([run.samples.per_request(run.samples.latency, run.samples.ok) for run in runs])


def counts(runs: Sequence[Run]) -> tuple[int, int]:
    """Number of requests and of successes."""
    return sum(run.samples.requests for run in runs), sum(run.samples.successes for run in runs)


def requests_beside(latency: Floats, runs: Sequence[Run]) -> float:
    """Number of requests of which the success latencies are so large a part as successes are of all requests."""
    total, ok = counts(runs)
    return total * len(latency) / ok if ok else total


def success_service_time(runs: Sequence[Run]) -> Floats:
    """Service time of every success in seconds, concatenated over the runs."""
    return np.concatenate([run.samples.per_request(run.samples.service_time, run.samples.ok) for run in runs])


def deadline_mapped(run: Run) -> Floats:
    """Latencies in seconds, one per request, `weight` of a row; a failure has the deadline's, or its own if longer."""
    taken = np.nan_to_num(run.samples.latency, nan=0.0)
    mapped = np.where(run.samples.ok, taken, np.maximum(taken, run.facts.timeout))
    return run.samples.per_request(mapped)


def without_lag(run: Run) -> Floats:
    """The same, less the generator's lag of each request, counted `LAG_COUNTED` times: the least it can have been."""
    lag = run.samples.per_request(np.nan_to_num(run.samples.lag, nan=0.0))
    return np.maximum(deadline_mapped(run) - LAG_COUNTED * lag, 0.0)


def lag_shares(run: Run) -> dict[str, float]:
    """Share (0..1) of mean and p99 that the generator's lag may be; no p99 where there are too few requests for it."""
    whole, least = deadline_mapped(run), without_lag(run)
    pairs = {"mean": (mean(whole), mean(least))}
    if not has_few_beyond(len(whole), 99.0, LEAST_BEYOND):
        pairs["p99"] = percentile(whole, 99), percentile(least, 99)
    return {name: 1.0 - low / high for name, (high, low) in pairs.items() if high > 0}


def goodput(runs: Sequence[Run], slo: float) -> float:
    """Fraction (0..1) of all requests that succeeded within `slo` seconds of their scheduled instant."""
    total = sum(run.samples.requests for run in runs)
    return sum(int(run.samples.weight[within(run, slo)].sum()) for run in runs) / total if total else 0.0


def within(run: Run, slo: float) -> Flags:
    """Mask of the requests that succeeded within `slo` seconds, and within the limit per output token if any."""
    is_in_time = run.samples.ok & (run.samples.latency <= slo)
    limit = run.facts.tpot_slo
    return is_in_time if limit is None else is_in_time & ~(time_per_output_token(run.samples) > limit)


def time_per_output_token(samples: Samples) -> Floats:
    """Seconds per token after the first of each answer (TPOT), shape (n,); nan for answers of one token or none."""
    further = np.where(samples.output_tokens > 1, samples.output_tokens - 1.0, np.nan)
    return np.asarray((samples.ended_at - samples.first_byte_at) / further)


def errors_by_kind(runs: Sequence[Run]) -> dict[str, int]:
    """Failure counts by name of the kind; only kinds that occurred."""
    weights = np.sum([np.bincount(run.samples.kind, run.samples.weight, len(Kind)) for run in runs], axis=0)
    counts = {kind.name.lower(): int(weights[kind]) for kind in Kind if kind is not Kind.OK}
    return {name: count for name, count in counts.items() if count}


def share_per_worker(runs: Sequence[Run]) -> dict[str, float]:
    """Fraction (0..1) of the answered requests that each worker answered."""
    counts = dict.fromkeys((place.worker for run in runs for place in run.facts.places), 0)
    for run in runs:
        known = run.samples.worker >= 0
        workers, weights = run.samples.worker[known], run.samples.weight[known]
        answers = np.bincount(workers, weights, len(run.facts.places))
        for place, count in zip(run.facts.places, answers, strict=True):
            counts[place.worker] += int(count)
    answered = sum(counts.values())
    return {worker: count / answered if answered else 0.0 for worker, count in counts.items()}


def share_per_region(shares: Mapping[str, float], places: Iterable[Place]) -> dict[str, float]:
    """Shares of workers, added up per region in the order of `places`."""
    found: dict[str, float] = {}
    for place in places:
        found[place.region] = found.get(place.region, 0.0) + shares.get(place.worker, 0.0)
    return found


def lag_percentiles(samples: Samples) -> tuple[float, float]:
    """Load generator lag in seconds, p50 and p99, over requests that were sent."""
    lag = samples.lag[np.isfinite(samples.lag)]
    return percentile(lag, 50), percentile(lag, 99)


def achieved_rate(samples: Samples) -> float:
    """Requests sent per second, from the run's start to the last send."""
    sent = samples.sent_at[np.isfinite(samples.sent_at)]
    return len(sent) / float(sent.max()) if len(sent) and sent.max() > 0 else 0.0


def is_late(reasons: Sequence[str]) -> bool:
    """Whether a run is invalid for nothing but the generator's lateness: all of its requests were sent and recorded."""
    return bool(reasons) and all(reason.startswith((LAG, ACHIEVED)) for reason in reasons)


def spoils_block(reasons: Sequence[str]) -> bool:
    """Whether a run makes its block invalid for all entries: lateness and interruption may come from outside, and may
    come from the entry; leaving out its run alone would choose among its runs.
    """
    return any(reason.startswith((LAG, ACHIEVED, INTERRUPTED)) for reason in reasons)


def validity(facts: RunFacts, samples: Samples) -> tuple[str, ...]:
    """Reasons why the run is invalid; empty when it is valid.

    A closed loop has no offered rate, since it sends when the system allows it; only the bound on lag applies to it.
    """
    reasons = []
    if len(samples) < facts.requests:
        reasons.append(f"{INTERRUPTED}: {len(samples)} of {facts.requests} requests were sent")
    reasons += [
        f"{LAG} may be {100 * share:.0f} % of the {name} latency, {100 * MOST_LAG:g} % allowed"
        for name, share in lag_shares(Run(facts, samples)).items()
        if share > MOST_LAG
    ]
    offered = facts.offered_rate if facts.mode == "open" else None
    if offered and facts.achieved_rate < ACHIEVED_LIMIT * offered:
        part = 100 * facts.achieved_rate / offered
        reasons.append(f"{ACHIEVED} {facts.achieved_rate:.1f}/s is {part:.1f} % of {offered:.1f}/s offered")
    return tuple(reasons)


def token_measures(run: Run, slo: float) -> dict[str, float]:
    """Measures of a run by name; empty if it has no inference.

    Times in seconds, of successes: per output token after the first (TPOT), and end to end. Per second of the run:
    requests within both limits, and tokens of answers. The share (0..1) of the prompts' tokens that were cached.
    """
    rows = run.samples.rows(run.samples.ok & (run.samples.output_tokens > 0))
    if not len(rows):
        return {}
    per_token = time_per_output_token(rows)
    per_token = per_token[np.isfinite(per_token)]
    whole = rows.ended_at - rows.scheduled_at
    return {
        "tpot_mean": mean(per_token),
        "tpot_p99": percentile(per_token, 99),
        "end_to_end_mean": mean(whole),
        "end_to_end_p99": percentile(whole, 99),
        "good_rate": goodput([run], slo) * run.samples.requests / run.span if run.span else 0.0,
        "cached_share": float(rows.cached_tokens.sum() / rows.prompt_tokens.sum()),
        "output_rate": float(rows.output_tokens.sum() / run.span) if run.span else 0.0,
    }
