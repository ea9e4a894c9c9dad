"""The report of a results directory, from its files alone.

`write_report` works on any directory with at least one run, any number of times, and the same runs give the same
summary byte for byte. It writes, beside the raw samples:

    summary.json  summary.csv  shares.csv  comparisons.csv  report.md  report.html  figures/*.svg  figures/*.png

and, with `parquet`, the tables of the CSV files and all requests as *.parquet.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from experiments.errors import BadInputError
from experiments.platform.json_values import plainly
from experiments.report.document import Document, Picture, Section, to_html, to_markdown
from experiments.report.drawings import drawings, save_drawing, uniform
from experiments.report.entry_tables import statistics_table, tail_table, token_table
from experiments.report.exports import data_tables, write_parquet, write_requests
from experiments.report.tables import comparison_table, is_live, run_table, share_table, threshold_table
from experiments.results.directory import Results, load_results
from experiments.scenario.scenario import Scenario
from experiments.scenario.service import LiveScenario, RunningScenario, ServiceScenario
from experiments.stats.comparison import ENOUGH_BLOCKS
from experiments.stats.measures import ACHIEVED_LIMIT, MOST_LAG
from experiments.stats.run_summary import RunSummary
from experiments.verdict.disturbed import repetitions
from experiments.verdict.summary import Summary, summarise
from experiments.verdict.verdict import noise_line


def write_report(directory: Path, parquet: bool = False, out: Path | None = None) -> Summary:
    """Write every output beside the runs or into `out`, with `parquet` also as Parquet. Raises `BadInputError` when it
    cannot."""
    results = load_results(directory)
    summary, directory = summarise(results), out or directory
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


def to_json(summary: Summary) -> str:
    """The whole summary as JSON. Times in seconds, shares from 0 to 1."""
    plain = {**plainly(summary), "valid": not summary.has_invalid, "format": 1}
    return json.dumps(plain, indent=2, ensure_ascii=False) + "\n"


def invalid_lines(runs: Sequence[RunSummary]) -> list[str]:
    """One line per invalid run with its reasons."""
    return [
        f"{run.label}, block {run.block + 1}: {'; '.join(run.invalid_reasons)}"
        for run in runs
        if not run.valid
    ]


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
        Section(thresholds.title, table=thresholds.if_any, folded=not summary.unmet_thresholds),
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
    """Invalid runs, repeated blocks, missing runs, thresholds not met, a time scale; those that apply have lines."""
    missing = [f"{summary.missing_runs} planned runs are missing: the campaign was stopped or failed."]
    failed = [f"{j.label}: {j.threshold} — {j.message}" for j in summary.unmet_thresholds]
    scale = summary.scenario.time_scale
    repeated = repetitions((*summary.runs, *summary.set_aside))
    attempts = len({(run.block, run.set_aside) for run in summary.set_aside})
    return [
        Section("Invalid runs: do not believe their figures", lines=invalid_lines(summary.runs)),
        Section(
            f"Measured again: {attempts} attempts at blocks set aside", lines=repeated if attempts else []
        ),
        Section("Incomplete campaign", lines=missing if summary.missing_runs else []),
        Section("Thresholds not met", lines=failed),
        Section("Compressed time", lines=[f"1 s of the scenario took {scale:g} s."] if scale != 1 else []),
    ]


SIMULATED = (
    "Simulated: the balancer's own policies and mechanisms in virtual time; workers, network and clients are worked "
    "out. Nothing was measured."
)


def method_lines(summary: Summary) -> list[str]:
    scenario = summary.scenario
    lines = [
        f"Repeat it: {summary.command}",
        *setup_lines(scenario),
        blocks_text(summary),
        *([] if isinstance(scenario, LiveScenario) else generator_lines(scenario)),
        noise_line(summary.noise_floor.get(summary.measure), summary.world == "simulated"),
        f"Started {summary.started_at} on {summary.machine}.",
        "Versions: " + ", ".join(f"{name} {version}" for name, version in summary.versions.items()) + ".",
        *(f"Policy file: {file.path}, version {file.version}." for file in summary.policy_files),
    ]
    simulated = [SIMULATED] if summary.world == "simulated" else []
    source = [f"Source: {scenario.source}"] if scenario.source else []
    if (scale := scenario.time_scale) != 1:
        lines.append(
            f"Time scale {scale:g}: 1 s of the scenario took {scale:g} s. Figures are in measured time."
        )
    return [*simulated, *source, *lines]


def generator_lines(scenario: Scenario) -> list[str]:
    """The load, what is measured of it, and when its generator makes a run invalid."""
    end = "last byte" if scenario.inference is None else "first token"
    return [
        load_text(scenario),
        f"Latency runs from the instant at which a request was due to its {end}, service time from the instant at "
        "which it was sent.",
        f"A run is invalid when the generator's lag may be more than {100 * MOST_LAG:g} % of its mean or p99, when it "
        f"was interrupted, or when an open loop sent less than {ACHIEVED_LIMIT:.0%} of the offered rate.",
        "Its block then counts for no entry, because an entry may itself make the generator late, and a difference "
        "that the late runs contradict is undecided. In valid runs, too, one is claimed only if it is there without "
        "the lag.",
        f"Seed {scenario.seed}: the same arrivals and demand for every entry of a block.",
    ]


def setup_lines(scenario: Scenario) -> list[str]:
    """What gets the load, and its warm-up."""
    if isinstance(scenario, LiveScenario):
        return [
            f"Set-up: the balancer at {scenario.url}, which ran already, and its own traffic. Each policy has "
            f"{scenario.period:g} s in a block; the first {scenario.washout:g} s do not count, in which requests that "
            "its predecessor placed are answered.",
            "Latency runs from the instant of sending a request to a worker to its last byte, from histograms with "
            "buckets a tenth wide: within 5 %. Failures are errors of the balancer, rejections included, and 5xx.",
        ]
    if isinstance(scenario, ServiceScenario):
        return [
            f"Set-up: a service that ran already. {scenario.service.in_words}.",
            f"Warm-up: {scenario.service.warmup:g} s of the same rate before each run, kept out of every figure.",
        ]
    if (asked := scenario.inference) is not None:
        return [
            f"Set-up: {engines_text(scenario)}. Each computes {asked.prefill:g} tokens of prompts per second, a step "
            f"of {asked.base * 1e3:g} ms and {asked.per_sequence * 1e3:g} ms per answer, at most {asked.max_batch} at "
            f"a time, and caches {asked.kv_tokens} tokens. Caches are empty at the start."
        ]
    return [
        f"Set-up: {regions_text(scenario)}; home region {scenario.home_region}.",
        f"Warm-up: {scenario.warmup} requests per worker before each run, kept out of every figure.",
    ]


def engines_text(scenario: Scenario) -> str:
    """Describe balancers and engines, for example `1 balancer; here 8 engines at 0 ms RTT`."""
    regions = (f"{one.name} {one.workers} engines at {one.rtt * 1e3:g} ms RTT" for one in scenario.regions)
    return "; ".join((f"{scenario.balancers} balancer{'s' * (scenario.balancers != 1)}", *regions))


def regions_text(scenario: Scenario) -> str:
    """Describe each region, for example `emea 2 workers at 350 ms RTT (service 19-21ms, 1 slot)`."""
    return "; ".join(
        f"{region.name} {region.workers} workers at {region.rtt * 1e3:g} ms RTT "
        f"(service {region.service}, {region.slots} slot{'s' * (region.slots != 1)})"
        for region in scenario.regions
    )


def load_text(scenario: Scenario) -> str:
    """Describe the load, including the meaning of "batch"."""
    load = scenario.load
    if load.mode == "open":
        return (
            f"Load: open loop, {load.in_words} arrivals for {load.duration:g} s at "
            "instants fixed beforehand; a slow answer delays no later request."
        )
    return (
        f"Load: closed loop, {load.requests} requests, a sliding batch of {load.batch} (an entry may have "
        "its own): as soon as one returns the next is sent. A request is due when its slot becomes free."
    )


def blocks_text(summary: Summary) -> str:
    planned = summary.scenario.blocks
    missing = f", {summary.missing_runs} planned runs are missing" if summary.missing_runs else ""
    is_fresh = not isinstance(summary.scenario, RunningScenario)
    fresh = ", with fresh workers and a fresh balancer for every run" if is_fresh else ""
    return (
        f"Randomised complete blocks: {planned} planned, {summary.blocks} with valid runs{missing}. Each "
        f"block runs every entry once in a fresh random order{fresh}. An interval takes {ENOUGH_BLOCKS} blocks."
    )
