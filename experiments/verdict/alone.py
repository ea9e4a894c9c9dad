"""Result of an entry or a URL that has nothing to be compared with: rate, failures and latency, with intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence

from experiments.platform.terminal import in_ms
from experiments.stats.comparison import ENOUGH_BLOCKS, typical
from experiments.stats.measures import LEAST_BEYOND
from experiments.stats.run_summary import RunSummary, counted
from experiments.verdict.advice import NOTHING_ANSWERED
from experiments.verdict.evidence import Evidence
from experiments.verdict.phrases import failed_text, grouped_digits

WORDS = {"p50": "half took at most", "p99": "99 % at most", "mean": "on average"}
"""Beginning of a clause about a measure."""


def is_alone(found: Evidence) -> bool:
    """Whether the contest has one entry, perhaps beside its own repetition."""
    return not found.comparisons and len(found.contest.able) <= 1 and bool(found.order)


def alone_lines(found: Evidence) -> tuple[str, str]:
    """Headline and advice for the only entry."""
    label, contest = found.contest.baseline, found.contest
    runs = [run for run in counted(found.runs) if run.label == label]
    failed, total = sum(run.ko for run in runs), sum(run.requests for run in runs)
    if failed == total:
        return f"{label}: all {grouped_digits(total)} requests failed", NOTHING_ANSWERED
    rate = (total - failed) / sum(run.span for run in runs)
    shown = f"{rate:.1f}" if rate < 100 else grouped_digits(round(rate))
    share = (
        f"{failed_text(failed, total)} requests failed"
        if failed
        else f"none of {grouped_digits(total)} failed"
    )
    measures = ("p50", "p99" if contest.has_tail else "mean")
    clauses = [text for measure in measures if (text := clause(measure, runs, contest.deadline))]
    headline = f"{label}: {shown} answers per second, {share}"
    return "; ".join([headline, *([", ".join(clauses)] if clauses else [])]), alone_advice(found, len(runs))


def clause(measure: str, runs: Sequence[RunSummary], deadline: float | None) -> str:
    """Text such as `99 % at most 34 ms (30 ms to 38 ms)`, with an interval over several runs; empty at the deadline."""
    interval = typical([float(getattr(run, measure)) for run in runs])
    if deadline is not None and interval.ratio >= 0.99 * deadline:
        return ""
    span = "" if math.isnan(interval.low) else f" ({in_ms(interval.low)} to {in_ms(interval.high)})"
    return f"{WORDS[measure]} {in_ms(interval.ratio)}{span}"


def alone_advice(found: Evidence, runs: int) -> str:
    """What gives an interval, a p99, and a comparison."""
    is_service = found.contest.kind == "service"
    wanted = []
    if runs < 2:
        wanted.append(f"--blocks {ENOUGH_BLOCKS} gives intervals")
    if not found.contest.has_tail:
        wanted.append(f"longer runs give a p99, which takes {grouped_digits(100 * LEAST_BEYOND)} requests")
    other = "a second URL" if is_service else "a second policy (--policies A,B)"
    wanted.append(f"{other} gives a comparison")
    text = "; ".join(wanted)
    return f"{text[0].upper()}{text[1:]}."
