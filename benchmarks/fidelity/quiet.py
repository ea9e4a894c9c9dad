"""What is left of a measured run when the seconds are taken out in which the machine was busy with something else.

Rule of this file: what is left out of a measured run is left out of its simulated twins too, and nothing else is looked
at than the generator's own lag: never a latency. A second is disturbed when more than LATE of its requests were sent
later than a valid run allows, and the second behind it is left out as well, for what has been held up queues. A run of
which too little is left stays as it was, and is not judged.

A shared machine takes its processors away for tens of milliseconds, some seconds of every minute. One such second makes
a run of thirty invalid, and says nothing about the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace

import numpy as np

from experiments.campaign.results import Results
from experiments.campaign.statistics import LAG, LAG_LIMIT, lag_percentiles
from experiments.load.samples import Flags, Ints, Run, Samples

LATE = 0.01
"""Part of a second's requests, as in the rule for whole runs."""

LEAST = 0.5
"""Part of a run's requests that must be left."""


def quiet_seconds(samples: Samples) -> Flags:
    """Which seconds of the run are left, shape (seconds,), counted from its start."""
    second = seconds_of(samples)
    count = int(second.max()) + 1 if len(second) else 0
    sent = np.bincount(second, minlength=count)
    late = np.bincount(second, weights=samples.lag > LAG_LIMIT, minlength=count)
    disturbed = late > LATE * sent
    left_out = disturbed.copy()
    left_out[1:] |= disturbed[:-1]
    return ~left_out


def seconds_of(samples: Samples) -> Ints:
    """In which second of the run each request was due, shape (n,)."""
    return np.floor(samples.scheduled_at).astype(np.int64)


def kept_of(samples: Samples, quiet: Flags) -> Flags:
    """Which requests were due in a second that is left, shape (n,), or behind the last."""
    second = seconds_of(samples)
    return np.append(quiet, True)[np.minimum(second, len(quiet))]


def only(run: Run, quiet: Flags) -> Run:
    """The run without the other seconds, and valid if its lag was all that was wrong and enough is left."""
    kept = kept_of(run.samples, quiet)
    if np.mean(kept) < LEAST:
        return run
    columns = {field.name: getattr(run.samples, field.name)[kept] for field in fields(Samples)}
    samples = Samples(**columns)
    p50, p99 = lag_percentiles(samples)
    reasons = tuple(reason for reason in run.facts.invalid_reasons if not reason.startswith(LAG))
    facts = run.facts.model_copy(update={"lag_p50": p50, "lag_p99": p99, "invalid_reasons": reasons})
    return Run(facts, samples)


def mended(run: Run) -> Run:
    """A measured run without its disturbed seconds."""
    return only(run, quiet_seconds(run.samples))


def quiet_only(
    measured: Results, simulated: Results, again: Results | None = None
) -> tuple[Results, Results, Results | None]:
    """All of them without the seconds that were disturbed in the measured run of the same entry and block."""
    quiet = {key_of(run): quiet_seconds(run.samples) for run in measured.runs}
    left = None if again is None else with_only(again, quiet)
    return with_only(measured, quiet), with_only(simulated, quiet), left


def with_only(results: Results, quiet: Mapping[tuple[str, int], Flags]) -> Results:
    """Runs that were not measured stay as they are."""
    runs = tuple(only(run, quiet[key]) if (key := key_of(run)) in quiet else run for run in results.runs)
    return replace(results, runs=runs)


def key_of(run: Run) -> tuple[str, int]:
    """What a measured run and its simulations have in common."""
    return run.facts.label, run.facts.block


def left_out(before: Sequence[Run], after: Sequence[Run]) -> float:
    """Part of the requests of valid runs that were left out."""
    pairs = [
        (len(one.samples), len(other.samples))
        for one, other in zip(before, after, strict=True)
        if other.facts.is_valid
    ]
    planned = sum(count for count, _ in pairs)
    return 1 - sum(left for _, left in pairs) / planned if planned else 0.0
