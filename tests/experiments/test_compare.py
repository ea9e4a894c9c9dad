"""`experiments compare`: pairing of blocks, differences of the sets, exit codes, and revisions."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from click.testing import CliRunner, Result
from rich.console import Console

from benchmarks.calibration.queue import as_run, scenario_of
from experiments.__main__ import cli
from experiments.compare.page import drawn_field
from experiments.compare.revisions import RevisionPlan, git, measure, run_block
from experiments.compare.sides import side
from experiments.errors import BadInputError, FleetFailedError
from experiments.results.directory import load_results, plan
from experiments.run_data import Kind, Run
from experiments.scenario.scenario import Entry, Scenario
from tests.support.result_sets import save_set

Write = Callable[..., Path]


def weather(scenario: Scenario, entry: Entry, block: int, order: int, seed: int, factor: float = 1.0) -> Run:
    """A thousand requests of one run, log-normal; the block's seed moves all of them, the run's own luck a little."""
    rng, mine = np.random.default_rng(seed), np.random.default_rng([seed, order])
    taken = factor * np.exp(
        rng.normal(-3, 0.3) + mine.normal(0, 0.02) + rng.normal(0, 0.1, scenario.load.planned)
    )
    number, due = np.arange(len(taken)), np.linspace(0, 1, len(taken))
    idle = (due, 0.0 * due, 0 * number)  # nothing waits
    run = as_run(scenario, entry, block, order, seed, idle)
    ended, worker = due + taken, number % len(scenario.workers)
    return Run(run.facts, replace(run.samples, first_byte_at=ended, ended_at=ended, worker=worker))


def lossy(run: Run, share: float, block: int) -> Run:
    """The run with a share (0..1) of failures, a little more or less in each block."""
    kind = run.samples.kind.copy()
    kind[: round(len(kind) * share) + (block % 3 if share else 0)] = Kind.TIMEOUT
    return Run(run.facts, replace(run.samples, kind=kind))


@pytest.fixture(scope="module")
def write(tmp_path_factory: pytest.TempPathFactory) -> Write:
    """`write(blocks=…, slower={label: factor}, failing={label: share}, seed=…, …, **changes of the scenario)`.

    Equal sets are written once: they are only read.
    """
    written: dict[str, Path] = {}

    def write(**given: Any) -> Path:
        if (path := written.get(repr(given))) is None:
            path = written[repr(given)] = tmp_path_factory.mktemp("set") / "results"
            save(path, **given)
        return path

    def save(
        path: Path,
        blocks: int = 8,
        slower: dict[str, float] | None = None,
        seed: int = 1,
        version: str = "1",
        late: float = 0.0,
        requests: int = 1000,
        failing: dict[str, float] | None = None,
        lag: float = 0.0,
        stop_after: int | None = None,
        **changes: Any,
    ) -> None:
        def run_of(scenario: Scenario, entry: Entry, block: int, order: int, seed: int) -> Run:
            run = weather(scenario, entry, block, order, seed, (slower or {}).get(entry.label, 1.0))
            run = lossy(run, (failing or {}).get(entry.label, 0.0), block)
            reasons = ("the generator was late",) if late else ()
            facts = run.facts.model_copy(update={"lag_p99": late, "invalid_reasons": reasons})
            sent = replace(run.samples, sent_at=run.samples.scheduled_at + lag * run.samples.latency)
            return Run(facts, sent if lag else run.samples)

        scenario = scenario_of(blocks, requests, 2).model_copy(update={"seed": seed, **changes})
        save_set(path, scenario, run_of, stop_after, versions={"steelyard": version}, plan=plan(scenario))

    return write


def ran(*arguments: object) -> Result:
    return CliRunner().invoke(cli, ["compare", *map(str, arguments)], standalone_mode=False)


def rows(file: Path, measure: str = "p99") -> dict[str, dict[str, Any]]:
    found = json.loads(file.read_text(encoding="utf-8"))["entries"]
    return {row["label"]: row for row in found if row["measure"] == measure}


def test_a_result_set_equals_itself(write: Write, tmp_path: Path) -> None:
    """Every ratio is one, and practically equal."""
    same = write()
    assert ran(same, same, "--json", tmp_path / "out.json", "--fail-if-worse", "1.05").return_value == 0
    assert {row["second_is"] for row in rows(tmp_path / "out.json").values()} == {"practically equal"}
    assert {row["interval"]["ratio"] for row in rows(tmp_path / "out.json").values()} == {1.0}


def test_missing_runs_are_said(write: Write, tmp_path: Path) -> None:
    """On the terminal, and on the page."""
    page = tmp_path / "page.html"
    whole, stopped = write(), write(stop_after=9)
    said = ran(whole, stopped, "--html", page).output
    words = f"planned runs of {stopped} are missing"
    assert words in " ".join(said.replace("\n", " ").split()), said
    assert words in page.read_text(encoding="utf-8")
    assert "INCOMPLETE" not in ran(whole, whole).output


def test_columns_are_over_the_compared_blocks(write: Write, tmp_path: Path) -> None:
    """Of eight blocks and two, only the two are compared, so the columns divide to the ratio."""
    said = ran(
        write(), write(blocks=2, slower={"b": 1.3}), "--anyway", "--json", tmp_path / "out.json"
    ).output
    for name in ("p99", "mean", "throughput"):
        for row in rows(tmp_path / "out.json", name).values():
            assert row["interval"]["blocks"] == 2
            assert row["second"] / row["first"] == pytest.approx(row["interval"]["ratio"])
    assert "By p99 latency, there is no verdict on a, b, c (8 blocks are needed)." in " ".join(said.split())


def test_what_the_generators_lag_may_explain_is_not_claimed(write: Write, tmp_path: Path) -> None:
    """Of a set that is 30 % slower, a fifth of each latency was lag; where both sets have it, it takes nothing."""
    quiet, late, slower = write(), write(lag=0.2), write(slower={"b": 1.3}, lag=0.2)
    ran(quiet, slower, "--json", tmp_path / "one.json")
    assert rows(tmp_path / "one.json")["b"]["second_is"] == "within the generator's lag"
    assert ran(late, slower, "--json", tmp_path / "both.json", "--fail-if-worse", "1.05").return_value == 1
    assert rows(tmp_path / "both.json")["b"]["second_is"] == "worse"


def test_fail_if_worse_fails_for_a_slower_entry_only(write: Write, tmp_path: Path) -> None:
    """The seeds agree, so blocks are paired and 30 % is significant; only `b` is worse."""
    before, after = write(), write(slower={"b": 1.3}, version="2")
    junit = tmp_path / "out.xml"
    given = ("--json", tmp_path / "out.json", "--fail-if-worse", "1.05", "--junit", junit)
    found = ran(before, after, *given)
    assert found.return_value == 1
    assert "WORSE: b: p99 × 1.30" in found.output
    cases = ElementTree.parse(junit).getroot()[0]
    assert [case.attrib["classname"] for case in cases] == ["a", "b", "c"]
    (failure,) = cases.findall("testcase[@classname='b']/failure")
    assert failure.attrib["message"].startswith("p99 × 1.30")
    assert cases.attrib["failures"] == "1"
    assert "differs: versions.steelyard: 1 → 2" in found.output
    assert "paired by their seeds" in found.output
    assert rows(tmp_path / "out.json")["b"]["second_is"] == "worse"
    assert rows(tmp_path / "out.json")["c"]["second_is"] == "practically equal"
    assert ran(before, after, "--fail-if-worse", "1.5").return_value == 0
    assert ran(after, before, "--fail-if-worse", "1.05").return_value == 0


def test_goodput_is_compared_where_the_tail_is_the_deadline(write: Write, tmp_path: Path) -> None:
    """5 and 10 % of failures have the same p99, the deadline: they are not equal, with and without pairs."""
    before = write(failing={"b": 0.05, "c": 0.05})
    for seed in (1, 2):
        after = write(failing={"b": 0.10, "c": 0.05}, seed=seed)
        found = ran(before, after, "--json", tmp_path / "out.json", "--fail-if-worse", "1.05", "--anyway")
        assert found.return_value == 1
        assert "odds of a late or failed answer decide" in found.output
        by_label = rows(tmp_path / "out.json")
        assert [by_label[label]["judged_by"] for label in "abc"] == ["p99", "goodput", "goodput"]
        assert by_label["b"]["second_is"] == "worse"
        assert by_label["b"]["interval"]["ratio"] == pytest.approx((0.10 / 0.90) / (0.05 / 0.95), rel=0.03)
    assert rows(tmp_path / "out.json")["c"]["second_is"] in ("practically equal", "undecided")


def test_few_requests_are_compared_by_the_mean(write: Write, tmp_path: Path) -> None:
    """A p99 takes 1,000 requests in each run of both sets, as in a report."""
    before, after = write(requests=999), write(slower={"b": 1.3})
    found = ran(before, after, "--anyway", "--json", tmp_path / "out.json", "--fail-if-worse", "1.05")
    assert (found.return_value, rows(tmp_path / "out.json")) == (1, {})
    assert "By mean latency, the second is worse: b" in found.output
    assert json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))["measure"] == "mean"


def test_repetition_and_oracles_are_no_entries_of_the_comparison(write: Write, tmp_path: Path) -> None:
    """They would widen Holm's family, and a slower oracle would fail a build."""
    scenario = scenario_of(8, 1000, 2)
    oracle = scenario.entries[0].policy.model_copy(update={"name": "oracle-clairvoyant"})
    entries = tuple(
        entry.model_copy(update={"policy": oracle} if entry.label == "c" else {})
        for entry in scenario.entries
    )
    before = write(entries=entries)
    after = write(slower={"c": 1.3, "a again": 1.3}, entries=entries)
    found = ran(before, after, "--json", tmp_path / "out.json", "--fail-if-worse", "1.05")
    assert (found.return_value, list(rows(tmp_path / "out.json"))) == (0, ["a", "b"])


