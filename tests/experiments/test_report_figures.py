"""Figures of a report: colours in the dark, what counts over time, size."""

from __future__ import annotations

import io
import math
import re
from base64 import b64decode
from dataclasses import replace
from itertools import combinations, pairwise
from pathlib import Path
from urllib.parse import unquote

import numpy as np
import pytest
from matplotlib.patches import Rectangle
from matplotlib.text import Annotation
from PIL import Image

from experiments.inference.run import SimulatedRunner
from experiments.report.canvas import NARROW, PNG_DPI, blank, drawing, settle, with_palette
from experiments.report.drawings import drawings, uniform
from experiments.report.figures import RATIOS, apart, forest, latency_distribution, latency_quantiles
from experiments.report.figures_time import (
    LABEL,
    bins_of,
    draw_tail,
    in_flight_per_worker,
    rate_over_time,
    shadings,
    tail_over_time,
)
from experiments.report.figures_workers import service_by_request
from experiments.report.pages import write_report
from experiments.report.palette import DARK, REGION_COLOURS, SPARE_COLOURS, WHITE, competitors, luminance
from experiments.results.directory import load_results, save_result
from experiments.run_data import Run
from experiments.running.execute import prepare
from experiments.running.runner import Observer
from experiments.scenario.files import load_scenario
from experiments.scenario.overrides import Overrides, overridden
from experiments.service.plan import contestants_of, service_scenario
from experiments.stats.ceiling import GOODPUT
from experiments.stats.comparison import Comparison, Interval
from experiments.verdict.summary import summarise
from policies import registry
from tests.support.result_sets import write_results
from tests.support.runs import as_planned, run_of, samples_of


def test_workers_keep_their_shades_in_the_dark() -> None:
    """A worker's colour that were a policy's would be exchanged with it, and the shades of a region change places."""
    assert not DARK.keys() & {shade.lower() for pair in REGION_COLOURS for shade in pair}
    shades = [colour for pair in REGION_COLOURS for colour in pair]
    assert min((luminance(shade) + 0.05) / (luminance(DARK[WHITE]) + 0.05) for shade in shades) > 1.9


def test_a_picture_in_a_figure_has_a_palette() -> None:
    """The same dots, in at most 256 colours."""
    pixels = np.zeros((20, 30, 4), dtype=np.uint8)
    pixels[3:5, 7:9] = (10, 200, 30, 255)
    png = io.BytesIO()
    Image.fromarray(pixels).save(png, "png")
    with Image.open(io.BytesIO(b64decode(with_palette(png.getvalue())))) as made:
        assert made.mode == "P"
        assert (np.asarray(made.convert("RGBA")) == pixels).all()


def test_a_failure_is_as_slow_as_the_deadline_over_time(tmp_path: Path) -> None:
    """Otherwise an entry whose slow requests all time out looks fast. A log does not know a deadline."""
    scenario = write_results(tmp_path / "r", blocks=1, requests=1500, failures=0.3)
    (one, *_) = field = competitors(load_results(tmp_path / "r"))
    bins, of_log = bins_of(field), bins_of(field, is_mapped=False)
    assert bins is not None
    assert of_log is not None
    drawn, of_successes = ([max(draw_tail(blank(2)[1][0], one, each))] for each in (bins, of_log))
    assert drawn == [1e3 * scenario.timeout]
    assert of_successes < drawn


def test_a_tail_at_the_deadline_is_not_drawn(tmp_path: Path) -> None:
    """Where every entry fails more than 1 %, a level line says nothing; nor does a panel of ratios of 1."""
    write_results(tmp_path / "r", blocks=2, requests=1500, failures=0.1)
    results = load_results(tmp_path / "r")
    summary = summarise(results)
    found = {drawing.name: drawing for drawing in drawings(results, summary)}
    assert "Successes only, because more than 1 % of the requests failed" in found["tail-over-time"].caption
    panels = [axes.get_xlabel().split(" ")[0] for axes in found["paired-ratios"].draw().axes]
    assert "p99" in {one.measure for one in summary.comparisons}
    assert panels == ["throughput", "mean"]


def test_figures_of_successes_need_one(tmp_path: Path) -> None:
    write_results(tmp_path / "r", blocks=2, requests=50, failures=1.0)
    results = load_results(tmp_path / "r")
    summary = summarise(results)
    names = {drawing.name for drawing in drawings(results, summary)}
    assert "rate-over-time" in names
    assert not names & {"verdict", "paired-ratios", "latency-quantiles", "latency-distribution", "throughput"}
    assert uniform(summary)["throughput"] == "No request succeeded, so there is no figure of throughput."


