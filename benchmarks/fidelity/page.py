"""Fidelity page as HTML, Markdown and JSON with figures, from the files of a results directory alone.

Idempotent: the same runs give the same page.

A policy has a colour in the figures, a scenario a marker; what is not judged is hollow and grey.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from benchmarks.fidelity.agreement import BOUNDS, LATENCY, ScenarioResult, paired_runs, scenario_result_of
from benchmarks.fidelity.session import REPEATS, read
from benchmarks.fidelity.tables import bound_text, headline, overview, ranking_table, scenario_table
from experiments.errors import BadInputError
from experiments.platform.json_values import json_value
from experiments.report.canvas import COLUMNS, STYLE, blank, milliseconds
from experiments.report.document import Document, sections_of, to_html, to_markdown
from experiments.report.drawings import Drawing, save_drawing
from experiments.report.pages import write
from experiments.report.palette import GREY, GRID, INVALID, entry_colours
from experiments.results.directory import Results
from experiments.stats import measures

TITLE = "Do the simulator and the real thing say the same?"


def write_page(directory: Path) -> list[ScenarioResult]:
    """Write worlds.html, worlds.md, worlds.json and the figures beside the runs. Raises `BadInputError`."""
    found = read(directory)
    scenario_results = [scenario_result_of(*results) for results in found]
    pairs = [(measured, simulated) for measured, simulated, _ in found]
    try:
        pictures = [save_drawing(each, directory / "figures") for each in drawings(scenario_results, pairs)]
        tables = [overview(scenario_results), ranking_table(scenario_results)]
        tables += map(scenario_table, scenario_results)
        document = Document(
            title=TITLE,
            heading=TITLE,
            eyebrow="Steelyard experiment · two worlds",
            headline=f"{headline(scenario_results)}.",
            sections=sections_of(tables, pictures, method(pairs), first=2),
        )
        write(directory / "worlds.html", to_html(document))
        write(directory / "worlds.md", to_markdown(document))
        write(directory / "worlds.json", json.dumps(json_value(scenario_results), indent=2) + "\n")
    except OSError as error:
        raise BadInputError(f"{directory}: the page cannot be written: {error.strerror}") from None
    return scenario_results


def drawings(
    scenario_results: Sequence[ScenarioResult], pairs: Sequence[tuple[Results, Results]]
) -> list[Drawing]:
    return [
        Drawing(
            "agreement",
            "Simulated over measured",
            "Each point is a policy in a scenario. In the grey band the two worlds agree; grey hollow points rest "
            "on no valid run and are not judged.",
            lambda: scatter(scenario_results),
        ),
        Drawing(
            "distributions",
            "Whole distributions",
            "Latency of successes from the fastest, left, to the slowest in a thousand, right. Where the dashed line "
            "leaves the solid one, the model lacks something. Grey rests on no valid run.",
            lambda: distributions(pairs),
        ),
    ]


def method(pairs: Sequence[tuple[Results, Results]]) -> list[str]:
    first = pairs[0][0].campaign
    blocks = sorted({results.scenario.blocks for results, _ in pairs})
    repeated = {results.scenario.name: len(results.set_aside) for results, _ in pairs if results.set_aside}
    return [
        f"Repeat it: {first.command}",
        "The same scenario files, seeds, arrivals, policies and router in both worlds; the simulator works workers, "
        "network and client out. Nothing in it was fitted to these runs.",
        "Distances are simulated as emulated workers have them: TCP's handshake is over at once on loopback, and the "
        "first request of a connection pays for it.",
        f"Simulated figures are what {REPEATS} simulations of each run expect, which differ by the draws of decisions.",
        f"Blocks: {', '.join(map(str, blocks))}. A block in which the load generator was late under any entry counts "
        "for none, and its simulation neither. Measured again were "
        f"{', '.join(f'{count} runs of {name}' for name, count in repeated.items()) or 'none'}.",
        "A figure is met if its whole 95 % interval over blocks, eight at least, lies within the bound, and missed if "
        "it lies wholly beyond. A failed request counts as slow as the deadline.",
        f"Measured from {first.started_at} on {first.machine}.",
        "Versions: " + ", ".join(f"{name} {version}" for name, version in first.versions.items()) + ".",
    ]


MARKERS = "osD^vP*Xph<>"
TAIL = 1 - np.logspace(0, -3, 200)
"""Quantiles at which distributions are drawn: the same number of points for each nine."""


@mpl.rc_context(STYLE)
def scatter(scenario_results: Sequence[ScenarioResult]) -> Figure:
    """Scatter plots of simulated against measured mean and p99, each with the band of agreement."""
    figure, axes = blank(5.4, columns=len(LATENCY))
    for axis, quantity in zip(axes, LATENCY, strict=True):
        draw_scatter(axis, scenario_results, quantity)
    markers = [
        Line2D([], [], ls="", marker=MARKERS[n % len(MARKERS)], color=GREY, label=scenario_result.name)
        for n, scenario_result in enumerate(scenario_results)
    ]
    legend_below(figure, [*policy_handles(policies_of(scenario_results), 4), *markers])
    return figure


def legend_below(figure: Figure, handles: Sequence[Line2D]) -> None:
    figure.legend(handles=handles, loc="outside lower center", ncols=5, fontsize=8)


def policy_handles(names: Sequence[str], width: float | None = None) -> list[Line2D]:
    colours = policy_colours(names).items()
    return [Line2D([], [], color=colour, linewidth=width, label=name) for name, colour in colours]


def policy_colours(names: Sequence[str]) -> dict[str, str]:
    """Colour of each policy, in every panel of a figure."""
    return dict(zip(names, entry_colours(names), strict=True))


def draw_scatter(axis: Axes, scenario_results: Sequence[ScenarioResult], quantity: str) -> None:
    """One scatter plot: a point for each entry, on log axes with equal limits."""
    points = [
        (one, row.policy, MARKERS[number % len(MARKERS)])
        for number, scenario_result in enumerate(scenario_results)
        for row in scenario_result.rows
        for one in row.agreements
        if one.quantity == quantity and np.isfinite(one.distance)
    ]
    values = [value * 1e3 for one, _, _ in points for value in (one.measured, one.simulated)]
    colours = policy_colours(policies_of(scenario_results))
    for one, policy, marker in points:
        colour = INVALID if one.is_met is None else colours[policy]
        face = "none" if one.is_met is None else colour
        axis.plot(one.measured * 1e3, one.simulated * 1e3, marker, color=colour, mfc=face, ms=7, alpha=0.85)
    milliseconds(axis.xaxis, values)
    milliseconds(axis.yaxis, values)
    if values:
        line = np.array(axis.get_xlim())
        bound = BOUNDS[quantity]
        axis.fill_between(line, line * (1 - bound), line * (1 + bound), color=GRID, zorder=0)
        axis.plot(line, line, color=GREY, lw=0.8, zorder=0)
    axis.set(title=bound_text(quantity), xlabel="measured, ms", ylabel="simulated, ms")


@mpl.rc_context(STYLE)
def distributions(pairs: Sequence[tuple[Results, Results]]) -> Figure:
    """One panel for each scenario: latency against the share of requests that take longer; simulated is dashed."""
    rows = -(-len(pairs) // COLUMNS)
    figure, axes = blank(3.1 * rows + 0.8, rows, COLUMNS)
    for axis in axes[len(pairs) :]:
        axis.set_visible(False)
    names = list(dict.fromkeys(e.policy.name for ours, _ in pairs for e in ours.entries()))
    for axis, (measured, simulated) in zip(axes, pairs, strict=False):
        draw_distributions(axis, measured, simulated, policy_colours(names))
    styles = [("solid", "measured"), ("dashed", "simulated")]
    worlds = [Line2D([], [], color=GREY, ls=style, label=world) for style, world in styles]
    legend_below(figure, [*policy_handles(names), *worlds])
    return figure


def draw_distributions(axis: Axes, measured: Results, simulated: Results, colours: Mapping[str, str]) -> None:
    """Distributions of one scenario, for every entry except the A/A control."""
    entries = [entry for entry in measured.entries() if entry.repeat_of is None]
    shown = list[float]()
    for entry in entries:
        ours, theirs = paired_runs(measured, simulated, entry.label)
        is_judged = any(run.facts.is_valid for run in ours)
        colour = colours[entry.policy.name] if is_judged else INVALID
        for runs, style in ((ours, "solid"), (theirs, "dashed")):
            latency = measures.success_latency(runs) if runs else np.empty(0)
            if len(latency):
                curve = np.quantile(latency, TAIL) * 1e3
                shown += curve.tolist()
                axis.plot(1 - TAIL, curve, ls=style, lw=1.3, color=colour, zorder=2 if is_judged else 1)
    axis.set(xscale="log", xlim=(1, 1e-3), title=measured.scenario.name, xlabel="requests that take longer")
    axis.set_xticks([1, 0.1, 0.01, 0.001], ["100 %", "10 %", "1 %", "0.1 %"])
    milliseconds(axis.yaxis, shown)
    axis.set_ylabel("latency, ms")


def policies_of(scenario_results: Sequence[ScenarioResult]) -> list[str]:
    return list(dict.fromkeys(row.policy for result in scenario_results for row in result.rows))
