"""Figures with a dot for each request: of very many only some are drawn, the rest would lie under them.

Rule of this file: what is left out is left out evenly over the run, and said.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace

import numpy as np

from experiments.load.samples import Flags, Run, Samples
from experiments.report.palette import Competitor

MOST_DOTS = 30_000
"""Successes of one panel, and failures."""


def thinned(field: Sequence[Competitor]) -> list[Competitor]:
    """The first run of each, without what is too much. A rare failure stays: it is thinned among failures."""
    return [replace(one, runs=(thinned_run(one.runs[0]),)) for one in field]


def thinned_run(run: Run) -> Run:
    """The same run where there is not too much."""
    samples = run.samples
    if step_of(samples) == 1:
        return run
    chosen = np.sort(np.concatenate([every_so_many(samples.ok), every_so_many(~samples.ok)]))
    return Run(
        run.facts, Samples(**{each.name: getattr(samples, each.name)[chosen] for each in fields(Samples)})
    )


def every_so_many(mine: Flags) -> np.ndarray:
    """The places of those that stay."""
    places = np.flatnonzero(mine)
    return places[:: max(1, -(-len(places) // MOST_DOTS))]


def step_of(samples: Samples) -> int:
    """One in so many is drawn: of successes, or of failures where those are more."""
    successes = int(np.count_nonzero(samples.ok))
    return max(1, -(-max(successes, len(samples) - successes) // MOST_DOTS))


def thinning(field: Sequence[Competitor]) -> str:
    """What is left out, for the caption."""
    step = max((step_of(one.runs[0].samples) for one in field if one.runs), default=1)
    return "" if step == 1 else f" There are many: of the largest panel every {step}th request is drawn."
