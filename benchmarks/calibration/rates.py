"""Rates of false and correct verdicts with confidence intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist, stdev

from benchmarks.calibration.campaigns import STRETCHED, CampaignSummaries, Finding, found
from benchmarks.calibration.methods import METHODS
from experiments.stats.estimates import CONFIDENCE

MOST_FALSE = 0.05
LEAST_FOUND = 0.80


@dataclass(frozen=True, slots=True)
class Rate:
    """`hits` of `total`, with Wilson's score interval (1927), which also holds near 0 and 1."""

    hits: int
    total: int

    @property
    def value(self) -> float:
        return self.hits / self.total

    @property
    def interval(self) -> tuple[float, float]:
        z = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
        square, share = z * z / self.total, self.value
        middle = (share + square / 2) / (1 + square)
        reach = z / (1 + square) * math.sqrt((share * (1 - share) + square / 4) / self.total)
        return max(0.0, middle - reach), min(1.0, middle + reach)

    def __str__(self) -> str:
        """Text such as `2.5 % [1.1–5.7]`."""
        low, high = self.interval
        return f"{100 * self.value:.1f} % [{100 * low:.1f}–{100 * high:.1f}]"


@dataclass(frozen=True, slots=True)
class MethodRates:
    """Rates of one method at one size.

    `false` counts campaigns of equals with any claim in the scenario's own measure, `elsewhere` those with a claim in
    another measure only. `right` counts planted campaigns in which the stretched entry was ranked on its side, `wrong`
    those with any other false claim; both None without a planted difference. `spread` is the standard deviation over
    blocks and campaigns of log(p99 / p99), the noise of a pair.
    """

    method: str
    requests: int
    blocks: int
    spread: float
    false: Rate
    elsewhere: Rate
    right: Rate | None
    wrong: Rate | None

    @property
    def holds_level(self) -> bool:
        return self.false.value <= MOST_FALSE

    @property
    def has_power(self) -> bool | None:
        return None if self.right is None else self.right.value >= LEAST_FOUND


def outcome(
    campaigns: Sequence[CampaignSummaries], blocks: int, method: str, planted: float | None
) -> MethodRates:
    """Judge every campaign on its first `blocks` blocks."""
    chosen, total = METHODS[method], len(campaigns)
    plain = [found(c.scenario, c.plain, blocks, chosen) for c in campaigns]
    right = wrong = None
    if planted is not None:
        changed = [found(c.scenario, c.planted, blocks, chosen) for c in campaigns]
        right = Rate(sum(is_right(one, planted) for one in changed), total)
        wrong = Rate(sum(is_wrong(one, planted) for one in changed), total)
    return MethodRates(
        method=method,
        requests=campaigns[0].scenario.load.planned,
        blocks=blocks,
        spread=spread(campaigns),
        false=Rate(sum(bool(one.claims) for one in plain), total),
        elsewhere=Rate(sum(bool(one.others) for one in plain), total),
        right=right,
        wrong=wrong,
    )


def is_right(finding: Finding, planted: float) -> bool:
    """Whether the stretched entry was ranked on its side."""
    return finding.standing == ("behind" if planted > 1 else "ahead")


def is_wrong(finding: Finding, planted: float) -> bool:
    """Whether another entry was ranked, or the stretched one on the other side or called equal to the baseline."""
    other_side = "ahead" if planted > 1 else "behind"
    return finding.standing in (other_side, "practically equal") or any(
        label != STRETCHED for label in finding.claims
    )


def spread(campaigns: Sequence[CampaignSummaries]) -> float:
    """Standard deviation of log(p99 of `STRETCHED`, unstretched / p99 of the baseline) over pairs."""
    logs = []
    for campaign in campaigns:
        p99 = {(run.label, run.block): run.p99 for run in campaign.plain}
        logs += [
            math.log(value / p99[campaign.scenario.baseline, block])
            for (label, block), value in p99.items()
            if label == STRETCHED
        ]
    return stdev(logs)
