"""Fidelity page as HTML, Markdown and JSON with figures, from the files of a results directory alone.

Idempotent: the same runs give the same page.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from benchmarks.fidelity import plot
from benchmarks.fidelity.agreement import ScenarioResult, scenario_result_of
from benchmarks.fidelity.session import REPEATS, read
from benchmarks.fidelity.tables import headline, overview, ranking_table, scenario_table
from experiments.errors import BadInputError
from experiments.platform.json_values import json_value
from experiments.report.document import Document, Picture, sections_of
from experiments.report.drawings import Drawing, save_drawing
from experiments.report.html import to_html
from experiments.report.markdown import to_markdown
from experiments.report.pages import write
from experiments.results.directory import Results

TITLE = "Do the simulator and the real thing say the same?"


def write_page(directory: Path) -> list[ScenarioResult]:
    """Write worlds.html, worlds.md, worlds.json and the figures beside the runs. Raises `BadInputError`."""
    found = read(directory)
    scenario_results = [scenario_result_of(*results) for results in found]
    pairs = [(measured, simulated) for measured, simulated, _ in found]
    try:
        pictures = [save_drawing(each, directory / "figures") for each in drawings(scenario_results, pairs)]
        document = document_of(scenario_results, pictures, method(pairs))
        write(directory / "worlds.html", to_html(document))
        write(directory / "worlds.md", to_markdown(document))
        write(directory / "worlds.json", json.dumps(json_value(scenario_results), indent=2) + "\n")
    except OSError as error:
        raise BadInputError(f"{directory}: the page cannot be written: {error.strerror}") from None
    return scenario_results


def drawings(
    scenario_results: Sequence[ScenarioResult], pairs: Sequence[tuple[Results, Results]]
) -> list[Drawing]:
    """Both figures of the page."""
    return [
        Drawing(
            "agreement",
            "Simulated over measured",
            "Each point is a policy in a scenario. In the grey band the two worlds agree; grey hollow points rest "
            "on no valid run and are not judged.",
            lambda: plot.scatter(scenario_results),
        ),
        Drawing(
            "distributions",
            "Whole distributions",
            "Latency of successes from the fastest, left, to the slowest in a thousand, right. Where the dashed line "
            "leaves the solid one, the model lacks something. Grey rests on no valid run.",
            lambda: plot.distributions(pairs),
        ),
    ]


def document_of(
    scenario_results: Sequence[ScenarioResult], pictures: Sequence[Picture], method: Sequence[str]
) -> Document:
    """The page as a document: verdict, overview and ranking, figures, a table for each scenario, method."""
    tables = [
        overview(scenario_results),
        ranking_table(scenario_results),
        *map(scenario_table, scenario_results),
    ]
    return Document(
        title=TITLE,
        heading=TITLE,
        eyebrow="Steelyard experiment · two worlds",
        headline=f"{headline(scenario_results)}.",
        sections=sections_of(tables, pictures, method, first=2),
    )


def method(pairs: Sequence[tuple[Results, Results]]) -> list[str]:
    """Lines of the method section."""
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
