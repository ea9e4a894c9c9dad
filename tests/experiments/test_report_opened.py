"""A browser opens the report: nothing is complained of, nothing sticks out, and every figure is there.

At a desk's and a phone's width, the page is asked for its measures.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from markupsafe import Markup

from benchmarks.calibration.queue import run_queues, scenario_of
from experiments.capacity.curve_page import write_load_report
from experiments.capacity.offered import at_rate
from experiments.report.document import Document, Section, to_html
from experiments.report.pages import write_report
from tests.experiments.browser_look import WIDTHS, looked_at
from tests.support.chromium import program
from tests.support.result_sets import save_set, write_results

pytestmark = [
    pytest.mark.second_tier,
    pytest.mark.peer,
    pytest.mark.skipif(program() is None, reason="no Chromium here (apt-get install chromium)"),
    pytest.mark.timeout(180),
]


def test_a_browser_shows_the_report_whole(tmp_path: Path) -> None:
    """Nine entries with failures, one invalid, eight blocks: every figure there is, at both widths."""
    write_results(tmp_path / "r", blocks=8, requests=50, failures=0.02, late="latency-weighted")
    write_report(tmp_path / "r")
    figures = len(list((tmp_path / "r" / "figures").glob("*.png")))
    found, console = looked_at(tmp_path / "r" / "report.html")
    assert console == ""
    assert [frame["width"] for frame in found] == list(WIDTHS)
    for frame in found:
        assert frame["title"].startswith("regions: ")
        assert frame["needed"] <= frame["width"]
        assert frame["sticking"] == []
        assert frame["images"] == [True] * figures
        assert frame["sources"] == figures


def test_a_browser_shows_a_curve_whole(tmp_path: Path) -> None:
    """The page of several rates."""
    for number, part in enumerate((0.5, 0.8)):
        scenario = at_rate(scenario_of(2, 100, 2), part * 600, 1.0)
        save_set(tmp_path / f"rate-{number}", scenario, run_queues)
    write_load_report(tmp_path)
    found, console = looked_at(tmp_path / "load.html")
    assert console == ""
    assert [(frame["needed"], frame["sticking"], frame["images"]) for frame in found] == [
        (width, [], [True]) for width in WIDTHS
    ]


def test_a_browser_runs_no_script_of_a_page(tmp_path: Path) -> None:
    """The page forbids it where a script should get into it all the same."""
    script = Markup(
        "<script>document.title = 'changed'</script><img src=x onerror=\"document.title = 'changed'\">"
    )
    page = tmp_path / "page.html"
    page.write_text(
        to_html(Document("title", "heading", [Section("section", lines=[script])])), encoding="utf-8"
    )
    found, console = looked_at(page)
    assert "Content Security Policy" in console
    assert [frame["title"] for frame in found] == ["title"] * len(WIDTHS)


def test_what_sticks_out_or_is_missing_would_be_seen(tmp_path: Path) -> None:
    """The look itself can fail: a wide block, a broken picture, and a script that throws."""
    page = tmp_path / "bad.html"
    page.write_text(
        '<!doctype html><title>bad</title><main><div style="width:1400px">wide</div>'
        '<img src="data:image/svg+xml;base64,AAAA"></main><script>nothing.here()</script>',
        encoding="utf-8",
    )
    found, console = looked_at(page)
    assert "nothing is not defined" in console
    for frame in found:
        assert frame["needed"] > frame["width"]
        assert "wide" in frame["sticking"][0]
        assert frame["images"] == [False]