def test_blocks_of_other_seeds_are_not_paired(write: Write, tmp_path: Path) -> None:
    """The variation between blocks remains: 30 % is not significant in eight runs, and the output gives the reason."""
    before, after = write(), write(slower={"b": 1.3}, seed=2)
    found = ran(before, after, "--json", tmp_path / "out.json", "--fail-if-worse", "1.05")
    assert "No two runs had the same requests, so none were paired" in found.output
    assert found.return_value == 0
    assert rows(tmp_path / "out.json")["b"]["is_paired"] is False
    assert rows(tmp_path / "out.json")["b"]["second_is"] == "undecided"


def test_too_few_blocks_are_not_judged(write: Write) -> None:
    """Three blocks have an interval and no verdict, so the check is not passed."""
    found = ran(write(blocks=3), write(blocks=3, slower={"b": 2.0}), "--fail-if-worse", "1.05")
    assert found.return_value == 1
    assert "not judged, too few blocks: a, b, c" in found.output


def test_a_single_pair_has_no_interval(write: Write) -> None:
    """It is a pair all the same, and the output says what is missing."""
    said = ran(write(blocks=1), write(blocks=1, slower={"b": 2.0})).output
    assert "Runs were paired by their seeds; a single pair has no interval." in said


def test_invalid_runs_are_left_out_and_reported(write: Write) -> None:
    """With no valid run there is a message instead of numbers."""
    before, after = write(), write(late=0.004)
    found = ran(before, after)
    assert f"INVALID: 32 of 32 runs of {after}" in found.output.replace("\n", "")
    assert "No entry has a valid run on both sides." in found.output
    assert "nan" not in found.output


