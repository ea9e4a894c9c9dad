"""A scenario at another offered rate, and the total capacity of its workers.

Rates are per second of the scenario, open loop. Scenarios with ramps or bursts are refused: a changing rate is not a
load that a system sustains or not.
"""

from __future__ import annotations

import math

from experiments.errors import BadInputError
from experiments.scenario.scenario import Scenario
from experiments.scenario.table import MOST_REQUESTS
from workers.service import parse_profile

STEADY = ("poisson", "constant")


def at_rate(scenario: Scenario, rate: float, duration: float | None = None) -> Scenario:
    """The same system and entries at `rate` requests per second, open loop. Raises `BadInputError`."""
    load = scenario.load
    if load.mode == "open" and load.arrivals not in STEADY:
        raise BadInputError(
            f"{scenario.name}: arrivals = {load.arrivals!r}; a rate needs {' or '.join(STEADY)}"
        )
    if scenario.events:
        raise BadInputError(f"{scenario.name}: events change its capacity within a run; take one without")
    given = {"mode": "open", "rate": rate, "duration": duration or load.duration}
    steady = load.model_copy(update=given)
    if steady.planned > MOST_REQUESTS:
        raise BadInputError(f"{rate:g}/s: {steady.planned:,} requests; a run has at most {MOST_REQUESTS:,}")
    entries = tuple(entry.model_copy(update={"batch": None}) for entry in scenario.entries)
    return scenario.model_copy(update={"load": steady, "entries": entries, "thresholds": ()})


def pooled(scenario: Scenario) -> float:
    """Total service rate of all workers in requests per second, without queueing: 100 % of the load axis."""
    return sum(
        region.slots * region.speed_of(number) / parse_profile(region.service).mean
        for region in scenario.regions
        for number in range(region.workers)
    )


def rates_in(text: str, whole: float) -> list[float]:
    """Ascending rates per second; `70%` is of `whole`. Raises `BadInputError`."""
    try:
        parts = [part.strip() for part in text.split(",")]
        found = [float(one[:-1]) / 100 * whole if one.endswith("%") else float(one) for one in parts]
    except ValueError:
        found = []
    if not found or not all(0 < rate < math.inf for rate in found) or len(set(found)) < len(found):
        raise BadInputError(f"--rates: {text!r}: positive rates like 60,120 or 50%,90%, each once")
    return sorted(found)
