"""Shares in numbers: before the trouble, while it lasts, and at the end.

Rule of this file: pure functions of courses.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.table import Table

from experiments.shares.runs import PLACES, Course, Tempo

KNOWN_AFTER = 2.0
"""Seconds of a trouble that are left out: nobody can know it at once."""


@dataclass(frozen=True, slots=True)
class Shares:
    """Parts (0..1) of the requests that the struck endpoints got; `failed` counts requests of the whole run."""

    policy: str
    trouble: str
    before: float = 0.0
    meanwhile: float = 0.0
    after: float = 0.0
    failed: int = 0
    requests: int = 0
    was_added: bool = False
    """Whether the unit was told of a new endpoint; else it knew of one that was not there yet."""

    fault: str = ""


def shares_of(course: Course, tempo: Tempo) -> Shares:
    """A course in numbers."""
    samples = course.samples
    if samples is None:
        return Shares(course.policy, course.trouble.name, fault=course.fault)
    ends = tempo.over if course.trouble.is_addition else tempo.ends
    known_at = min(tempo.begins + KNOWN_AFTER, (tempo.begins + ends) / 2)
    return Shares(
        course.policy,
        course.trouble.name,
        before=share_of(course, 0, tempo.begins),
        meanwhile=share_of(course, known_at, ends),
        after=share_of(course, (ends + tempo.over) / 2 if ends < tempo.over else known_at, tempo.over),
        failed=int((~samples.ok).sum()),
        requests=len(samples),
        was_added=course.was_added,
    )


def share_of(course: Course, since: float, until: float) -> float:
    """The part that the struck endpoints had of the requests due from one instant to another."""
    samples = course.samples
    if samples is None:
        return 0.0
    among = (samples.scheduled_at >= since) & (samples.scheduled_at < until)
    victims = [index for index, place in enumerate(PLACES) if place.worker in course.trouble.victims]
    got = sum(int((samples.worker[among] == index).sum()) for index in victims)
    return got / max(1, int(among.sum()))


def table_of(found: Sequence[Shares], troubles: Sequence[str]) -> Table:
    """A row for each policy, a cell for each trouble: share before → meanwhile → at the end, and failures."""
    table = Table(
        title="share of the endpoint in question: before → meanwhile → at the end (failed requests)"
    )
    table.add_column("policy", no_wrap=True)
    for trouble in troubles:
        table.add_column(trouble, justify="right")
    by_key = {(one.policy, one.trouble): one for one in found}
    for policy in dict.fromkeys(one.policy for one in found):
        table.add_row(policy, *(cell(by_key.get((policy, trouble))) for trouble in troubles))
    return table


def cell(one: Shares | None) -> str:
    if one is None:
        return "–"
    if one.fault:
        return "INVALID"
    return f"{one.before:.0%} → {one.meanwhile:.0%} → {one.after:.0%} ({one.failed})"


def draws_no_traffic(found: Sequence[Shares]) -> list[tuple[bool | None, str]]:
    """The one bound: whoever fails fast must not get more than before, under any policy."""
    failing = [one for one in found if one.trouble == "failing"]
    return [
        (
            None if one.fault or not one.before else one.meanwhile <= one.before + NOISE,
            f"{one.policy}: who fails fast gets {one.meanwhile:.0%}, {one.before:.0%} before (bound: not more)",
        )
        for one in failing
    ]


NOISE = 0.03
"""What a share may differ by chance."""