def test_the_verdict_has_a_picture_where_goodput_decides(tmp_path: Path) -> None:
    """Also where it decides for one entry, and for another, which seldom fails, the p99 does."""
    write_results(tmp_path / "r", blocks=1, requests=100)
    results = load_results(tmp_path / "r")
    summary = summarise(results)
    base, *others = [entry.label for entry in summary.entries]
    behind = Comparison(others[0], base, "p99", Interval(3.3, 2.9, 3.8, 8), 0.01, "behind", GOODPUT)
    far = Interval(0.0022, 0.0021, 0.0023, 8)
    ahead = Comparison(others[1], base, "p99", far, 0.01, "ahead", at_deadline=base)
    summary = replace(summary, measure="p99", comparisons=(behind, ahead))
    hero = next(one for one in drawings(results, summary) if one.name == "verdict")
    assert "odds of a late or failed answer" in hero.caption
    assert "An arrow is a bound" in hero.caption
    figure = hero.draw()
    odds, p99 = figure.axes
    assert [len(odds.get_yticklabels()), odds.get_xticks()[-1], p99.get_xticks()[0]] == [2, 3, 0.002]
    for axes, name, mark in ((odds, "odds of a miss /", "o"), (p99, "p99 /", "<")):
        assert {line.get_marker() for line in axes.lines} & {"o", "<"} == {mark}
        assert axes.get_xlabel().startswith(name)
    assert "bound" in [text.get_text() for legend in figure.legends for text in legend.get_texts()]
    hero = next(
        one for one in drawings(results, replace(summary, comparisons=(behind,))) if one.name == "verdict"
    )
    figure = hero.draw()
    (alone,) = figure.axes
    assert alone.get_xlabel().startswith("odds of a miss /")
    assert figure.get_figwidth() == NARROW


def test_no_name_is_cut_off(tmp_path: Path) -> None:
    """25 entries with names of 60 characters, with and without spaces, in the resolution of the files."""
    write_results(tmp_path / "r", blocks=1, requests=100)
    (one, *_) = competitors(load_results(tmp_path / "r"))
    name = "x" * 57
    field = [replace(one, label=f"{n:02d} {name if n % 2 else 'an option and ' * 4}"[:60]) for n in range(25)]
    interval = Interval(1.1, 1.0, 1.2, 8)
    pairs = [
        Comparison(each.label, field[0].label, measure, interval, 0.5, "undecided")
        for measure in ("throughput", "mean", "p99")
        for each in field[1:]
    ]
    drawn = {
        "narrow": forest(field, pairs[:24], {}, NARROW),
        "wide": forest(field, pairs, {}),
        "legend": latency_distribution(field),
        "rows": latency_quantiles(field),
        "panels": rate_over_time(field, []),
    }
    for place, figure in drawn.items():
        settle(figure).set_dpi(PNG_DPI)
        with drawing():
            figure.draw_without_rendering()
        shown = [axes for axes in figure.axes if axes.get_visible()]
        boxes = [text.get_window_extent() for legend in figure.legends for text in legend.get_texts()]
        for axes in shown:
            boxes += [label.get_window_extent() for label in axes.get_yticklabels()]
            boxes += [text.get_window_extent() for text in (axes.xaxis.label, axes.title)]
        assert all(box.x0 >= 0 and box.x1 <= figure.bbox.width for box in boxes), place
        assert all(axes.xaxis.label.get_window_extent().y0 >= 0 for axes in shown), place
        for texts in ([axes.title for axes in shown], [axes.xaxis.label for axes in shown]):
            extents = [text.get_window_extent() for text in texts if text.get_text()]
            assert not any(one.overlaps(other) for one, other in combinations(extents, 2)), place


def test_figures_over_time_have_one_time_axis(tmp_path: Path) -> None:
    """All panels of both figures, with the same shading; labels of events are above the lines."""
    write_results(tmp_path / "r", blocks=2, requests=1500)
    field = competitors(load_results(tmp_path / "r"))
    events = shadings(load_scenario("region-brownout").events[:1], 1.0)
    bins = bins_of(field)
    assert bins is not None
    tail = tail_over_time(field, events, bins)
    depth = in_flight_per_worker(field, events)
    panels = [axes for figure in (tail, depth) for axes in figure.axes if axes.get_visible()]
    assert len(panels) == 2 * len(field)
    assert len({axes.get_xlim() for axes in panels}) == 1
    shaded = [patch for axes in panels for patch in axes.patches if isinstance(patch, Rectangle)]
    assert len(shaded) == len(panels)
    assert len({(patch.get_x(), patch.get_width()) for patch in shaded}) == 1
    for axes in panels:
        heights = [np.asarray(line.get_ydata(), dtype=float) for line in axes.lines]
        highest = max(float(np.nanmax(each)) for each in heights if len(each))
        (label,) = axes.texts
        assert isinstance(label, Annotation)
        reached = axes.transAxes.inverted().transform(axes.transData.transform((0, highest)))[1]
        assert reached <= label.xy[1] - LABEL + 0.03


