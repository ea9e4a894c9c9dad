"""Reports of hostile names: whatever they hold stands in the page as text, and in the figures as outlines."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from balancer.control.admin.page.document import digest
from experiments.__main__ import cli
from experiments.errors import BadInputError
from experiments.recorded.access_log import MOST_ENDPOINTS, MOST_POLICIES, read_log
from experiments.recorded.packed import LONGEST_LINE
from experiments.report.document import Document, Picture, Section, chart_script, to_html, to_markdown
from experiments.report.pages import write_report
from experiments.report.tables import Cell, Table
from experiments.run_data import load_run
from experiments.scenario.scenario import Scenario
from tests.experiments.browser_look import looked_at
from tests.experiments.hostile import NAMES, UNPRINTABLE, parsed, rename, strange_in
from tests.support.chromium import program
from tests.support.command_line import run_in_process
from tests.support.result_sets import write_results
from tests.support.root import ROOT

pytestmark = pytest.mark.second_tier
USUAL: dict[str, Any] = {
    "time": "2026-01-31T12:00:00.000000Z",
    "end": "ok",
    "reason": None,
    "status": 200,
    "endpoint": "emea-0",
    "region": "emea",
    "policy": "random",
    "attempts": 1,
    "queue": 0.0,
    "connect": 0.0,
    "first_byte": 0.01,
    "service": 0.02,
    "total": 0.03,
    "sample": 1,
}


def line(**changes: Any) -> str:
    return json.dumps(USUAL | changes) + "\n"


# --- templates


def document_of(name: str) -> Document:
    """Every text of a page is `name`."""
    table = Table(name, name, (name, name), ((Cell(name), Cell(name, "bad")),))
    section = Section(name, Picture("figure", name, name, b"<svg/>"), [name, name], table)
    return Document(name, name, [section], name, name, [name], warnings=[Section(name, lines=[name])])


@pytest.mark.parametrize("name", NAMES)
def test_text_stays_text_wherever_it_stands(name: str) -> None:
    """In the title, in content and in an attribute. The title of the table stays out: its section has one."""
    found = parsed(to_html(document_of(name)))
    assert found.strange == []
    assert [text for text in found.texts if name in text] == [name] * 8 + [f"{name}. {name}"] + [name] * 8


@pytest.mark.parametrize(
    ("name", "written"),
    [
        ("<b>x</b>", r"\<b>x\</b>"), ("*x*", r"\*x\*"), ("_x_y_", r"\_x_y\_"), ("`x`", r"\`x\`"),
        ("[x](y)", r"[x\](y)"), (r"\*", r"\\\*"), ("p99 < 3 ms", "p99 < 3 ms"), ("a_b [1–2]", "a_b [1–2]"),
    ],
)  # fmt: skip
def test_a_name_is_no_markdown(name: str, written: str) -> None:
    text = to_markdown(document_of(name))
    assert f"\n| {written} | **{written}** |\n" in text
    assert name not in text.replace(written, "")


def test_a_pipe_does_not_end_a_cell_of_markdown() -> None:
    assert "\n| a\\|b | **a\\|b** |\n" in to_markdown(document_of("a|b"))


def test_control_characters_are_written_as_escapes() -> None:
    """Browsers and terminals would lose them, or change the direction of the text."""
    for name in UNPRINTABLE:
        for text in (*parsed(to_html(document_of(name))).texts, to_markdown(document_of(name))):
            assert all(letter.isprintable() or letter == "\n" for letter in text)
    assert "<h1>\\x1b[31m\\u202e</h1>" in to_html(document_of("\x1b[31m\u202e"))


def test_empty_parts_are_omitted() -> None:
    page = to_html(Document("title", "heading", [Section("section")], warnings=[Section("warning")]))
    assert [text for text in parsed(page).texts if text in ("heading", "section", "warning")] == ["heading"]
    assert not re.search(r'class="(?:eyebrow|verdict|warning|)"', page)


def test_every_template_is_package_data() -> None:
    """An installed package has them, too."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    (pattern,) = project["tool"]["setuptools"]["package-data"]["experiments.report"]
    folder = ROOT / "experiments" / "report"
    files = {path for path in folder.rglob("*") if path.is_file() and path.suffix not in (".py", ".pyc")}
    assert files == set(folder.glob(pattern)) != set()


# --- the report of a campaign


@pytest.fixture(scope="module")
def reported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every text of a campaign is hostile."""
    directory = tmp_path_factory.mktemp("hostile") / "results"
    write_results(directory, blocks=1, requests=60, failures=0.02)
    rename(directory)
    write_report(directory)
    return directory


def test_a_page_has_nothing_but_text_of_it(reported: Path) -> None:
    found = parsed((reported / "report.html").read_text(encoding="utf-8"))
    assert found.strange == []
    everything = "\n".join(found.texts)
    assert [name for name in NAMES if name not in everything] == []
    known = digest(chart_script())
    assert (
        found.policy == f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src '{known}'"
    )
    assert "\x1b" not in everything


def test_figures_have_nothing_but_outlines_of_it(reported: Path) -> None:
    """No formula is made of dollar signs: matplotlib would refuse most."""
    figures = [*(reported / "figures").glob("*.svg")]
    assert len(figures) >= 6
    assert [found for figure in figures for found in strange_in(figure.read_bytes())] == []


@pytest.mark.peer
@pytest.mark.skipif(program() is None, reason="no Chromium here (apt-get install chromium)")
@pytest.mark.timeout(180)
def test_a_browser_runs_nothing_of_it(reported: Path) -> None:
    """Each name would change the title."""
    found, console = looked_at(reported / "report.html")
    assert console == ""
    for frame in found:
        assert frame["title"] == f"regions: {' '.join(NAMES)}"
        assert all(frame["images"])
        assert frame["sticking"] == []


@pytest.mark.usefixtures("unrendered")
def test_the_terminal_shows_it_as_it_is(reported: Path, tmp_path: Path) -> None:
    """No markup of rich's is read from it, no escape is passed on."""
    copy = shutil.copytree(reported, tmp_path / "results")
    done = run_in_process(cli, "experiments", "report", str(copy))
    assert (done.returncode, done.stderr) == (1, "")  # a threshold of the scenario is missed
    shown = "".join(done.stdout.split())  # lines are broken where the terminal ends
    assert [name for name in NAMES if "".join(name.split()) not in shown] == []
    assert "\x1b" not in done.stdout


