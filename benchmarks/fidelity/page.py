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
from benchmarks.fidelity.undisturbed import LATE, LEAST, left_out, quiet_only
from experiments.errors import BadInputError
from experiments.json_values import json_value
from experiments.report.document import Document, Picture, sections_of
from experiments.report.drawings import Drawing, save_drawing
from experiments.report.html import to_html
from experiments.report.markdown import to_markdown
from experiments.report.pages import write
from experiments.results.directory import Results
from experiments.stats.measures import LAG_LIMIT

TITLE = "Do the simulator and the real thing say the same?"


def write_page(directory: Path) -> list[ScenarioResult]:
    """Write worlds.html, worlds.md, worlds.json and the figures beside the runs. Raises `BadInputError`."""
    found = read(directory)
    quiet = [quiet_only(*results) for results in found]
    scenario_results = [scenario_result_of(*results) for results in quiet]
    pairs = [(measured, simulated) for measured, simulated, _ in quiet]
    lost = [left_out(whole.runs, left.runs) for (whole, *_), (left, *_) in zip(found, quiet, strict=True)]
    try:
        pictures = [save_drawing(each, directory / "figures") for each in drawings(scenario_results, pairs)]
        document = document_of(scenario_results, pictures, method(pairs, lost))
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


def method(pairs: Sequence[tuple[Results, Results]], lost: Sequence[float]) -> list[str]:
    """Lines of the method section. `lost` is the share of requests left out, by scenario."""
    first = pairs[0][0].campaign
    blocks = sorted({results.scenario.blocks for results, _ in pairs})
    return [
        f"Repeat it: {first.command}",
        "The same scenario files, seeds, arrivals, policies and router in both worlds; the simulator works workers, "
        "network and client out. Nothing in it was fitted to these runs.",
        "Distances are simulated as emulated workers have them: TCP's handshake is over at once on loopback, and the "
        "first request of a connection pays for it.",
        f"Simulated figures are what {REPEATS} simulations of each run expect, which differ by the draws of decisions.",
        f"Blocks: {', '.join(map(str, blocks))}. Of the simulation the blocks count whose measured run is valid.",
        f"Left out of both worlds: seconds in which more than {LATE:.0%} of the requests were sent more than "
        f"{LAG_LIMIT * 1e3:g} ms late, because the machine was busy with something else, and the one behind each. "
        f"Of the requests that is {shares(pairs, lost)}. A run that keeps less than {LEAST:.0%} is judged as a whole.",
        f"Measured from {first.started_at} on {first.machine}.",
        "Versions: " + ", ".join(f"{name} {version}" for name, version in first.versions.items()) + ".",
    ]


def shares(pairs: Sequence[tuple[Results, Results]], lost: Sequence[float]) -> str:
    """Text such as `12 % in homogeneous, 3 % in gc-pauses`."""
    named = zip(pairs, lost, strict=True)
    return ", ".join(f"{part:.0%} in {measured.scenario.name}" for (measured, _), part in named)
