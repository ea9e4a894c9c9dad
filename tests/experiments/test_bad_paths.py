"""Files and directories that no command can use: one line and exit code 2, never a traceback."""

from __future__ import annotations

import shutil
import sys
from dataclasses import replace
from io import BytesIO, TextIOWrapper
from pathlib import Path

import pytest

from balancer.log.formats import Context, text_line
from experiments.__main__ import cli
from experiments.commands.session import remedies
from experiments.errors import BadInputError
from experiments.platform.command_line import run_command_line
from experiments.results.directory import load_results
from experiments.verdict.summary import summarise
from tests.support.command_line import complaint, run_in_process
from tests.support.log_entries import entry
from tests.support.result_sets import write_results

READERS = (
    ("run", "FILE.toml", "--simulated"),
    ("show", "FILE.toml"),
    ("show", "FILE"),
    ("show", "FILE.sqlite"),
    ("report", "FILE"),
    ("report", "RESULTS", "--measured", "FILE"),
    ("compare", "FILE", "FILE"),
    ("compare", "RESULTS", "FILE"),
    ("capacity", "FILE.toml", "--policy", "random", "--simulated"),
    ("sweep", "FILE.toml", "--dry-run"),
    ("what-if", "FILE"),
    ("load", "http://127.0.0.1:9/", "--header", "@FILE"),
    ("load", "https://127.0.0.1:9/", "--cacert", "FILE"),
)
WRITERS = (
    ("run", "steady", "--simulated", "--quick", "--out", "OUT"),
    ("capacity", "steady", "--curve", "--simulated", "--rates", "10", "--out", "OUT"),
    ("compare", "--rev", "HEAD", "HEAD", "--out", "OUT"),
    ("load", "http://127.0.0.1:9/", "--out", "OUT"),
    ("report", "LOG", "--out", "OUT"),
    ("reproduce", "all", "--quick", "--out", "OUT"),
    ("sweep", "--scenarios", "steady", "--policies", "random", "--seeds", "1", "--quick", "--out", "OUT"),
)


@pytest.mark.parametrize("kind", ["missing", "directory", "empty", "binary"])
@pytest.mark.parametrize("command", READERS, ids=" ".join)
def test_unreadable_input(command: tuple[str, ...], kind: str, tmp_path: Path) -> None:
    made = [
        part.replace("FILE", str(tmp_path / "thing")).replace("RESULTS", str(tmp_path)) for part in command
    ]
    path = next(Path(part.removeprefix("@")) for part in made if "thing" in part)
    if kind == "directory":
        path.mkdir()
    elif kind != "missing":
        path.write_bytes(b"" if kind == "empty" else bytes(range(256)) * 40)
    done = run_in_process(cli, "experiments", *made)
    assert done.returncode == 2 or (done.returncode, kind, command[2:3]) == (3, "empty", ("--header",)), done
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("experiments: ")
    assert len(done.stderr) < 1000


@pytest.mark.parametrize("command", WRITERS, ids=lambda command: command[0])
def test_output_below_a_file_is_refused_at_once(command: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "LOG").write_text("")
    places = {"OUT": str(tmp_path / "file" / "out"), "LOG": str(tmp_path / "LOG")}
    line = complaint(cli, "experiments", *(places.get(part, part) for part in command))
    assert str(tmp_path / "file") in line


@pytest.mark.second_tier
@pytest.mark.parametrize(
    ("command", "written"),
    [
        ("run steady --simulated --quick --policies random --requests 50", "report.html"),
        (
            "capacity steady --curve --simulated --policies random --rates 10 --duration 3 --blocks 1",
            "load.html",
        ),
        ("sweep --scenarios steady --policies random --seeds 1 --quick", ""),
        ("report LOG", "report.html"),
    ],
)
def test_output_directory_is_made_with_its_parents(tmp_path: Path, command: str, written: str) -> None:
    """Also that of `report`, for the catalogue of a sweep; test_service.py has `load`."""
    log = tmp_path / "access.log"
    log.write_text(text_line(entry(), Context(1_700_000_000.0, "0.5")) * 3)
    out = tmp_path / "new" / "and" / "deep"
    arguments = [str(log) if word == "LOG" else word for word in command.split()]
    done = run_in_process(cli, "experiments", *arguments, "--out", str(out))
    assert done.returncode == 0, done.stderr
    assert (out / written).exists()
    if arguments[0] == "sweep":
        page = tmp_path / "other" / "new" / "page"
        done = run_in_process(cli, "experiments", "report", str(out), "--out", str(page))
        assert done.returncode == 0, done.stderr
        assert (page / "matrix.html").exists()


@pytest.mark.parametrize(
    "command", [one for one in WRITERS if one[0] in ("run", "capacity", "compare", "load")]
)
def test_results_do_not_mix_with_other_files(command: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    line = complaint(cli, "experiments", *(str(tmp_path) if part == "OUT" else part for part in command))
    assert f"--out: {tmp_path} is not empty; name another directory" in line
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_invalid_runs_come_with_what_helps(tmp_path: Path) -> None:
    write_results(tmp_path / "late", blocks=1, requests=60, late="random")
    summary = summarise(load_results(tmp_path / "late"))
    assert "--patience 4m" in summary.verdict.advice
    assert "--batch" in summary.verdict.advice
    assert remedies(summary) == []  # said already
    decided = replace(summary, verdict=replace(summary.verdict, advice=""))
    assert remedies(decided) == [summary.verdict.advice]
    write_results(tmp_path / "fine", blocks=1, requests=60)
    assert remedies(summarise(load_results(tmp_path / "fine"))) == []


def test_output_shows_what_its_encoding_has(monkeypatch: pytest.MonkeyPatch) -> None:
    written = BytesIO()
    monkeypatch.setattr(sys, "stdout", TextIOWrapper(written, "latin-1"))
    monkeypatch.setattr(sys, "argv", ["experiments", "sweep", "--help"])
    with pytest.raises(SystemExit) as ended:
        run_command_line(cli, "experiments")
    sys.stdout.flush()
    assert ended.value.code == 0
    assert written.getvalue().startswith(b"Usage: ")
    assert b"--scenarios A,B,?" in written.getvalue()


@pytest.mark.parametrize("name", ["block-001-run-00.npz", "block-000-run-01.npz"])
def test_a_run_of_another_campaign_is_refused(tmp_path: Path, name: str) -> None:
    """Of a block that the plan does not have, or in the place of another: tables would pool both campaigns."""
    write_results(tmp_path / "r", blocks=1, requests=50)
    runs = tmp_path / "r" / "runs"
    shutil.copy(runs / "block-000-run-00.npz", runs / name)
    with pytest.raises(BadInputError, match=f"{name}: no run of this campaign"):
        load_results(tmp_path / "r")