@pytest.mark.parametrize("name", UNPRINTABLE)
def test_labels_are_printable(name: str, reported: Path, tmp_path: Path) -> None:
    """In a scenario and in the file of a run."""
    campaign = json.loads((reported / "campaign.json").read_text(encoding="utf-8"))
    scenario = campaign["scenario"]
    scenario["entries"][0]["label"] = name
    with pytest.raises(ValueError, match=r"printable|unicode"):
        Scenario.model_validate(scenario)
    run = load_run(next((reported / "runs").glob("*.npz")))
    with pytest.raises(ValueError, match=r"printable|unicode"):
        type(run.facts).model_validate(run.facts.model_dump() | {"label": name})


# --- the report of a log


def test_a_log_of_hostile_names(tmp_path: Path) -> None:
    """Through the command line, from a file whose name is one, too."""
    names = [name for name in NAMES if "/" not in name]
    log = tmp_path / f"{names[0]}\x1b[31m.log"
    log.write_text(
        "".join(line(endpoint=name, region=name, policy=name, reason=name) for name in NAMES),
        encoding="ascii",
    )
    out = tmp_path / "[red]out\x1b[31m"
    command = [sys.executable, "-m", "experiments", "report", str(log), "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert (done.returncode, done.stderr) == (0, "")
    assert "\x1b" not in done.stdout
    assert "[red]out\\x1b[31m/report.html" in done.stdout
    found = parsed((out / "report.html").read_text(encoding="utf-8"))
    assert found.strange == []
    everything = "\n".join(found.texts)
    assert [name for name in NAMES if name not in everything] == []
    assert [
        found for figure in (out / "figures").glob("*.svg") for found in strange_in(figure.read_bytes())
    ] == []


BROKEN: dict[str, tuple[str, str]] = {
    "a table for a name": (line(endpoint={"a": 1}), "endpoint: must be a name"),
    "a number for a name": (line(region=5), "region: must be a name"),
    "a long name": (line(policy="x" * 101), "policy: must have at most 100 characters, got 101"),
    "a list for an ending": (line(end=[]), "end: must be one of"),
    "an infinite status": (line(status=float("inf")), "status: must be a whole number"),
    "a long status": (line(status=10**30), "status: must be a whole number"),
    "negative attempts": (line(attempts=-1), "attempts: must be a whole number"),
    "no number": (line(total=float("nan")), "total: must be a number of seconds"),
    "an infinite time": (line(total=float("inf")), "total: must be a number of seconds"),
    "a time of ages": (line(queue=1e308), "queue: must be a number of seconds"),
    "a long number": (line(service=10**400), "service: must be a number of seconds"),
    "a negative time": (line(service=-1.0), "service: must be a number of seconds"),
    "a flag": (line(total=True), "total: must be a number of seconds"),
    "a share of none": (line(sample=10**400), "sample: must be from 1e-9 to 1"),
    "deep": ('{"a":' * 100_000 + "\n", "is not JSON"),
    "deep lists": ('{"a":' + "[" * 100_000 + "\n", "is not JSON"),
    "long": ("x" * (LONGEST_LINE + 1), "is longer than 8 MiB"),
    "quotes without an end": (' a="\\' * 200_000 + "\n", "is not a line of an access log"),
    "quotes without an end, and a backslash": (
        ' a="\\" ' * 200_000 + "\\\n",
        "is not a line of an access log",
    ),
} | {f"unprintable {name!r}": (line(endpoint=name), "endpoint: must have printable") for name in UNPRINTABLE}


@pytest.mark.parametrize("case", BROKEN)
def test_a_hostile_line_is_left_out_and_named_in_one_line(case: str) -> None:
    bad, problem = BROKEN[case]
    columns = read_log([line(), bad], "a.log")
    assert (len(columns), columns.unreadable) == (1, 1)
    message = columns.first_problem
    assert message.startswith(f"line 2: {problem}")
    assert message.isprintable()
    assert len(message) < 400


def test_names_are_bounded() -> None:
    """Each costs a row, and a policy a panel of a figure."""
    for field, most in (("endpoint", MOST_ENDPOINTS), ("policy", MOST_POLICIES)):
        lines = [line(**{field: f"n{number}"}) for number in range(most + 1)]
        read_log(lines[:-1], "a.log")
        with pytest.raises(BadInputError, match=f"line {most + 1}: {field}: more than {most} different"):
            read_log(lines, "a.log")
