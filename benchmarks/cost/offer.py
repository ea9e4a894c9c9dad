"""The open loop as a process of its own: started, waited for, and its report read.

Rule of this file: a report that is none is an error here, never a figure.
"""

from __future__ import annotations

import json

from benchmarks.cost.load import Place, report_of, started
from benchmarks.cost.open_load import WARM_UP, Offer, Report
from experiments.errors import FleetFailedError
from experiments.processes import program


async def made(offer: Offer, place: Place) -> Report:
    """Make the offer and hear what became of it. Raises FleetFailedError."""
    async with started([*program("benchmarks.cost.open_load"), *offer.words], place) as process:
        return parsed(await report_of(process, WARM_UP + offer.seconds))


def parsed(text: str) -> Report:
    """What the generator printed. Raises FleetFailedError when it is no report."""
    try:
        return Report(**json.loads(text))
    except (ValueError, TypeError):
        raise FleetFailedError(f"the open loop gave no report: {text.strip()[-200:]}") from None
