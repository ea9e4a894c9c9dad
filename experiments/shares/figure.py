"""The share of traffic that each endpoint gets over time: a row for each policy, a column for each trouble.

Rule of this file: the struck endpoint stands at the bottom of its panel in a colour of its own, so that its share can
be read off the axis; a dashed line says what it had before. The others are pale: they show where the traffic went.
"""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from experiments.load.samples import Floats
from experiments.report import canvas
from experiments.report.canvas import STYLE, WIDE
from experiments.report.palette import FAINT, INK
from experiments.shares.runs import PLACES, REGIONS, Course, Tempo, Trouble
from experiments.shares.table import share_of

STRUCK = ("#D55E00", "#F2A65A")
OTHERS = {"home": "#9BC4E2", "near": "#CFE3C8", "far": "#E6E0EE"}
FAILED = "#B00020"
BINS = 32
TOP = 109
"""Upper end of the axis in %: above 100 a bar says how long the trouble lasts."""

QUESTION = "Which part of the requests does each endpoint get, in %?"
ROW = 1.22
"""Inches of height for a policy."""


@mpl.rc_context(STYLE)
def shares_figure(courses: Sequence[Course], tempo: Tempo) -> Figure:
    """All courses; a panel that could not be measured says why."""
    policies = list(dict.fromkeys(course.policy for course in courses))
    troubles = list(dict.fromkeys(course.trouble.name for course in courses))
    found = {(course.policy, course.trouble.name): course for course in courses}
    figure, panels = canvas.blank(
        WIDE, 1.6 + ROW * len(policies), len(policies), len(troubles), sharex=True, sharey=True
    )
    for number, axes in enumerate(panels):
        policy, trouble = policies[number // len(troubles)], troubles[number % len(troubles)]
        draw(axes, found.get((policy, trouble)), tempo)
        if number < len(troubles) and (policy, trouble) in found:
            axes.set_title(heading(found[policy, trouble].trouble), fontweight="bold")
        if number % len(troubles) == 0:
            axes.set_ylabel(
                policy.replace("-", "-\n", 1), rotation=0, ha="right", va="center", fontweight="bold"
            )
    for axes in panels[-len(troubles) :]:
        axes.set_xlabel("seconds")
    panels[0].set_ylim(0, TOP)
    panels[0].set_xlim(0, tempo.over)
    told = figure.legend(
        handles=legend(), loc="outside upper left", ncols=4, fontsize=9, title=QUESTION, alignment="left"
    )
    told.get_title().set_fontweight("bold")
    return figure


def heading(trouble: Trouble) -> str:
    return trouble.words


def legend() -> list[Patch | Line2D]:
    """What the colours mean, in words."""
    return [
        Patch(color=STRUCK[0], label="the endpoint in question"),
        Patch(color=STRUCK[1], label="the second of a lost region"),
        *(
            Patch(color=colour, label=f"others, {region} ({REGIONS[region] * 1e3:g} ms away)")
            for region, colour in OTHERS.items()
        ),
        Patch(facecolor="white", edgecolor=FAINT, label="nobody answered"),
        Line2D([], [], color=FAILED, label="requests that failed"),
        Line2D([], [], color=INK, linestyle="--", label="its share before"),
        Patch(color=INK, label="while the trouble lasts"),
    ]


def draw(axes: Axes, course: Course | None, tempo: Tempo) -> None:
    """One panel."""
    axes.grid(visible=False)
    axes.set_yticks([0, 50, 100])
    if course is None or course.samples is None:
        text = "not measured" if course is None else course.fault[:60]
        axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", color=FAINT, fontsize=8)
        return
    edges = np.linspace(0, tempo.over, BINS + 1)
    due, samples = samples_due(course), course.samples
    total = np.maximum(1, np.histogram(due, edges)[0])
    order = sorted(range(len(PLACES)), key=lambda index: PLACES[index].worker not in course.trouble.victims)
    parts = [100 * np.histogram(due[samples.worker == index], edges)[0] / total for index in order]
    at = np.repeat(edges, 2)[1:-1]
    colours = [colour_of(index, course.trouble) for index in order]
    axes.stackplot(at, np.repeat(parts, 2, axis=1), colors=colours, edgecolor="white", linewidth=0.3)
    failed = 100 * np.histogram(due[~samples.ok], edges)[0] / total
    axes.plot(at, np.repeat(failed, 2), color=FAILED, linewidth=1.1)
    ends = tempo.over if course.trouble.is_addition else tempo.ends
    axes.barh((TOP + 100) / 2, ends - tempo.begins, left=tempo.begins, height=TOP - 100, color=INK)
    for instant in (tempo.begins, ends):
        axes.axvline(instant, color=INK, linewidth=0.8)
    if not course.trouble.is_addition:
        axes.axhline(100 * share_of(course, 0, tempo.begins), color=INK, linestyle="--", linewidth=0.8)


def samples_due(course: Course) -> Floats:
    assert course.samples is not None
    return course.samples.scheduled_at


def colour_of(index: int, trouble: Trouble) -> str:
    place = PLACES[index]
    if place.worker in trouble.victims:
        return STRUCK[trouble.victims.index(place.worker)]
    return OTHERS[place.region]
