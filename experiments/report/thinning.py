"""Thinning of figures with a dot per request: of very many requests only some are drawn.

Requests are left out evenly over the run, and the caption states it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from experiments.report.palette import Competitor
from experiments.run_data import Flags, Run, Samples

MOST_DOTS = 10_000
"""Maximum number of drawn successes per panel, and of drawn failures."""

MAX_FIGURE_DOTS = 50_000
"""The same for all panels of a figure together."""


def thinned(field: Sequence[Competitor]) -> list[Competitor]:
    """First run of each entry, thinned. Failures are thinned separately, so that a rare failure stays visible."""
    most = most_dots(field)
    return [replace(one, runs=(thinned_run(one.runs[0], most),)) for one in field]


def most_dots(field: Sequence[Competitor]) -> int:
    """Maximum number of drawn successes in each panel of these entries."""
    return min(MOST_DOTS, MAX_FIGURE_DOTS // max(1, len(field)))


def thinned_run(run: Run, most: int) -> Run:
    """Run with at most `most` successes and failures."""
    samples = run.samples
    if step_of(samples, most) == 1:
        return run
    chosen = np.sort(np.concatenate([every_so_many(samples.ok, most), every_so_many(~samples.ok, most)]))
    return Run(run.facts, samples.rows(chosen))


def every_so_many(mine: Flags, most: int) -> np.ndarray:
    """Indices of the requests that are kept."""
    places = np.flatnonzero(mine)
    return places[:: max(1, -(-len(places) // most))]


def step_of(samples: Samples, most: int) -> int:
    """Thinning step: every how many successes one is drawn, or failures where those are more."""
    successes = int(np.count_nonzero(samples.ok))
    return max(1, -(-max(successes, len(samples) - successes) // most))


def thinning(field: Sequence[Competitor]) -> str:
    """Caption sentence about the thinning; empty if there is none."""
    most = most_dots(field)
    step = max((step_of(one.runs[0].samples, most) for one in field if one.runs), default=1)
    return "" if step == 1 else f" There are many: of the largest panel one request in {step} is drawn."
