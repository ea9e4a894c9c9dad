"""Figures of a campaign's report: titles, captions, and the functions that draw them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from balancer.syntax.printable import with_digits
from experiments.report import canvas, figures, figures_time, figures_workers
from experiments.report.charts import latency_charts, rate_charts, tail_charts
from experiments.report.document import Chart, Picture
from experiments.report.figures_time import Bins, Shading, bins_of, shadings
from experiments.report.palette import MAX_DRAWN, Competitor, competitors
from experiments.results.directory import Results
from experiments.scenario.scenario import Scenario
from experiments.scenario.service import LiveScenario
from experiments.stats.ceiling import GOODPUT
from experiments.stats.comparison import EQUAL_WITHIN, floor_between
from experiments.stats.measures import LEAST_BEYOND, deadline_mapped, percentile
from experiments.verdict.summary import Summary

SAME_SHARE = 0.01
"""Largest difference of a worker's share between entries that counts as none."""

SAME_RATIO = 0.001
"""Logarithm of a ratio below which it is 1: a measure in which all are 1, as p99 at the deadline, has no panel."""

OF_WORKERS = ("share-per-worker", "in-flight-per-worker")
"""Figures that show single workers."""

OF_SUCCESSES = ("verdict", "paired-ratios", "latency-quantiles", "latency-distribution")
"""Figures that would be empty where every request failed."""

BY_INSTANT = ("throughput", "in-flight-per-worker", "service-time-by-request")
"""Figures that histograms of a balancer's own traffic have no data for: its rate is not the policy's."""


@dataclass(frozen=True, slots=True)
class Drawing:
    """A figure of the report: file name, title, caption, the function that draws it, and that of its charts."""

    name: str
    title: str
    caption: str
    draw: Callable[[], Figure]
    charts: Callable[[], Sequence[Chart]] = tuple


def save_drawing(drawing: Drawing, directory: Path | None) -> Picture:
    """Draw a figure and save it as SVG and PNG, if there is a directory."""
    figure = canvas.settle(drawing.draw())
    svg = canvas.to_svg(figure)
    if directory is not None:
        directory.mkdir(parents=True, exist_ok=True)
        (directory / f"{drawing.name}.svg").write_bytes(svg)
        (directory / f"{drawing.name}.png").write_bytes(canvas.to_png(figure))
    narrow = figure.get_figwidth() < canvas.WIDTH
    return Picture(drawing.name, drawing.title, drawing.caption, svg, drawing.charts(), narrow)


def drawings(results: Results, summary: Summary) -> list[Drawing]:
    """Figures of the campaign, entries in the order of the verdict; one without information is left out."""
    field = drawn_field(results, summary)
    scenario = results.scenario
    # with another batch runs take another time, and time axes are common
    timed = [one for one in field if scenario.entry(one.label).batch is None] or field
    during = shadings(scenario.events, scenario.time_scale)
    several = len(scenario.regions) > 1
    has_bands = len(scenario.workers) > MAX_DRAWN
    made = [
        *paired_drawing(field, summary),
        Drawing(
            "latency-quantiles",
            "Latency quantiles",
            "Further left is better, and a short line is a steady policy. Successes only; hollow grey marks have fewer "
            "than 100 samples beyond them, and those with fewer than 10 are left out.",
            lambda: figures.latency_quantiles(field),
        ),
        *charted_drawings(field, timed, scenario),
        Drawing(
            "throughput",
            "Throughput",
            "Longer is better. Successes per second over the whole run, the start and the last responses included.",
            lambda: figures.throughput_bars(field),
        ),
        Drawing(
            "share-per-worker",
            "Share per worker",
            "Answered requests of each worker. One hue per region, one shade per worker."
            + " A policy without regions gives equal parts; one with regions prefers near workers." * several,
            lambda: figures_workers.worker_share(field),
        ),
        Drawing(
            "in-flight-per-worker",
            "In flight per worker",
            "Requests that a worker had at each instant of the entry's first run. Lines that stay together share the "
            "load; one that climbs alone is a queue that the policy feeds. Dashed, if there are any: requests that "
            "ended without an answer, as at a worker that hangs; which worker had them is not known."
            + " Of so many workers: the median of each region, in a band from its least to its most."
            * has_bands,
            lambda: figures_time.in_flight_per_worker(timed, during),
        ),
        Drawing(
            "service-time-by-request",
            "Service time against request number",
            "Each dot is a request of the first run of the entry, from sent to last byte. Level bands are "
            "round trips; a slope is a queue that grows at a worker. Vertical axes are equal."
            + figures_workers.thinning(field),
            lambda: figures_workers.service_by_request(field),
        ),
    ]
    left_out = {*uniform(summary)}
    if not any(run.samples.ok.any() for run in results.runs):
        left_out.update(OF_SUCCESSES)
    if not any(run.facts.places for run in results.runs):  # a service whose workers are unknown
        left_out.update(OF_WORKERS)
    if isinstance(scenario, LiveScenario):
        left_out.update(BY_INSTANT)
    return [drawing for drawing in made if drawing.name not in left_out]


def drawn_field(results: Results, summary: Summary) -> list[Competitor]:
    """Entries in the order of the summary, without the A/A control, which looks like the entry that it repeats."""
    place = {entry.label: index for index, entry in enumerate(summary.entries)}
    field = sorted(competitors(results), key=lambda one: place[one.label])
    repeated = (results.scenario.control_pair or ("", ""))[1]
    return [one for one in field if one.label != repeated] or field


SHADED = " Shaded: what the scenario does to workers."
POOLED = "All valid runs of an entry together, by the instant at which a request was due"
MAPPED = f"{POOLED}; a failure counts as slow as the deadline."
FAILED = f"{POOLED}. Successes only, because more than 1 % of the requests failed under every entry."