def test_requests_without_an_answer_are_in_flight(tmp_path: Path) -> None:
    """Or a worker that hangs, whose requests all time out, would look idle."""
    write_results(tmp_path / "r", blocks=1, requests=1500, failures=0.3)
    (one, *_) = competitors(load_results(tmp_path / "r"))
    (run,) = one.runs
    samples = replace(run.samples, worker=np.where(run.samples.ok, run.samples.worker, -1))
    figure = in_flight_per_worker([replace(one, runs=(replace(run, samples=samples),))], [])
    lines = figure.axes[0].lines
    instants = np.asarray(lines[0].get_xdata())
    lying = sum(np.asarray(line.get_ydata()) for line in lines)
    open_then = (samples.sent_at[:, None] <= instants) & (samples.ended_at[:, None] > instants)
    assert (lying == open_then.sum(0)).all()
    assert "without an answer" in {text.get_text() for text in figure.legends[0].get_texts()}


def test_labels_of_minutes_do_not_touch(tmp_path: Path) -> None:
    """And are no multiples of a power of ten, which would stand in the title of a panel."""
    write_results(tmp_path / "r", blocks=1, requests=500)
    (one, *_) = competitors(load_results(tmp_path / "r"))
    samples = one.runs[0].samples
    ended = samples.sent_at + np.geomspace(1, 1500, len(samples))
    samples = replace(samples, first_byte_at=ended, ended_at=ended)
    slow = replace(one, runs=(replace(one.runs[0], samples=samples),))
    figures = latency_distribution([slow]), latency_quantiles([slow]), service_by_request([slow] * 3)
    for figure in map(settle, figures):
        with drawing():
            figure.draw_without_rendering()
        for axes in figure.axes:
            assert not axes.yaxis.get_offset_text().get_text()
            extents = [label.get_window_extent() for label in axes.get_xticklabels() if label.get_text()]
            assert not any(one.overlaps(other) for one, other in pairwise(extents))


@pytest.mark.parametrize(("low", "high"), [(0.02, 1.1), (0.3, 1.5), (0.04, 22.0), (0.9, 1.1)])
def test_labels_of_ratios_do_not_touch(low: float, high: float) -> None:
    """1 is always there."""
    found = apart(RATIOS, low, high)
    assert 1 in found
    gaps = np.diff(np.log(found)) / math.log(high / low)
    assert gaps.min(initial=1) >= 0.13 - 1e-9


@pytest.mark.second_tier
@pytest.mark.timeout(300)
def test_the_report_of_the_largest_usual_campaign_has_three_megabytes(tmp_path: Path) -> None:
    """Every policy in forty blocks of full length, many requests failed; nothing is loaded from another host.

    Every entry is simulated once and its run stands for all blocks, because the size is what matters here.
    """
    names = tuple(name for name in registry.TABLE if name != "single-region")  # which needs a region
    scenario = overridden(load_scenario("overload"), Overrides(policies=names, blocks=40))
    campaign = prepare(scenario, "experiments run overload", tmp_path, "simulated")
    runs: dict[str, Run] = {}
    for planned in campaign.plan:
        if planned.label not in runs:
            runs[planned.label] = SimulatedRunner().run(scenario, planned, Observer())
        save_result(as_planned(runs[planned.label], planned), planned, tmp_path)
    write_report(tmp_path)
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert page.count("<tr><td") > 40 * len(names)
    assert len(page.encode()) < 3_000_000
    assert not re.findall(r'(?:src|href)="(?!data:|#)', page)
    figures = [unquote(uri) for uri in re.findall(r'src="data:image/svg\+xml,([^"]*)"', page)]
    assert len(figures) == len(list((tmp_path / "figures").glob("*.svg"))) == 10
    for figure in figures:
        assert not re.findall(r'href="(?!#|data:)', figure)
        assert not re.findall(r"url\((?!#|['\"]?#)", figure)


def test_the_report_of_a_url_has_no_empty_part(tmp_path: Path) -> None:
    """Its workers are unknown: dots have the entry's colour, and there are no shares."""
    scenario = service_scenario(
        contestants_of(["http://a/"]), {"rate": 100.0, "duration": 2.0}, {"connections": 10}, blocks=1
    )
    campaign = prepare(scenario, "experiments load http://a/", tmp_path, "measured")
    (planned,) = campaign.plan
    unknown = np.full(200, -1)
    samples = samples_of(
        np.arange(200) / 100, 0.05 + 0.02 * np.sin(np.arange(200)), worker=unknown, region=unknown
    )
    run = run_of(
        samples, label="a", policy={}, timeout=10.0, places=(), offered_rate=100.0, achieved_rate=100.0
    )
    save_result(as_planned(run, planned), planned, tmp_path)
    summary = write_report(tmp_path)
    assert summary.verdict.headline.startswith("a: ")
    assert "none of 200 failed; half took at most 5" in summary.verdict.headline
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "Share per worker" not in page
    assert "under every entry" not in page
    with Image.open(tmp_path / "figures" / "service-time-by-request.png") as picture:
        colours = picture.convert("RGB").getcolors(1 << 20)
    spare = tuple(int(SPARE_COLOURS[0][i : i + 2], 16) for i in (1, 3, 5))
    assert sum(count for count, colour in colours or () if colour == spare) > 500
