"""Run the open-loop generator as a process and parse its report."""

from __future__ import annotations

import json

from benchmarks.cost.load import Place, report_of, started
from benchmarks.cost.open_load import WARM_UP, OpenLoad, Report
from experiments.errors import FleetFailedError
from experiments.processes import program


async def made(offer: OpenLoad, place: Place) -> Report:
    """Run the load to its end. Raises `FleetFailedError`."""
    async with started([*program("benchmarks.cost.open_load"), *offer.words], place) as process:
        return parsed(await report_of(process, WARM_UP + offer.seconds))


def parsed(text: str) -> Report:
    """Parse the generator's report. Raises `FleetFailedError` if it is none."""
    try:
        return Report(**json.loads(text))
    except (ValueError, TypeError):
        raise FleetFailedError(f"the open loop gave no report: {text.strip()[-200:]}") from None
