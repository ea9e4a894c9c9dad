"""The report of a results directory, from its files alone.

`write_report` works on any directory with at least one run, any number of times, and the same runs give the same
summary byte for byte. It writes, beside the raw samples:

    summary.json  summary.csv  shares.csv  comparisons.csv  report.md  report.html  figures/*.svg  figures/*.png

and, with `parquet`, the tables of the CSV files and all requests as *.parquet.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from experiments.errors import BadInputError
from experiments.report.document import Document, Picture, Section, to_markdown
from experiments.report.drawings import drawings, save_drawing, uniform
from experiments.report.entry_tables import statistics_table, tail_table, token_table
from experiments.report.exports import data_tables, write_parquet, write_requests
from experiments.report.html import to_html
from experiments.report.method import method_lines
from experiments.report.tables import comparison_table, is_live, run_table, share_table, threshold_table
from experiments.report.text import invalid_lines, to_json
from experiments.results.directory import Results, load_results
from experiments.verdict.disturbed import repetitions
from experiments.verdict.summary import Summary, summarise


def write_report(directory: Path, parquet: bool = False) -> Summary:
    """Write every output beside the runs, with `parquet` also as Parquet. Raises `BadInputError` when it cannot."""
    results = load_results(directory)
    summary = summarise(results)
    try:
        pictures = [save_drawing(drawing, directory / "figures") for drawing in drawings(results, summary)]
        document = document_of(summary, pictures)
        write_tables(results, summary, directory, parquet)
        write(directory / "report.md", to_markdown(document))
        write(directory / "report.html", to_html(document))
    except OSError as error:
        raise BadInputError(f"{directory}: the report cannot be written: {error.strerror}") from None
    return summary


def write_tables(results: Results, summary: Summary, directory: Path, parquet: bool) -> None:
    """Write `summary.json` and the tables of numbers. Raises `OSError`."""
    write(directory / "summary.json", to_json(summary))
    for table in data_tables(results, summary):
        write(directory / f"{table.name}.csv", table.csv)
        if parquet:
            write_parquet(table, directory)
    if parquet:
        write_requests(results, directory)


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
        details=verdict.details,
        has_verdict=verdict.has_verdict,
        warnings=warnings(summary),
        hero=hero_of(pictures),
        sections=campaign_sections(summary, pictures),
    )


def hero_of(pictures: Sequence[Picture]) -> Picture | None:
    """The picture of the first screen: the verdict's forest plot, or quantiles where there is none."""
    return next((picture for picture in pictures if picture.name in ("verdict", "latency-quantiles")), None)


def campaign_sections(summary: Summary, pictures: Sequence[Picture]) -> list[Section]:
    """Statistics, figures, details, comparisons and method, in the order of reading; the last are folded."""
    drawn = {picture.name: picture for picture in pictures}
    replaced, paired, share = uniform(summary), comparison_table(summary), share_table(summary)
    beside = {"verdict", "paired-ratios", "share-per-worker"}
    if hero := hero_of(pictures):
        beside.add(hero.name)
    statistics, tail = statistics_table(summary), tail_table(summary)
    thresholds, runs = threshold_table(summary), run_table(summary)
    several = len(summary.entries) > 1 and not is_live(summary)
    lines = [replaced["throughput"]] if several and "throughput" in replaced else []
    shares = [replaced["share-per-worker"]] if "share-per-worker" in replaced else []
    return [
        Section(thresholds.title, table=thresholds.if_any, folded=not summary.failed_thresholds),
        Section(statistics.title, lines=lines, table=statistics),
        *(Section(table.title, table=table) for table in (token_table(summary),) if table),
        *(Section(picture.title, picture) for picture in pictures if picture.name not in beside),
        Section(share.title, drawn.get("share-per-worker"), shares, share.if_any),
        Section(tail.title, table=tail),
        Section(paired.title, drawn.get("paired-ratios"), table=paired.if_any, folded=True),
        Section(f"{runs.title} ({len(runs.rows)})", table=runs, folded=True),
        Section("Method", lines=method_lines(summary), folded=True),
    ]


def warnings(summary: Summary) -> list[Section]:
    """Invalid runs, repeated blocks, missing runs, failed thresholds, a time scale; those that apply have lines."""
    missing = [f"{summary.missing_runs} planned runs are missing: the campaign was stopped or failed."]
    failed = [f"{j.label}: {j.threshold} — {j.message}" for j in summary.failed_thresholds]
    scale = summary.scenario.time_scale
    repeated = repetitions((*summary.runs, *summary.set_aside))
    attempts = len({(run.block, run.set_aside) for run in summary.set_aside})
    return [
        Section("Invalid runs: do not believe their figures", lines=invalid_lines(summary.runs)),
        Section(
            f"Measured again: {attempts} attempts at blocks set aside", lines=repeated if attempts else []
        ),
        Section("Incomplete campaign", lines=missing if summary.missing_runs else []),
        Section("Thresholds failed", lines=failed),
        Section("Compressed time", lines=[f"1 s of the scenario took {scale:g} s."] if scale != 1 else []),
    ]
