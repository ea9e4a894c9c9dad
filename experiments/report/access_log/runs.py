"""Requests of a log as runs of samples, by policy, region and endpoint, for figures and tables.

A log is one run without a scenario. Requests are numbered in order of arrival, and instants count from the first. A
request is due when its first byte arrives, because a log has no earlier instant.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from experiments.recorded.access_log import LogColumns
from experiments.report.palette import INK, Competitor, policy_colour, region_colours, worker_colours
from experiments.run_data import Flags, Ints, Kind, Place, Run, RunFacts, Samples, region_numbers

ANSWERED = (Kind.OK, Kind.ERROR_STATUS)


@dataclass(frozen=True, slots=True, eq=False)
class LogRuns:
    """A log that was read, and its requests by time: `rows` as in the log, `whole` as a run.

    `place` is the last endpoint tried, even without a response; -1: none.
    """

    name: str
    columns: LogColumns
    rows: NDArray[Any]
    whole: Run
    place: Ints

    @property
    def places(self) -> tuple[Place, ...]:
        return self.whole.facts.places

    @property
    def unreadable_in_words(self) -> str:
        """How many lines could not be read, with the first; empty if all could."""
        if not (count := self.columns.unreadable):
            return ""
        part = count / (count + len(self.rows) + self.columns.left_out)
        lines, are = ("line", "is") if count == 1 else ("lines", "are")
        return (
            f"{count:,} {lines} ({part:.2%}) could not be read and {are} left out; the first is "
            f"{self.columns.first_problem}"
        )

    def by_policy(self) -> list[Competitor]:
        """Parts by policy, in order of first appearance."""
        return [
            competitor(
                self.whole, name, policy_colour(name, [*self.columns.policies]), self.rows["policy"] == index
            )
            for index, name in enumerate(self.columns.policies)
        ]

    def by_region(self) -> list[Competitor]:
        """Parts by region, in order of first appearance, each in the first colour of its workers."""
        found = []
        for region, colour in region_colours(self.places).items():
            mine = np.isin(self.place, [i for i, p in enumerate(self.places) if p.region == region])
            found.append(competitor(self.whole, f"region {region}", colour, mine))
        return found

    def by_endpoint(self) -> list[Competitor]:
        """Parts by endpoint, region by region."""
        colours = worker_colours(self.places)
        return [
            competitor(self.whole, place.worker, colour, self.place == index)
            for index, (place, colour) in enumerate(zip(self.places, colours, strict=True))
        ]

    def altogether(self) -> Competitor:
        """The whole log as one part."""
        return competitor(self.whole, "all", INK, np.ones(len(self.whole.samples), dtype=np.bool_))


def competitor(run: Run, label: str, colour: str, chosen: Flags) -> Competitor:
    """The requests `chosen`, with unchanged instants, as figures show them."""
    part = Run(run.facts.model_copy(update={"label": label}), run.samples.rows(chosen))
    return Competitor(label, colour, 0, (part,), True)


def log_runs(columns: LogColumns, name: str) -> LogRuns:
    """Sort the columns by time and compute the instants."""
    rows = columns.rows[np.argsort(columns.rows["at"], kind="stable")]
    at, total, service = rows["at"], rows["total"], rows["service"]
    scheduled = at - at[0]
    ended = scheduled + total
    sent = ended - service
    kind = rows["kind"]
    places, place = placed(columns, rows["endpoint"])
    facts = RunFacts(
        label=name,
        policy={},
        mode="open",
        requests=len(at),
        block=0,
        order=0,
        seed=0,
        timeout=float(total.max()),
        places=places,
    )
    worker = np.where(np.isin(kind, ANSWERED), place, -1)
    samples = Samples(
        scheduled_at=scheduled,
        sent_at=sent,
        first_byte_at=sent + rows["first_byte"],
        ended_at=ended,
        status=rows["status"],
        kind=kind,
        worker=worker,
        region=region_numbers(places)[worker],
        sequence=np.arange(len(at)),
        attempts=rows["attempts"],
    )
    return LogRuns(name, columns, rows, Run(facts, samples), place)


def placed(columns: LogColumns, endpoint: Ints) -> tuple[tuple[Place, ...], Ints]:
    """Endpoints sorted by region and name, and each request's index among them; -1 for none."""
    names = sorted(columns.endpoints, key=lambda name: (columns.regions[name], name))
    places = tuple(Place(worker=name, region=columns.regions[name]) for name in names)
    rank = {name: index for index, name in enumerate(names)}
    by_number = np.array([*(rank[name] for name in columns.endpoints), -1], dtype=np.int64)
    return places, by_number[endpoint]
