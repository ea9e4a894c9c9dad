"""Scenarios of equals: one entry under several names, so that whoever ranks them is wrong.

Rule of this file: nothing but the entries, the blocks and the length of a run is changed in the scenario.
"""

from __future__ import annotations

from experiments.campaign.scenario import Scenario

LABELS = ("a", "b", "c", "d", "e", "f", "g", "h")
TWIN = "a again"


def equals(scenario: Scenario, blocks: int, rivals: int, has_twin: bool = True) -> Scenario:
    """`a` is the baseline, `a again` its twin if it has one, and so many rivals: all the scenario's first entry."""
    first = scenario.entries[0].model_copy(update={"twin_of": None, "thresholds": ()})
    entries = [first.model_copy(update={"label": label}) for label in LABELS[: rivals + 1]]
    if has_twin:
        entries.append(first.model_copy(update={"label": TWIN, "twin_of": LABELS[0]}))
    changes = {"entries": tuple(entries), "baseline": LABELS[0], "blocks": blocks, "thresholds": ()}
    return scenario.model_copy(update=changes)


def lasting(scenario: Scenario, requests: int) -> Scenario:
    """The same with about so many requests in a run; bursts and events move along in an open loop."""
    load = scenario.load
    if load.mode == "closed":
        return scenario.model_copy(update={"load": load.model_copy(update={"requests": requests})})
    part = requests / load.planned
    events = tuple(event.compressed(part) for event in scenario.events)
    return scenario.model_copy(update={"load": load.shortened(load.duration * part), "events": events})
