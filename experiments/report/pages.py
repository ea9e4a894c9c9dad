"""The report of a results directory, from its files alone.

`write_report` works on any directory with at least one run, any number of times, and the same runs give the same
summary byte for byte. It writes, beside the raw samples:

    summary.json  summary.csv  report.md  report.html  figures/*.svg  figures/*.png
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from experiments.errors import BadInputError
from experiments.report.document import Document, Picture, Section, sections_of
from experiments.report.drawings import drawings, save_drawing
from experiments.report.html import to_html
from experiments.report.markdown import to_markdown
from experiments.report.method import method_lines
from experiments.report.tables import tables_of
from experiments.report.text import invalid_lines, to_csv, to_json
from experiments.results.directory import load_results
from experiments.results.summary import Summary, summarise


def write_report(directory: Path) -> Summary:
    """Write every output beside the runs. Raises `BadInputError` when it cannot."""
    results = load_results(directory)
    summary = summarise(results)
    try:
        pictures = [save_drawing(drawing, directory / "figures") for drawing in drawings(results, summary)]
        document = document_of(summary, pictures)
        write(directory / "summary.json", to_json(summary))
        write(directory / "summary.csv", to_csv(summary))
        write(directory / "report.md", to_markdown(document))
        write(directory / "report.html", to_html(document))
    except OSError as error:
        raise BadInputError(f"{directory}: the report cannot be written: {error.strerror}") from None
    return summary


def write(path: Path, text: str) -> None:
    """Write UTF-8 with LF on every platform; a file name that is not UTF-8 is written with escapes."""
    path.write_text(text, encoding="utf-8", errors="backslashreplace", newline="\n")


def document_of(summary: Summary, pictures: Sequence[Picture]) -> Document:
    """The report as a document: verdict, warnings, tables, figures, method."""
    scenario, verdict = summary.scenario, summary.verdict
    kind = "experiment" if summary.world == "measured" else "simulation: simulated, not measured"
    return Document(
        title=f"{scenario.name}: {scenario.question}",
        heading=scenario.question,
        eyebrow=f"Steelyard {kind} · {scenario.name}",
        headline=verdict.headline,
        sentences=verdict.lines,
        has_verdict=verdict.has_verdict,
        warnings=warnings(summary),
        sections=sections_of(tables_of(summary), pictures, method_lines(summary)),
    )


def warnings(summary: Summary) -> list[Section]:
    """Invalid runs, missing runs, failed thresholds and a time scale; those that do not apply have no lines."""
    missing = [f"{summary.missing_runs} planned runs are missing: the campaign was stopped or failed."]
    failed = [f"{j.label}: {j.threshold} — {j.message}" for j in summary.failed_thresholds]
    scale = summary.scenario.time_scale
    return [
        Section("Invalid runs: do not believe their figures", lines=invalid_lines(summary)),
        Section("Incomplete campaign", lines=missing if summary.missing_runs else []),
        Section("Thresholds failed", lines=failed),
        Section("Compressed time", lines=[f"1 s of the scenario took {scale:g} s."] if scale != 1 else []),
    ]
