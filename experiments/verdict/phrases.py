"""Ratios and differences in words, for verdicts."""

from __future__ import annotations

import math
from collections.abc import Callable

from balancer.syntax.printable import with_digits
from experiments.platform.terminal import in_ms
from experiments.stats.ceiling import GOODPUT
from experiments.stats.comparison import Comparison, Interval
from experiments.stats.measures import supported_tail

UNITS = {
    "throughput": "successes per second",
    "p50": "p50 latency",
    "p99": "p99 latency",
    "mean": "mean latency",
    GOODPUT: "the odds of a late or failed answer",
}
SUBJECTS = {
    "throughput": "it completes",
    "p50": "the median request is",
    "p99": "the slowest 1 % of requests are",
    "mean": "the average request is",
    GOODPUT: "the odds of a late or failed answer are",
}
"""Beginning of a sentence about a measure that `difference` continues."""

TOKEN_UNITS = {"p99": "p99 time to first token", "mean": "mean time to first token"}
TOKEN_SUBJECTS = {
    "p99": "the slowest 1 % of first tokens are",
    "mean": "the average first token is",
}
"""The same of inference, where latency ends with the first token."""

POSITIVE = {"slower": "slow", "faster": "fast", "higher": "high", "lower": "low"}
"""Positive forms of comparatives."""

TWICE = math.log(2)
"""Absolute logarithm of a ratio from which on it is given as "n times" instead of a percentage."""


def units_of(is_inference: bool) -> dict[str, str]:
    """Names of the measures in a sentence."""
    return UNITS | TOKEN_UNITS if is_inference else UNITS


def show(interval: Interval) -> str:
    """Format as `1.52 [1.48–1.57]`, or the ratio alone for one block; a small ratio with two digits that count."""
    least = interval.ratio if math.isnan(interval.low) else interval.low
    digits = 2 if not 0 < least < 0.095 else min(6, 1 - math.floor(math.log10(least)))
    if math.isnan(interval.low):
        return f"{interval.ratio:.{digits}f}"
    return f"{interval.ratio:.{digits}f} [{interval.low:.{digits}f}–{interval.high:.{digits}f}]"


def measure_in_words(measure: str, value: float) -> str:
    """Format a measure with its unit."""
    return f"{with_digits(value, 4)}/s" if measure == "throughput" else in_ms(value)


def tail_text(count: int, quantile: Callable[[float], float]) -> str:
    """Text such as `, p99 826 ms`: the highest percentile that `count` requests support; empty if there is none."""
    percent = supported_tail(count)
    return "" if percent is None else f", p{percent:g} {in_ms(quantile(percent / 100))}"


def failed_text(failed: int, total: int) -> str:
    """Text such as `6 of 22 000 (0.03 %)`."""
    part = 100 * failed / max(1, total)
    shown = f"{with_digits(part, 2)}" if part < 10 else f"{part:.0f}"
    return f"{grouped_digits(failed)} of {grouped_digits(total)} ({shown}\u00a0%)"


def grouped_digits(count: int) -> str:
    """Whole number with thin spaces between thousands."""
    return f"{count:,}".replace(",", "\u202f")


def difference(comparison: Comparison, other: str | None = None) -> str:
    """Text such as `25 % faster than under random (22–28 %)`; `other` replaces the name of the baseline."""
    interval, name = comparison.interval, other or comparison.baseline
    is_rate = comparison.measure == "throughput"
    words = ("more requests per second", "fewer requests per second") if is_rate else ("slower", "faster")
    if comparison.judged_by == GOODPUT:
        words = ("higher", "lower")
    preposition = "" if is_rate else "under "
    word = words[interval.ratio < 1]
    if abs(math.log(interval.ratio)) >= TWICE:
        much = "many" if is_rate and interval.ratio > 1 else POSITIVE.get(word, "few")
        shown, span = f"{times(interval.ratio)} times as {much} as", times_span(interval)
    else:
        shown, span = f"{percent(interval.ratio)} {word} than", percent_span(interval, words)
    if comparison.at_deadline:
        why = f"as failures make it the deadline under {comparison.at_deadline}"  # the ratio depends on that
        return f"at least {shown} {preposition}{name}, {why}"
    return f"{shown} {preposition}{name}{span}"


def times(ratio: float) -> str:
    """Factor without a sign, such as `3.2` or `12`, for a ratio or its reciprocal."""
    factor = max(ratio, 1 / ratio)
    return f"{factor:.1f}" if factor < 9.95 else f"{factor:.0f}"


def times_span(interval: Interval) -> str:
    """Interval of a factor such as ` (2.9–3.5)`, empty without one."""
    if math.isnan(interval.low):
        return ""
    ends = sorted(max(end, 1 / end) for end in (interval.low, interval.high))
    if interval.low < 1 < interval.high:
        return f" ({interval.low:.2f}–{interval.high:.2f} times)"
    near, far = map(times, ends)
    return "" if near == far else f" ({near}–{far} times)"


def percent(ratio: float) -> str:
    """Distance of a ratio from 1, such as `25 %` or `2.4 %`."""
    return f"{number(ratio)}\u00a0%"


def number(ratio: float) -> str:
    """Distance of a ratio from 1 in percent, without the sign of percent."""
    distance = abs(ratio - 1) * 100
    return f"{distance:.1f}" if distance < 9.95 else f"{distance:.0f}"


def percent_span(interval: Interval, words: tuple[str, str]) -> str:
    """Interval of a difference such as ` (22–28 %)`, with words where its ends differ in sign; empty without one."""
    if math.isnan(interval.low):
        return ""
    if interval.low < 1 < interval.high:
        short = [word.split()[0] for word in words]
        return f" (between {percent(interval.low)} {short[1]} and {percent(interval.high)} {short[0]})"
    near, far = (number(end) for end in sorted((interval.low, interval.high), key=lambda end: abs(end - 1)))
    return "" if near == far else f" ({near}–{far}\u00a0%)"
