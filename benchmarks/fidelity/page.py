"""Fidelity page as HTML, Markdown and JSON with figures, from the files of a results directory alone.

Idempotent: the same runs give the same page.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.fidelity import plot
from benchmarks.fidelity.agreement import ScenarioResult, scenario_result_of
from benchmarks.fidelity.session import REPEATS, read
from benchmarks.fidelity.tables import headline, overview, ranking_table, scenario_table
from benchmarks.fidelity.undisturbed import LATE, LEAST, left_out, quiet_only
from experiments.errors import BadInputError
from experiments.report.html import heading, page, picture_html, section, table_html, verdict_box
from experiments.report.markup import BREAK, Html, joined, listing
from experiments.report.pages import Drawing, save_drawing
from experiments.report.tables import Table
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
    tables = [
        overview(scenario_results),
        ranking_table(scenario_results),
        *map(scenario_table, scenario_results),
    ]
    try:
        pictures = [save_drawing(each, directory / "figures") for each in drawings(scenario_results, pairs)]
        parts = [head(scenario_results), *map(table_section, tables[:2]), *map(picture_html, pictures)]
        parts += [*map(table_section, tables[2:]), section("Method", method(pairs, lost))]
        write(directory / "worlds.html", page(TITLE, parts))
        write(directory / "worlds.md", markdown(scenario_results, tables))
        write(
            directory / "worlds.json",
            json.dumps(plain([asdict(one) for one in scenario_results]), indent=2) + "\n",
        )
    except OSError as error:
        raise BadInputError(f"{directory}: the page cannot be written: {error.strerror}") from None
    return scenario_results


def write(path: Path, text: str) -> None:
    """Write UTF-8 with LF line ends."""
    path.write_text(text, encoding="utf-8", newline="\n")


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


def head(scenario_results: Sequence[ScenarioResult]) -> Html:
    """Page header: title and verdict."""
    eyebrow = "Steelyard experiment · two worlds"
    return joined([heading(eyebrow, TITLE), BREAK, verdict_box(f"{headline(scenario_results)}.")])


def table_section(table: Table) -> Html:
    """Section with a table under its heading."""
    return section(table.title, table_html(table))


def method(pairs: Sequence[tuple[Results, Results]], lost: Sequence[float]) -> Html:
    """Method section as a list. `lost` is the share of requests left out, by scenario."""
    first = pairs[0][0].campaign
    blocks = sorted({results.scenario.blocks for results, _ in pairs})
    lines = [
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
    return listing(lines)


def shares(pairs: Sequence[tuple[Results, Results]], lost: Sequence[float]) -> str:
    """Text such as `12 % in homogeneous, 3 % in gc-pauses`."""
    named = zip(pairs, lost, strict=True)
    return ", ".join(f"{part:.0%} in {measured.scenario.name}" for (measured, _), part in named)


def markdown(scenario_results: Sequence[ScenarioResult], tables: Sequence[Table]) -> str:
    """The tables as Markdown, for a pull request."""
    parts = [f"# {TITLE}\n\n**{headline(scenario_results)}.**\n"]
    for table in tables:
        rows = [
            table.columns,
            ["---"] * len(table.columns),
            *([cell.text for cell in row] for row in table.rows),
        ]
        lines = "\n".join(f"| {' | '.join(row)} |" for row in rows)
        parts.append(f"## {table.title}\n\n{table.note.strip()}\n\n{lines}\n")
    return "\n".join(parts)


def plain(value: Any) -> Any:
    """Copy of `value` for JSON; nan and infinity become None."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
