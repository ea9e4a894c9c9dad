"""What a run on real processes cannot do, said before it starts.

Rule of this file: every key of a scenario is obeyed or refused; none is passed over in silence.
"""

from __future__ import annotations

from collections.abc import Iterator

from experiments.campaign.fleet import TLS
from experiments.campaign.scenario import Scenario
from experiments.errors import BadInputError
from experiments.simulator.oracles import is_oracle

ONLY_SIMULATED = "only the simulator can do that: experiments simulate"


def require_playable(scenario: Scenario) -> None:
    """Raise BadInputError with one line for the first thing that only a simulation can show."""
    for complaint in complaints(scenario):
        raise BadInputError(f"{scenario.name}: {complaint}")


def complaints(scenario: Scenario) -> Iterator[str]:
    """Everything in the scenario that real processes cannot do."""
    if scenario.staleness:
        yield f"staleness = {scenario.staleness:g}: {ONLY_SIMULATED}"
    if scenario.balancers > 1:
        yield f"balancers = {scenario.balancers}: {ONLY_SIMULATED}"
    for entry in scenario.entries:
        if is_oracle(entry.policy.name):
            yield f"policy '{entry.policy.name}': {ONLY_SIMULATED}"
    if scenario.events:
        yield f"events: {ONLY_SIMULATED}"
    for number, region in enumerate(scenario.regions):
        if region.discipline != "fifo":
            yield f"regions.{number}.discipline = {region.discipline!r}: {ONLY_SIMULATED}"
        if region.setup_rtts not in (1, *TLS):
            yield f"regions.{number}.setup_rtts = {region.setup_rtts}: real processes take 1, 2 or 3"
