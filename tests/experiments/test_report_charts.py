"""Interactive charts of reports: values are those of the runs, the size is bounded, and a browser draws them."""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from experiments.__main__ import cli
from experiments.report.charts import MOST_VALUES, latency_charts, rate_charts, tail_charts
from experiments.report.document import thinly
from experiments.report.figures_time import MOST_RATES, bins_of, shadings
from experiments.report.pages import write_report
from experiments.report.palette import DARK, Competitor, competitors
from experiments.results.directory import load_results
from experiments.scenario.files import load_scenario
from tests.experiments.hostile import parsed
from tests.support.chromium import NARROW, WIDE, chromium, program
from tests.support.command_line import complaint
from tests.support.result_sets import write_results


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two blocks with failures."""
    results = tmp_path_factory.mktemp("charts") / "r"
    write_results(results, blocks=2, requests=1500, failures=0.05)
    return results


@pytest.fixture(scope="module")
def field(directory: Path) -> list[Competitor]:
    return competitors(load_results(directory))


def test_rates_count_every_request(field: list[Competitor]) -> None:
    """Rate times width, over all points, is the number of successes or of errors of a run, on the average."""
    for chart, has_failed in zip(rate_charts(field, []), (False, True), strict=True):
        assert len(chart.places) <= MOST_RATES
        width = chart.places[1] - chart.places[0]
        for one, line in zip(field, chart.lines, strict=True):
            counts = [np.count_nonzero(run.samples.ok != has_failed) for run in one.runs]
            assert sum(line.values) * width == pytest.approx(np.mean(counts))
            assert (line.label, line.light, line.dark) == (one.name, one.colour, DARK[one.colour])


def test_without_errors_there_is_no_chart_of_them(tmp_path: Path) -> None:
    write_results(tmp_path / "r", blocks=1, requests=100)
    assert len(rate_charts(competitors(load_results(tmp_path / "r")), [])) == 1


def test_latency_curves_are_those_of_the_requests(field: list[Competitor]) -> None:
    """Shares and percentiles are of all requests: a failure is never answered, and the slowest few are left out."""
    within, tail = latency_charts(field)
    for one, share, slow in zip(field, within.lines, tail.lines, strict=True):
        samples = [run.samples for run in one.runs]
        total = sum(map(len, samples))
        ms = np.sort(1e3 * np.concatenate([each.latency[each.ok] for each in samples]))
        assert share.values[-1] == pytest.approx(100 * len(ms) / total)
        assert share.values[100] == pytest.approx(100 * np.count_nonzero(ms <= within.places[100]) / total)
        middle = int(np.searchsorted(tail.places, 2.0))
        part = 1 - 1 / tail.places[middle]
        assert np.count_nonzero(ms < slow.values[middle]) / total <= part
        assert np.count_nonzero(ms <= slow.values[middle]) / total >= part
        ends = 1 - 1 / np.array(tail.places)
        assert np.isnan(slow.values).tolist() == (ends * total > len(ms) + 1e-6).tolist()


def test_events_are_in_measured_seconds() -> None:
    """One that does not end has no end."""
    event = load_scenario("region-brownout").events[0]
    endless = event.model_copy(update={"lasts": None})
    name = f"{event.kind} {event.target}"
    assert event.lasts is not None
    assert shadings([event, endless], 0.5) == [
        (event.at / 2, (event.at + event.lasts) / 2, name),
        (event.at / 2, float("inf"), name),
    ]


def test_the_data_of_many_entries_is_bounded(field: list[Competitor]) -> None:
    """Two hundred entries: no chart takes more than a hundred kilobytes of values."""
    many = [replace(field[0], label=f"entry {number}") for number in range(200)]
    bins = bins_of(many)
    assert bins is not None
    for chart in (*latency_charts(many), *tail_charts(many, bins, [])):
        values = [line.values for line in chart.lines]
        assert sum(map(len, values)) <= MOST_VALUES
        assert len(json.dumps(thinly(chart)["lines"])) < 130_000
        assert set(asdict(chart)) == {"title", "x", "y", "places", "lines", "events"}


@pytest.mark.second_tier
def test_compare_writes_the_page_of_both_sets(directory: Path, tmp_path: Path) -> None:
    """With a line of each entry of either set in every chart."""
    page = tmp_path / "both.html"
    ran = CliRunner().invoke(cli, ["compare", str(directory), str(directory), "--html", str(page)])
    assert ran.exit_code == 0, ran.output
    assert f"Report: {page}" in ran.output.replace("\n", "")
    found = parsed(page.read_text(encoding="utf-8"))
    assert found.strange == []
    assert found.texts.count("round-robin, first") == found.texts.count("round-robin, second") == 5
    assert "Second against first" in found.texts


def test_a_page_that_cannot_be_written_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    """In one line, as of a file for `--json`."""
    page = tmp_path / "missing" / "both.html"
    said = complaint(cli, "experiments", "compare", "first", "second", "--html", str(page))
    assert f"--html: {page.parent} is not a directory that can be written to" in said


LOOKED_AT = """JSON.stringify((() => {
  const charts = [...document.querySelectorAll(".chart")].filter((chart) => chart.querySelector("canvas"));
  const shown = (element) => element.getClientRects().length > 0;
  return {
    drawn: charts.filter(shown).length,
    figures: [...document.querySelectorAll(".charted > .scroll")].filter(shown).length,
    pressed: charts.map((chart) => chart.querySelector(".entries button").getAttribute("aria-pressed")),
    where: charts.map((chart) => chart.querySelector("output").textContent),
    folded: [...document.querySelectorAll("details .scroll")].filter(shown).length,
    needed: document.documentElement.scrollWidth - document.documentElement.clientWidth,
  };
})())"""

SPAN = "(({ min, max }) => Math.log(max / min))(charts[0].plot.scales.x)"
"""How much the first chart shows, which has a logarithmic axis."""


@pytest.mark.second_tier
@pytest.mark.peer
@pytest.mark.skipif(program() is None, reason="no Chromium here (apt-get install chromium)")
@pytest.mark.timeout(180)
@pytest.mark.usefixtures("unrendered")
def test_a_browser_draws_the_charts_and_obeys_the_keyboard(directory: Path) -> None:
    """Nothing is asked of another host; paper and a browser without scripts have the figures instead."""
    write_report(directory)
    asyncio.run(used((directory / "report.html").as_uri()))


CUT = """[...document.querySelectorAll("table, figure img")].filter((part) => {
  const { right, height } = part.getBoundingClientRect();
  return right > document.documentElement.clientWidth || height > innerHeight;
}).length"""
"""Number of tables and figures that do not fit on a page."""

PAPER = 720
"""Width of a page in pixels."""

ROOM = """(() => {
  const pen = document.createElement("canvas").getContext("2d");
  pen.font = "12px system-ui";
  return charts[0].options().axes[1].size(null, ["1", "1000000"]) - pen.measureText("1000000").width;
})()"""
"""Pixels beside a label of the vertical axis; a tick and its gap take 15."""


async def used(address: str) -> None:
    async def look() -> dict[str, Any]:
        found: dict[str, Any] = json.loads(await tab.value(LOOKED_AT))
        return found

    async with chromium() as tab:
        for width, dark in ((WIDE, False), (NARROW, True)):
            await tab.show(width, dark=dark)
            await tab.open(address)
            await tab.eventually("document.readyState === 'complete' && !!document.querySelector('.u-over')")
            found = await look()
            assert (found["drawn"], found["figures"], found["needed"]) == (5, 0, 0)
            assert set(found["where"]) == {""}
            await tab.value("document.querySelector('.plot').focus()")
            await tab.press("ArrowRight")
            await tab.eventually("document.querySelector('.chart output').textContent !== ''")
            assert await tab.value("document.querySelector('.entries b').textContent") == "0 %"
            assert await tab.value(ROOM) >= 15
            whole = await tab.value(SPAN)
            await tab.press("+")
            await tab.eventually(f"{SPAN} < 0.6 * {whole}")
            await tab.press("0")
            await tab.eventually(f"{SPAN} === {whole}")
            await tab.value("document.querySelector('.entries button').focus()")
            await tab.press("Enter")
            assert set((await look())["pressed"]) == {"false"}
        await tab.show(PAPER)
        await tab.ask("Emulation.setEmulatedMedia", media="print")
        assert await tab.value(CUT) == 0
        found = await look()
        assert (found["drawn"], found["figures"]) == (0, 3)
        assert found["folded"] == await tab.value("document.querySelectorAll('details .scroll').length") > 0
        await tab.ask("Emulation.setEmulatedMedia", media="screen")
        await tab.ask("Emulation.setScriptExecutionDisabled", value=True)
        await tab.open(address)
        await tab.eventually("document.readyState === 'complete'")
        found = await look()
        assert (found["drawn"], found["figures"]) == (0, 3)
        assert tab.problems == []
        assert {request.split(":")[0] for request in tab.requests} <= {"file", "data"}
