"""The report: a function of the files, the same bytes for the same files, and honest in every output."""

from __future__ import annotations

import csv
import io
import json
import re
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from rich.console import Console

from experiments.commands.session import print_summary
from experiments.errors import BadInputError
from experiments.platform.terminal import PlainConsole
from experiments.report.canvas import shortened
from experiments.report.document import chart_script, to_html, to_markdown
from experiments.report.entry_tables import COLUMNS
from experiments.report.figures import MOST_STEPS, dense_steps, even_steps
from experiments.report.pages import document_of, to_json, write_report
from experiments.report.palette import (
    DARK,
    POLICY_COLOURS,
    SPARE_COLOURS,
    WHITE,
    entry_colours,
    luminance,
)
from experiments.report.tables import ESSENTIAL, MAX_COLUMNS, Cell, Table, terminal_table
from experiments.results.directory import load_results, save_result, set_aside
from experiments.run_data import Run
from experiments.scenario.scenario import PRESETS
from experiments.verdict.summary import summarise
from policies import registry
from tests.experiments.hostile import parsed
from tests.support.result_sets import LATE, write_results

OUTPUTS = ("summary.json", "summary.csv", "report.md", "report.html")


@pytest.fixture(scope="module")
def reported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One block of nine entries with failures, `latency-weighted` invalid, and its report."""
    directory = tmp_path_factory.mktemp("reported") / "results"
    write_results(directory, blocks=1, requests=150, failures=0.02, late="latency-weighted")
    write_report(directory)
    return directory


def test_every_output_is_written(reported: Path) -> None:
    """Summary, table, text, page, and each figure as SVG and PNG."""
    assert all((reported / name).stat().st_size > 500 for name in OUTPUTS)
    figures = {path.stem for path in (reported / "figures").glob("*.png")}
    assert figures == {
        "throughput",
        "latency-quantiles",
        "latency-distribution",
        "rate-over-time",
        "share-per-worker",
        "service-time-by-request",
        "in-flight-per-worker",
    }
    assert figures <= {path.stem for path in (reported / "figures").glob("*.svg")}


def test_an_invalid_run_is_marked_in_every_output(reported: Path) -> None:
    """HTML, Markdown, CSV and JSON all say which entry, that it is invalid, and why."""
    for name in OUTPUTS:
        assert LATE in (reported / name).read_text(encoding="utf-8"), name
    assert "latency-weighted — INVALID" in (reported / "report.html").read_text(encoding="utf-8")
    assert "latency-weighted — INVALID" in (reported / "report.md").read_text(encoding="utf-8")
    summary = json.loads((reported / "summary.json").read_text(encoding="utf-8"))
    assert summary["valid"] is False
    assert [entry["label"] for entry in summary["entries"] if not entry["valid"]] == ["latency-weighted"]
    with (reported / "summary.csv").open(encoding="utf-8", newline="") as file:
        marks = {row["label"]: row["valid"] for row in csv.DictReader(file)}
    assert marks["latency-weighted"] == "INVALID"
    assert marks["random"] == "yes"


def test_the_page_needs_nothing_else(reported: Path) -> None:
    """No script but that of its charts, and no address but data in the page (names of XML spaces are not fetched)."""
    page = (reported / "report.html").read_text(encoding="utf-8")
    assert parsed(page).strange == []
    assert page.count("<script>") == 1
    assert len(chart_script().encode()) < 100_000
    assert not re.findall(r'(?:src|href)="(?!data:|#)', page)
    assert "@import" not in page
    assert re.findall(r"url\((?!%23)", page) == []  # parts of the same figure only


def test_the_contents_lead_to_every_section(reported: Path) -> None:
    """Each link has its heading, in the same order; the verdict stands before them."""
    page = (reported / "report.html").read_text(encoding="utf-8")
    links = re.findall(r'<a href="#([^"]+)">', page)
    assert links == re.findall(r'<h2 id="([^"]+)">', page)
    assert len(set(links)) == len(links) >= 8
    assert page.index('class="verdict') < page.index("<nav")


def test_figures_have_dark_colours_and_few_bytes(reported: Path) -> None:
    """Each has its own style sheet for a dark page, which names colours that it uses."""
    for figure in (reported / "figures").glob("*.svg"):
        text = figure.read_text(encoding="utf-8")
        exchanged = re.findall(r'\[style\*="fill:(#\w{6})"\]', text)
        assert WHITE in exchanged
        assert all(text.count(light) > 2 for light in exchanged), figure.name


def test_a_path_of_steps_keeps_its_points() -> None:
    """Level and upright lines have one number; what is neither keeps two."""
    points = [(n // 2 * 10, (n + 1) // 2 * 7.5) for n in range(200)]
    path = " \nL ".join(f"{x} {y}" for x, y in [*points, (5, 6)]) + " \n"
    short = shortened(f' d="M {path}"'.encode()).decode()
    x = y = 0.0
    found = []
    for command, numbers in re.findall(r"([MLHV])([-\d. ]+)", short):
        given = [float(number) for number in numbers.split()]
        x = given[0] if command in "MLH" else x
        y = given[-1] if command in "MLV" else y
        found.append((x, y))
    assert found == [*points, (5.0, 6.0)]
    assert len(short) < len(path) * 0.7


@pytest.mark.second_tier
def test_drawing_again_gives_the_same_bytes(reported: Path) -> None:
    """The same files give the same summary, text, page and SVG."""
    drawn = [*OUTPUTS, "figures/throughput.svg", "figures/latency-distribution.svg"]
    before = {name: (reported / name).read_bytes() for name in drawn}
    write_report(reported)
    assert {name: (reported / name).read_bytes() for name in drawn} == before


def test_runs_that_were_measured_again_are_kept_and_listed(tmp_path: Path) -> None:
    """In JSON, on the page and at the terminal, with reasons and the number of late runs of each entry."""
    write_results(tmp_path / "r", blocks=2, requests=60, late="round-robin")
    before = load_results(tmp_path / "r")
    again = [planned for planned in before.campaign.plan if planned.block == 0]
    set_aside(again, tmp_path / "r")
    valid = {run.facts.label: run for run in before.runs if run.facts.block == 0}
    late = valid["round-robin"].facts
    valid["round-robin"] = Run(late.model_copy(update={"invalid_reasons": ()}), valid["round-robin"].samples)
    for planned in again:
        save_result(valid[planned.label], planned, tmp_path / "r")
    summary = summarise(load_results(tmp_path / "r"))
    assert summary.blocks == 1  # the other still has a late run
    assert {run.set_aside for run in summary.set_aside} == {1}
    assert [run.label for run in summary.set_aside if not run.valid] == ["round-robin"]
    line = f"block 1, attempt 1: round-robin: {LATE}"
    counts = "repeated ones included: round-robin 2 of 3."
    console = Console(file=io.StringIO(), width=200)
    print_summary(summary, console)
    shown = console.file
    assert isinstance(shown, io.StringIO)
    document = document_of(summary, ())
    table = to_markdown(document)
    assert "INVALID  " not in shown.getvalue()  # one sentence has all late runs
    for text in (table, to_html(document), shown.getvalue()):
        assert line in text
        assert counts in text
    assert "INVALID, set aside, attempt 1: generator lag" in table
    assert "left out with its block" in table
    assert len(json.loads(to_json(summary))["set_aside"]) == len(again)


def test_what_was_never_measured_is_null_and_never_nan(reported: Path) -> None:
    """JSON has no NaN; other readers would choke on it."""
    text = (reported / "summary.json").read_text(encoding="utf-8")
    json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} in JSON"))


def test_eight_blocks_give_a_verdict(tmp_path: Path) -> None:
    """Single region and batch 10 are behind round-robin, the repeated entry only gives the noise floor."""
    write_results(tmp_path / "r", blocks=8, requests=200)
    summary = summarise(load_results(tmp_path / "r"))
    standing = {c.label: c.standing for c in summary.comparisons if c.measure == "throughput"}
    assert summary.verdict.has_verdict
    assert standing["single-region"] == standing["random (batch 10)"] == "behind"
    assert standing["region-round-robin"] == "practically equal"
    assert "round-robin again" not in standing
    assert summary.noise_floor["throughput"].blocks == 8
    assert [label for label, _ in summary.verdict.order][-2:] == ["single-region", "random (batch 10)"]


def test_an_invalid_run_cannot_hide_its_failures(tmp_path: Path) -> None:
    """The threshold on errors counts every run; here half of them are invalid and all have failures."""
    write_results(tmp_path / "r", blocks=1, requests=50, failures=0.5, late="round-robin", stop_after=4)
    failed = {judgement.label for judgement in summarise(load_results(tmp_path / "r")).unmet_thresholds}
    assert "round-robin" in failed


@pytest.mark.second_tier
def test_a_stopped_campaign_is_reported_on(tmp_path: Path) -> None:
    """Three of ten runs are enough for a report that says what is missing."""
    write_results(tmp_path / "r", blocks=1, requests=60, stop_after=3)
    summary = write_report(tmp_path / "r")
    assert summary.missing_runs == 7
    assert "7 planned runs are missing" in (tmp_path / "r" / "report.html").read_text(encoding="utf-8")


@pytest.mark.second_tier
def test_a_campaign_in_which_nothing_succeeded_is_reported_on(tmp_path: Path) -> None:
    """Every request failed: the report is written, says so, and ranks nothing."""
    write_results(tmp_path / "r", blocks=1, requests=20, failures=1.0, stop_after=2)
    summary = write_report(tmp_path / "r")
    assert [entry.table.ok for entry in summary.entries] == [0, 0]
    assert summary.verdict.order == ()
    assert "reset 20" in (tmp_path / "r" / "report.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("files", "message"), [((), "no results here"), (("campaign.json",), "no run has been")]
)
def test_a_directory_without_runs_is_refused_in_one_line(
    tmp_path: Path, files: tuple[str, ...], message: str
) -> None:
    """What is missing is said."""
    if files:
        write_results(tmp_path / "r", blocks=1, requests=10, stop_after=0)
    with pytest.raises(BadInputError, match=message):
        write_report(tmp_path / "r")


def test_a_campaign_is_never_overwritten(tmp_path: Path) -> None:
    """A second campaign into the same directory is refused."""
    write_results(tmp_path / "r", blocks=1, requests=10, stop_after=1)
    with pytest.raises(BadInputError, match="is not empty"):
        write_results(tmp_path / "r", blocks=1, requests=10, stop_after=1)


def test_a_policy_has_one_colour_wherever_it_is_drawn() -> None:
    """Whatever else is drawn; one without its own, of this package or another, takes a spare colour."""
    names = ["random", "peak-ewma", "latency-weighted", "steelyard", "region-aware", "foreign", "least-time"]
    colours = entry_colours(names)
    assert len(set(colours)) == len(names)
    assert entry_colours(["steelyard"])[0] == colours[3] == POLICY_COLOURS["steelyard"]
    assert entry_colours(["foreign"])[0] not in POLICY_COLOURS.values()


def test_each_entry_of_a_policy_has_a_colour() -> None:
    """The first has that of the policy, the others none of another entry; where all are taken, some are used twice."""
    names = ["steelyard"] * 20 + ["random", "foreign"]
    colours = entry_colours(names)
    assert (colours[0], colours[20]) == (POLICY_COLOURS["steelyard"], POLICY_COLOURS["random"])
    assert len(set(colours)) == len(names)
    assert set(colours) <= DARK.keys()
    many = entry_colours([*POLICY_COLOURS, *["random"] * 99])
    assert len(set(many)) == len(POLICY_COLOURS) + len(SPARE_COLOURS)


@pytest.mark.parametrize("count", [0, 1, MOST_STEPS, MOST_STEPS + 1, 1_000_000])
def test_a_curve_of_many_values_needs_some_hundred_steps(count: int) -> None:
    """Both ends are among them. Evenly, no part is passed over; towards the end, the slowest thirty are all there."""
    even, dense = even_steps(count), dense_steps(count)
    for drawn in (even, dense):
        assert len(drawn) <= MOST_STEPS
        assert (np.diff(drawn) > 0).all()
        if count:
            assert (drawn[0], drawn[-1]) == (0, count - 1)
    assert np.diff(even).max(initial=0) <= count / (MOST_STEPS - 1) + 1
    assert set(range(max(0, count - 30), count)) <= set(dense.tolist())


def oklab(colour: str) -> Any:
    """A colour in OKLab (Ottosson 2020), where a distance of 0.02 is just seen."""
    rgb = np.array(to_rgb(colour))
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    to_cones = [[0.41222, 0.53633, 0.05145], [0.21190, 0.68070, 0.10740], [0.08830, 0.28172, 0.62998]]
    to_lab = [[0.21045, 0.79362, -0.00407], [1.97800, -2.42859, 0.45059], [0.02590, 0.78277, -0.80868]]
    return np.array(to_lab) @ np.cbrt(np.array(to_cones) @ linear)


def test_colours_of_policies_can_be_told_apart() -> None:
    """Light and dark; each can be seen on the page (a contrast of 1.9 at least, of the light amber)."""
    assert set(POLICY_COLOURS) <= set(registry.TABLE)
    drawn = [*POLICY_COLOURS.values(), *SPARE_COLOURS]
    for known, paper in ((drawn, WHITE), ([DARK[colour] for colour in drawn], DARK[WHITE])):
        for one, other in combinations(known, 2):
            assert np.linalg.norm(oklab(one) - oklab(other)) > 0.025, (one, other)
        shades = [sorted((luminance(colour) + 0.05, luminance(paper) + 0.05)) for colour in known]
        assert min(light / dark for dark, light in shades) > 1.9


@pytest.mark.parametrize("label", ["random", "region-aware with a long label of its own"])
@pytest.mark.parametrize(("width", "columns"), [(90, len(ESSENTIAL)), (200, len(ESSENTIAL) + 3)])
def test_no_number_of_the_terminal_table_is_truncated(label: str, width: int, columns: int) -> None:
    """On a narrow terminal columns are left out as a whole, and the label wraps."""
    names = (*ESSENTIAL, "10th", "20th", "30th")
    row = (Cell(label), *(Cell("12345.67") for _ in names[1:]))
    console = PlainConsole(width)
    with console.capture() as capture:
        console.print(terminal_table(Table("statistics", "", names, (row,)), width))
    assert capture.get().count("12345.67") == columns - 1


@pytest.mark.parametrize(
    ("width", "left_out"),
    [(120, []), (100, ["mean", "std dev"]), (80, ["% KO", "min", "75th", "mean", "std dev"])],
)
def test_the_default_entries_fit_a_terminal(width: int, left_out: list[str]) -> None:
    """Each in a line. The last columns go first, but for those that every terminal shows."""
    names = ("entry", *(column.head for column in COLUMNS if column.shown == "statistics"))
    rows = tuple((Cell(label), *(Cell("1234") for _ in names[1:])) for label in PRESETS["standard"])
    made = terminal_table(Table("statistics", "", names, rows), width)
    assert [name for name in names if name not in [column.header for column in made.columns]] == left_out
    assert Console(width=MAX_COLUMNS).measure(made).maximum <= width