def test_different_scenarios_are_rejected(write: Write, tmp_path: Path) -> None:
    """The message names the differences: a timeout and a region."""
    scenario = scenario_of(8, 50, 2)
    far = tuple(region.model_copy(update={"rtt": 0.1}) for region in scenario.regions)
    before, after = write(), write(timeout=3.0, regions=far)
    found = ran(before, after)
    assert isinstance(found.exception, BadInputError)
    assert "they differ in timeout, regions.here.rtt; --anyway" in str(found.exception)
    assert "differs: timeout: 30.0 → 3.0" in ran(before, after, "--anyway").output
    others = tuple(
        entry.model_copy(update={"label": f"new {entry.label}", "repeat_of": None})
        for entry in scenario.entries
    )
    found = ran(before, write(entries=others, baseline="new a"), "--anyway", "--html", tmp_path / "page.html")
    assert "have no entry of the same label" in str(found.exception)


def test_an_entry_has_one_colour_in_both_sets(write: Write) -> None:
    """Whatever the order of the entries of the second, here all of one policy."""
    entries = tuple(entry.model_copy(update={"repeat_of": None}) for entry in scenario_of(8, 50, 2).entries)
    policy = entries[0].policy
    alike = tuple(entry.model_copy(update={"policy": policy}) for entry in entries)
    one, other = (
        side("set", load_results(write(entries=each, requests=50))) for each in (alike, alike[::-1])
    )
    field = drawn_field((one, other))
    colours = [each.colour for each in field]
    assert colours[::2] == colours[1::2]
    assert len(set(colours)) == len(entries)


