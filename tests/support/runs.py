"""Runs made by hand: columns of samples and facts, with what a test does not say as usual."""

from __future__ import annotations

from typing import Any

import numpy as np

from experiments.results.directory import PlannedRun
from experiments.run_data import Floats, Kind, Place, Run, RunFacts, Samples
from experiments.scenario.places import places_of
from experiments.scenario.scenario import Entry, Scenario


def samples_of(due: Floats, latency: Floats, **columns: Any) -> Samples:
    """Requests that are sent when they are due and succeed after `latency` seconds, but for the columns given."""
    ended, zeros = due + latency, np.zeros(len(due), dtype=np.int64)
    usual = {
        "scheduled_at": due,
        "sent_at": due,
        "first_byte_at": ended,
        "ended_at": ended,
        "status": zeros + 200,
        "kind": zeros,
        "worker": zeros,
        "region": zeros,
        "sequence": np.arange(len(due)),
        "attempts": zeros,
    }
    return Samples(**usual | columns)


def run_of(samples: Samples, **facts: object) -> Run:
    """A run of an open loop under the policy "random", but for the facts given."""
    usual: dict[str, object] = {
        "label": "random",
        "policy": {"name": "random"},
        "mode": "open",
        "requests": len(samples),
        "block": 0,
        "order": 0,
        "seed": 1,
        "timeout": 5.0,
        "places": (Place(worker="emea-0", region="emea"),),
    }
    return Run(RunFacts.model_validate(usual | facts), samples)


def facts_of(scenario: Scenario, entry: Entry, block: int, order: int, seed: int) -> dict[str, Any]:
    """What a scenario says of a run; in the order of a simulator's arguments."""
    return {
        "label": entry.label,
        "policy": entry.policy.model_dump(),
        "block": block,
        "order": order,
        "seed": seed,
        "timeout": scenario.timeout,
        "places": places_of(scenario),
    }


def as_planned(run: Run, planned: PlannedRun) -> Run:
    """The run as one of a campaign's plan."""
    return Run(run.facts.model_copy(update=planned.model_dump()), run.samples)


def hand_made(
    latency: list[float], kind: list[Kind] | None = None, sent_late: float = 0.0, **facts: object
) -> Run:
    """Row i is due at i × 10 ms, leaves `sent_late` later, and takes `latency[i]` seconds from being due."""
    due = 0.01 * np.arange(len(latency), dtype=np.float64)
    columns: dict[str, Any] = {"sent_at": due + sent_late}
    if kind is not None:
        columns["kind"] = np.array(kind, dtype=np.int64)
    return run_of(samples_of(due, np.array(latency), **columns), **facts)
