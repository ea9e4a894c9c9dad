"""Thinning of figures with a dot per request: of very many requests only some are drawn.

Requests are left out evenly over the run, and the caption states it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace

import numpy as np

from experiments.report.palette import Competitor
from experiments.stats.samples import Flags, Run, Samples

MOST_DOTS = 10_000
"""Maximum number of drawn successes per panel, and of drawn failures."""


def thinned(field: Sequence[Competitor]) -> list[Competitor]:
    """First run of each entry, thinned. Failures are thinned separately, so that a rare failure stays visible."""
    return [replace(one, runs=(thinned_run(one.runs[0]),)) for one in field]


def thinned_run(run: Run) -> Run:
    """Run with at most `MOST_DOTS` successes and failures."""
    samples = run.samples
    if step_of(samples) == 1:
        return run
    chosen = np.sort(np.concatenate([every_so_many(samples.ok), every_so_many(~samples.ok)]))
    return Run(
        run.facts, Samples(**{each.name: getattr(samples, each.name)[chosen] for each in fields(Samples)})
    )


def every_so_many(mine: Flags) -> np.ndarray:
    """Indices of the requests that are kept."""
    places = np.flatnonzero(mine)
    return places[:: max(1, -(-len(places) // MOST_DOTS))]


def step_of(samples: Samples) -> int:
    """Thinning step: every how many successes one is drawn, or failures where those are more."""
    successes = int(np.count_nonzero(samples.ok))
    return max(1, -(-max(successes, len(samples) - successes) // MOST_DOTS))


def thinning(field: Sequence[Competitor]) -> str:
    """Caption sentence about the thinning; empty if there is none."""
    step = max((step_of(one.runs[0].samples) for one in field if one.runs), default=1)
    return "" if step == 1 else f" There are many: of the largest panel every {step}th request is drawn."