def test_each_revision_runs_its_own_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each block in a working copy of its revision; copies are removed afterwards, results are kept."""
    repository = tmp_path / "repository"
    (repository / "experiments").mkdir(parents=True)
    (repository / "experiments" / "__init__.py").write_text("")
    monkeypatch.chdir(repository)
    for command in (["init", "-q"], ["config", "user.email", "a@b"], ["config", "user.name", "a"]):
        git(*command)
    for version in ("one", "two"):
        (repository / "experiments" / "__main__.py").write_text(
            FAKE.format(version=version), encoding="utf-8"
        )
        git("add", "-A")
        git("commit", "-q", "-m", version)
        git("tag", version)
    plan = RevisionPlan("steady", 3, 7, ("--quick",), tmp_path / "out")
    save_set(tmp_path / "shown", scenario_of(1, 50, 1, has_control=False), weather, stop_after=1)
    monkeypatch.setenv("SHOWN", str(tmp_path / "shown"))
    one, two = measure(("one", "two"), plan, Console(quiet=True))
    assert [run.facts.block for run in one.runs] == [0, 1, 2]
    assert ([run.block for run in one.campaign.plan], one.missing) == ([0, 0, 1, 1, 2, 2], 3)
    assert one.campaign.command.startswith("one run steady --quick --blocks 1 --seed 7 --out ")
    assert two.campaign.command.startswith("two ")
    assert len(list((repository / ".git" / "worktrees").glob("*"))) == 0
    with pytest.raises(BadInputError, match=r"--rev: git worktree: .*nothing"):
        measure(("one", "nothing"), replace(plan, out=tmp_path / "other"), Console(quiet=True))


FAKE = """
import json, os, shutil, sys
out = sys.argv[sys.argv.index("--out") + 1]
shutil.copytree(os.environ["SHOWN"], out)
campaign = json.load(open(out + "/campaign.json"))
campaign["command"] = " ".join(["{version}", *sys.argv[1:]])
json.dump(campaign, open(out + "/campaign.json", "w"))
"""


def test_the_complaint_of_a_revision_is_told_whole(tmp_path: Path) -> None:
    """It may end in a long list of what is known."""
    (tmp_path / "experiments").mkdir()
    (tmp_path / "experiments" / "__init__.py").touch()
    complaint = f"unknown 'nosuch'; known: {'round-robin, ' * 50}"
    main = f"import sys; print({complaint!r}, file=sys.stderr); sys.exit(2)"
    (tmp_path / "experiments" / "__main__.py").write_text(main, encoding="utf-8")
    plan = RevisionPlan("steady", 1, 1, (), tmp_path / "out")
    with pytest.raises(FleetFailedError, match=r"first-000: unknown 'nosuch'; known: round-robin"):
        run_block(tmp_path, plan, 0, tmp_path / "out" / "first-000")


def test_options_of_revisions_are_rejected_with_directories(write: Write) -> None:
    found = ran(write(), write(), "--blocks", "3")
    assert isinstance(found.exception, BadInputError)
    assert "--blocks: only with --rev" in str(found.exception)
