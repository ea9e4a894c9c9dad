"""Figures of a campaign's report: titles, captions, and the functions that draw them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure

from experiments.report import canvas, figures, figures_paired, figures_time, figures_workers
from experiments.report.document import Picture
from experiments.report.palette import MOST_DRAWN, competitors
from experiments.report.thinning import thinned, thinning
from experiments.results.directory import Results
from experiments.results.summary import Summary

OF_WORKERS = ("share-per-worker", "in-flight-per-worker")
"""Figures that show single workers."""


@dataclass(frozen=True, slots=True)
class Drawing:
    """A figure of the report: file name, title, caption, and the function that draws it."""

    name: str
    title: str
    caption: str
    draw: Callable[[], Figure]


def save_drawing(drawing: Drawing, directory: Path) -> Picture:
    """Draw a figure and save it as SVG and PNG."""
    directory.mkdir(parents=True, exist_ok=True)
    figure = canvas.settle(drawing.draw())
    svg = canvas.to_svg(figure)
    (directory / f"{drawing.name}.svg").write_bytes(svg)
    (directory / f"{drawing.name}.png").write_bytes(canvas.to_png(figure))
    return Picture(drawing.name, drawing.title, drawing.caption, svg)


def drawings(results: Results, summary: Summary) -> list[Drawing]:
    """Figures of the campaign; paired ratios only from two blocks on."""
    field = competitors(results)
    few = thinned(field)
    made = [
        Drawing(
            "throughput",
            "Throughput",
            "Longer is better. Successes per second over the whole run, the start and the last "
            "responses included; entries of one policy share its colour and differ by hatching.",
            lambda: figures.throughput_bars(field),
        ),
        Drawing(
            "latency-quantiles",
            "Latency quantiles",
            "Further left is better, and a short line is a steady policy. Successes only; hollow grey marks "
            "rest on fewer than 100 samples beyond them and should not be ranked.",
            lambda: figures.latency_quantiles(field),
        ),
        Drawing(
            "latency-distribution",
            "Latency distribution",
            "First the share of all requests that were answered within a time: each step is a region, and a "
            "curve that ends below 100 % had failures. Then the same with the tail enlarged.",
            lambda: figures.latency_distribution(field),
        ),
        Drawing(
            "share-per-worker",
            "Share per worker",
            "Answered requests of each worker. One hue per region, one shade per worker. A policy without regions "
            "gives equal parts; one with regions prefers near workers.",
            lambda: figures_workers.worker_share(field),
        ),
        Drawing(
            "service-time-by-request",
            "Service time against request number",
            "Each dot is a request of the first run of the entry, from sent to last byte. Level bands are "
            f"round trips; a slope is a queue that grows at a worker. Vertical axes are equal.{thinning(field)}",
            lambda: figures_workers.service_by_request(few),
        ),
        Drawing(
            "tail-over-time",
            "p99 over time",
            "All valid runs of an entry together, by the instant at which a request was due. Shaded: what the scenario "
            "does to workers. A tail that falls before the shading ends belongs to a policy that avoids the fault.",
            lambda: figures_time.tail_over_time(field, results.scenario),
        ),
        Drawing(
            "in-flight-per-worker",
            "In flight per worker",
            "Requests that a worker had at each instant of the entry's first run. Lines that stay together share the "
            "load; one that climbs alone is a queue that the policy feeds. Of more than "
            f"{MOST_DRAWN} workers: the median of each region, in a band from its least to its most.",
            lambda: figures_time.in_flight_per_worker(field, results.scenario),
        ),
        Drawing(
            "latency-over-time",
            "Latency over time",
            "The first run of each entry over its own time; vertical axes are equal. A level band is "
            "a stable system, a rising one is overloaded.",
            lambda: figures_workers.latency_over_time(field),
        ),
    ]
    if not any(run.facts.places for run in results.runs):  # a service whose workers are unknown
        made = [drawing for drawing in made if drawing.name not in OF_WORKERS]
    return [*made, *paired_drawing(results, summary)]


def paired_drawing(results: Results, summary: Summary) -> list[Drawing]:
    """The forest plot, if there are paired blocks."""
    paired = [comparison for comparison in summary.comparisons if comparison.interval.blocks >= 2]
    if not paired:
        return []
    field = competitors(results)
    caption = (
        f"Each point is an entry over {summary.scenario.baseline}, paired inside blocks, with its 95 % "
        "interval. Intervals that touch the grey band are practically equal; those inside the yellow one are noise."
    )
    draw = lambda: figures_paired.forest(field, paired, summary.noise_floor)  # noqa: E731
    return [Drawing("paired-ratios", "Against the baseline", caption, draw)]
