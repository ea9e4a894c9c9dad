"""Scenarios of equal entries: one entry under several names, so that every ranking is false.

Only entries, baseline, blocks, thresholds and length of a run differ from the original scenario.
"""

from __future__ import annotations

from experiments.scenario.scenario import Scenario

LABELS = ("a", "b", "c", "d", "e", "f", "g", "h")
CONTROL = "a again"


def null_campaign(scenario: Scenario, blocks: int, rivals: int, has_control: bool = True) -> Scenario:
    """Scenario with baseline `a`, its A/A control `a again` if wanted, and `rivals` copies of the first entry."""
    first = scenario.entries[0].model_copy(update={"repeat_of": None, "thresholds": ()})
    entries = [first.model_copy(update={"label": label}) for label in LABELS[: rivals + 1]]
    if has_control:
        entries.append(first.model_copy(update={"label": CONTROL, "repeat_of": LABELS[0]}))
    changes = {"entries": tuple(entries), "baseline": LABELS[0], "blocks": blocks, "thresholds": ()}
    return scenario.model_copy(update=changes)


def lasting(scenario: Scenario, requests: int) -> Scenario:
    """The scenario with about `requests` requests per run; open-loop bursts and events scale with the duration."""
    load = scenario.load
    if load.mode == "closed":
        return scenario.model_copy(update={"load": load.model_copy(update={"requests": requests})})
    part = requests / load.planned
    events = tuple(event.compressed(part) for event in scenario.events)
    return scenario.model_copy(update={"load": load.shortened(load.duration * part), "events": events})