def all_at_deadline(field: Sequence[Competitor]) -> bool:
    """Whether the p99 of every entry is the deadline, so that a line of it would be level."""
    return all(
        percentile(np.concatenate([deadline_mapped(run) for run in one.runs]), 99)
        >= 0.99 * one.runs[0].facts.timeout
        for one in field
    )


def charted_drawings(
    field: Sequence[Competitor], timed: Sequence[Competitor], scenario: Scenario
) -> list[Drawing]:
    """Figures with interactive charts: latency of `field`; rates and tail of `timed`, if instants are known."""
    several = len(scenario.regions) > 1
    distribution = Drawing(
        "latency-distribution",
        "Latency distribution",
        f"First the share of all requests that were answered within a time{': each step is a region' * several}; a "
        "curve that ends below 100 % had failures. Then the same with the tail enlarged, up to the tenth slowest.",
        lambda: figures.latency_distribution(field),
        lambda: latency_charts(field),
    )
    if isinstance(scenario, LiveScenario):
        return [distribution]
    during = shadings(scenario.events, scenario.time_scale)
    is_mapped = not all_at_deadline(timed)
    bins = bins_of(timed, is_mapped)
    tail = bins and tail_drawing(timed, bins, during, MAPPED if is_mapped else FAILED)
    rate = Drawing(
        "rate-over-time",
        "Requests and errors over time",
        "Successes per second by the instant of their last byte, and errors per second, if there are any, by that at "
        f"which they were known; averages over the valid runs of an entry.{SHADED * bool(during)}",
        lambda: figures_time.rate_over_time(timed, during),
        lambda: rate_charts(timed, during),
    )
    return [distribution, rate, *([tail] if tail else [])]


def tail_drawing(
    field: Sequence[Competitor], bins: Bins, events: Sequence[Shading], requests: str
) -> Drawing:
    """The tail over time, with the percentile that the number of requests supports; `requests` says which count."""
    name = f"p{bins.percent:g}"
    caption = f"{requests} A line has a gap where there are too few requests."
    if bins.percent != 99:
        caption += f" It is {name} because a point needs {LEAST_BEYOND} requests beyond it."
    if events:
        caption += (
            f"{SHADED} A tail that falls before the shading ends belongs to a policy that avoids the fault."
        )
    draw = partial(figures_time.tail_over_time, field, events, bins)
    charts = partial(tail_charts, field, bins, events)
    return Drawing("tail-over-time", f"{name} over time", caption, draw, charts)


def uniform(summary: Summary) -> dict[str, str]:
    """Figures that are left out because all their bars would be equal: name -> the sentence that replaces it."""
    found: dict[str, str] = {}
    rates = [entry.table.rate for entry in summary.entries if entry.table.rate > 0]
    if not rates:
        found["throughput"] = "No request succeeded, so there is no figure of throughput."
    elif math.log(max(rates) / min(rates)) <= EQUAL_WITHIN:
        shown = f"{with_digits(min(rates), 4)} to {with_digits(max(rates), 4)}"
        found["throughput"] = (
            f"Throughput is equal within 5 %: {shown} successes per second under every entry."
        )
    shares = [tuple(entry.share_per_worker.values()) for entry in summary.entries]
    spreads = [max(parts) - min(parts) for parts in zip(*shares, strict=False)]
    if spreads and max(spreads) <= SAME_SHARE:
        part = f" (within {100 * SAME_SHARE:g} points)" if len(shares) > 1 else ""
        found["share-per-worker"] = (
            f"Every entry gave each worker the same share{part}, so there is no figure of it."
        )
    return found


ODDS = " Where both p99 are the deadline, the odds of a late or failed answer decide, in their own panel."
BOUNDS = " An arrow is a bound, without an interval: the p99 of one of both is the deadline."


def paired_drawing(field: Sequence[Competitor], summary: Summary) -> list[Drawing]:
    """The forest plots, if there are paired blocks: one of the deciding measure, one also of the other latencies."""
    decides, baseline = summary.measure, summary.scenario.baseline
    paired = [
        one
        for one in summary.comparisons
        if one.interval.blocks >= 2
        and (one.measure == decides or one.judged_by == one.measure != "throughput")
    ]
    differing = {one.measure for one in paired if abs(math.log(one.interval.ratio)) > SAME_RATIO}
    paired = [one for one in paired if one.measure == decides or one.measure in differing]
    if not paired:
        return []
    control = summary.scenario.control_pair
    floors = {
        measure: floor
        for measure, whole in summary.noise_floor.items()
        if summary.world != "simulated" and (floor := floor_between(whole, control, baseline)) is not None
    }
    noise = "a point inside the yellow band is within the bias that the same policy run twice shows. "
    deciding = [one for one in paired if one.measure == decides]
    marks = ODDS * any(one.judged_by == GOODPUT for one in deciding)
    marks += BOUNDS * any(one.at_deadline for one in paired)
    hero = Drawing(
        "verdict",
        "The verdict",
        f"Each entry over {baseline} by {decides}, with its 95 % interval. A filled point is ahead or behind; an "
        f"interval inside the grey band is practically equal.{marks}",
        lambda: figures.forest(field, deciding, floors, canvas.NARROW),
    )
    caption = (
        f"Each point is an entry over {baseline}, paired inside blocks, with its 95 % interval; "
        f"sorted by {decides}, which decides. An interval that lies wholly inside the grey band is practically equal"
        f"{'; ' + noise if floors else '. '}A filled point is ahead or behind: its p-value, adjusted by "
        f"Holm over all entries, is below 5 %.{marks}"
    )
    draw = partial(figures.forest, field, paired, floors)
    return [*([hero] if deciding else []), Drawing("paired-ratios", "Against the baseline", caption, draw)]
