"""Requests of a log as runs of samples, by policy, region and endpoint, for figures and tables.

A log is one run without a scenario. Requests are numbered in order of arrival, and instants count from the first. A
request is due when its first byte arrives, because a log has no earlier instant.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from experiments.recorded.access_log import LogColumns
from experiments.report.palette import INK, Competitor, policy_colour, region_colours, worker_colours
from experiments.run_data import Flags, Floats, Ints, Kind, Place, Run, RunFacts, Samples, region_numbers

ANSWERED = (Kind.OK, Kind.ERROR_STATUS)


@dataclass(frozen=True, slots=True, eq=False)
class LogRuns:
    """A log that was read. `place` is the last endpoint tried, even without a response; -1: none. Phases in seconds."""

    name: str
    began_at: float
    whole: Run
    place: Ints
    policy: Ints
    queue: Floats
    connect: Floats
    policies: tuple[str, ...]
    endings: dict[tuple[str, str], int]
    least_sample: float
    left_out: int
    unreadable: int
    first_problem: str

    @property
    def places(self) -> tuple[Place, ...]:
        return self.whole.facts.places

    @property
    def unreadable_in_words(self) -> str:
        """How many lines could not be read, with the first; empty if all could."""
        if not self.unreadable:
            return ""
        part = self.unreadable / (self.unreadable + len(self.whole.samples) + self.left_out)
        lines, are = ("line", "is") if self.unreadable == 1 else ("lines", "are")
        return (
            f"{self.unreadable:,} {lines} ({part:.2%}) could not be read and {are} left out; the first is "
            f"{self.first_problem}"
        )

    def by_policy(self) -> list[Competitor]:
        """Parts by policy, in order of first appearance."""
        return [
            competitor(self.whole, name, policy_colour(name, self.policies), self.policy == index)
            for index, name in enumerate(self.policies)
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
    return LogRuns(
        name=name,
        began_at=float(at[0]),
        whole=Run(facts, samples),
        place=place,
        policy=rows["policy"],
        queue=rows["queue"],
        connect=rows["connect"],
        policies=tuple(columns.policies),
        endings=dict(columns.endings.most_common()),
        least_sample=columns.least_sample,
        left_out=columns.left_out,
        unreadable=columns.unreadable,
        first_problem=columns.first_problem,
    )


def placed(columns: LogColumns, endpoint: Ints) -> tuple[tuple[Place, ...], Ints]:
    """Endpoints sorted by region and name, and each request's index among them; -1 for none."""
    names = sorted(columns.endpoints, key=lambda name: (columns.regions[name], name))
    places = tuple(Place(worker=name, region=columns.regions[name]) for name in names)
    rank = {name: index for index, name in enumerate(names)}
    by_number = np.array([*(rank[name] for name in columns.endpoints), -1], dtype=np.int64)
    return places, by_number[endpoint]
