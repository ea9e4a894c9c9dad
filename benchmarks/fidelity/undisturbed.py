"""Remove the seconds of a measured run in which the machine was busy with other work.

A shared machine loses its processors for tens of milliseconds in some seconds of every minute. One such second makes a
run of thirty invalid, and says nothing about the others. A second is disturbed if more than `LATE` of its requests were
sent later than a valid run allows; the second after it is left out too, because delayed requests queue. A run that
keeps less than `LEAST` of its requests is unchanged and is not judged.

Only the generator's lag decides, never a latency, and the same seconds are removed from the simulated runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace

import numpy as np

from experiments.results.directory import Results
from experiments.stats.measures import LAG, LAG_LIMIT, lag_percentiles
from experiments.stats.samples import Flags, Ints, Run, Samples

LATE = 0.01
"""Share of late requests above which a second is disturbed; the same as for whole runs."""

LEAST = 0.5
"""Least share of a run's requests that must remain."""


def quiet_seconds(samples: Samples) -> Flags:
    """Which seconds of the run are undisturbed, shape (seconds,), counted from its start."""
    second = seconds_of(samples)
    count = int(second.max()) + 1 if len(second) else 0
    sent = np.bincount(second, minlength=count)
    late = np.bincount(second, weights=samples.lag > LAG_LIMIT, minlength=count)
    disturbed = late > LATE * sent
    left_out = disturbed.copy()
    left_out[1:] |= disturbed[:-1]
    return ~left_out


def seconds_of(samples: Samples) -> Ints:
    """Second of the run in which each request was due, shape (n,)."""
    return np.floor(samples.scheduled_at).astype(np.int64)


def kept_of(samples: Samples, quiet: Flags) -> Flags:
    """Which requests were due in an undisturbed second or after the last one, shape (n,)."""
    second = seconds_of(samples)
    return np.append(quiet, True)[np.minimum(second, len(quiet))]


def only(run: Run, quiet: Flags) -> Run:
    """The run without disturbed seconds; valid if lag was its only fault and enough requests remain."""
    kept = kept_of(run.samples, quiet)
    if np.mean(kept) < LEAST:
        return run
    columns = {field.name: getattr(run.samples, field.name)[kept] for field in fields(Samples)}
    samples = Samples(**columns)
    p50, p99 = lag_percentiles(samples)
    reasons = tuple(reason for reason in run.facts.invalid_reasons if not reason.startswith(LAG))
    facts = run.facts.model_copy(update={"lag_p50": p50, "lag_p99": p99, "invalid_reasons": reasons})
    return Run(facts, samples)


def without_disturbed(run: Run) -> Run:
    """A measured run without its disturbed seconds."""
    return only(run, quiet_seconds(run.samples))


def quiet_only(
    measured: Results, simulated: Results, again: Results | None = None
) -> tuple[Results, Results, Results | None]:
    """All results without the seconds that were disturbed in the measured run of the same entry and block."""
    quiet = {key_of(run): quiet_seconds(run.samples) for run in measured.runs}
    left = None if again is None else with_only(again, quiet)
    return with_only(measured, quiet), with_only(simulated, quiet), left


def with_only(results: Results, quiet: Mapping[tuple[str, int], Flags]) -> Results:
    """Results restricted to undisturbed seconds; runs without a measured counterpart are unchanged."""
    runs = tuple(only(run, quiet[key]) if (key := key_of(run)) in quiet else run for run in results.runs)
    return replace(results, runs=runs)


def key_of(run: Run) -> tuple[str, int]:
    """Key that a measured run shares with its simulations: label and block."""
    return run.facts.label, run.facts.block


def left_out(before: Sequence[Run], after: Sequence[Run]) -> float:
    """Share of the requests of valid runs that were left out."""
    pairs = [
        (len(one.samples), len(other.samples))
        for one, other in zip(before, after, strict=True)
        if other.facts.is_valid
    ]
    planned = sum(count for count, _ in pairs)
    return 1 - sum(left for _, left in pairs) / planned if planned else 0.0
