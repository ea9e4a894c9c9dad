"""`experiments live`: readings, turns as runs, guard rails and restoration, on a simulated balancer and over HTTP."""

from __future__ import annotations

import asyncio
import json
import math
import os
import re
import signal
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from click.testing import CliRunner

from experiments.__main__ import cli
from experiments.commands.live import live_scenario, usual_washout
from experiments.commands.options import PERCENT, policies_chosen
from experiments.commands.session import run_campaign
from experiments.errors import BadInputError, ExperimentError
from experiments.platform.terminal import write_json
from experiments.results.directory import PlannedRun, load_results
from experiments.running.execute import execute, prepare
from experiments.running.runner import Observer
from experiments.stats.measures import deadline_mapped, errors_by_kind, goodput, percentile
from experiments.switchback.balancer import LiveBalancer
from experiments.switchback.readings import (
    LiveError,
    MetricsReading,
    MetricsWindow,
    RailBroken,
    Rails,
    between,
)
from experiments.switchback.runner import LiveRunner, run_of, window_in_words
from experiments.switchback.turns import PolicyTurns
from experiments.verdict.summary import Summary, summarise
from policies.stats.load import RATIO, SHORTEST, Histogram
from tests.support.made_up_balancer import MadeUpBalancer
from tests.support.wire import Message, ScriptedWorker, answering, response

POLICIES: dict[str, dict[str, Any]] = {"slow": {"name": "slow"}, "fast": {"name": "fast", "choices": 2}}
TIMES = {"period": 8.0, "washout": 2.0, "timeout": 30.0}


def evaluate(
    balancer: MadeUpBalancer,
    folder: Path,
    blocks: int = 8,
    policies: dict[str, dict[str, Any]] = POLICIES,
    control: tuple[str, str] | None = None,
    rails: tuple[float | None, float | None] = (None, None),
    is_reported: bool = False,
    **times: float,
) -> Summary:
    """Run an evaluation in the balancer's own time, and read its results."""
    turns = PolicyTurns(balancer, *rails, lambda line: None, 1.0, balancer.now, balancer.sleep)
    initial = turns.begin([*policies.values()])
    scenario = live_scenario(
        "http://a", policies, control, initial, blocks=blocks, seed=1, **{**TIMES, **times}
    )
    if is_reported:
        run_campaign(scenario, folder, LiveRunner(turns), 0.0, turns.restoring(), "experiments live")
    else:
        with turns.restoring():
            execute(prepare(scenario, "experiments live", folder), folder, LiveRunner(turns), Observer())
    return summarise(load_results(folder))


# --- readings


SCENARIO = live_scenario("http://a", POLICIES, None, {}, blocks=8, seed=1, **TIMES)
PLANNED = PlannedRun(block=0, order=0, label="fast", seed=1)


def reading(seconds: list[float], at: float = 0.0, requests: int = 0, errors: int = 0) -> MetricsReading:
    histogram = Histogram()
    for one in seconds:
        histogram.record(one)
    counts = np.asarray(histogram.counts, dtype=np.int64)
    return MetricsReading(at, {"name": "x"}, requests, errors, {"a": counts}, SHORTEST, RATIO)


def test_a_window_is_the_difference_of_two_readings() -> None:
    rng = np.random.default_rng(1)
    old, new = rng.gamma(4, 1.0, 500).tolist(), rng.gamma(4, 0.01, 5000).tolist()
    window = between(reading(old, 10.0, 500, 3), reading(old + new, 20.0, 5600, 103))
    assert (window.answered, window.requests, window.rate) == (5000, 5100, 510.0)
    assert window.error_share == pytest.approx(100 / 5100)
    for q in (0.1, 0.5, 0.9, 0.99):
        assert window.quantile(q) == pytest.approx(float(np.quantile(new, q)), rel=0.03)
    samples = run_of(SCENARIO, PLANNED, window).samples
    assert (samples.requests, samples.successes, len(samples) < 1000) == (5100, 5000, True)
    for q in (0.1, 0.5, 0.9, 0.99):
        rows = samples.per_request(samples.latency, samples.ok)
        assert percentile(rows, 100 * q) == pytest.approx(window.quantile(q), rel=0.006)
    assert rows.mean() == pytest.approx(float(np.mean(new)), rel=0.02)


@pytest.mark.parametrize(("count", "named"), [(1000, ", p99 "), (999, ", p95 "), (199, ", p90 "), (39, "")])
def test_a_line_names_the_percentile_that_its_requests_support(count: int, named: str) -> None:
    """The same rule as in tables: ten requests beyond it."""
    line = window_in_words(between(reading([], 0.0), reading([0.1] * count, 10.0, count)))
    assert re.sub(r"\d+ ms", "", line.partition("p50")[2].partition(", errors")[0]).strip() == named.strip()


def test_an_empty_window_has_no_quantile() -> None:
    same = reading([0.1])
    assert math.isnan(between(same, same).quantile(0.99))


def test_shrunken_counters_mean_a_restart() -> None:
    with pytest.raises(LiveError, match="counters have shrunk"):
        between(reading([0.1, 0.2], requests=2), reading([0.1], requests=1))


# --- the evaluation


def test_every_policy_runs_in_every_block_and_the_initial_one_is_restored(tmp_path: Path) -> None:
    balancer = MadeUpBalancer()
    summary = evaluate(balancer, tmp_path, 6)
    assert Counter((run.label, run.block) for run in summary.runs) == Counter(
        (label, block) for label in POLICIES for block in range(6)
    )
    assert Counter(policy["name"] for policy in balancer.put[:-1]) == {"slow": 6, "fast": 6}
    assert balancer.put[-1] == balancer.policy == {"name": "old"}
    assert balancer.at == 8.0 * 13
    assert {(run.span, run.requests, run.valid) for run in summary.runs} == {(6.0, 1200, True)}


@pytest.mark.second_tier
def test_the_faster_policy_is_ahead_and_the_report_is_that_of_every_campaign(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A new winner is printed after its block, from the eighth on, and not again while it stays."""
    summary = evaluate(MadeUpBalancer(), tmp_path, 10, is_reported=True)
    assert summary.scenario.baseline == "slow"
    assert {comparison.measure for comparison in summary.comparisons} == {"p99", "p50", "mean"}
    comparison = summary.comparisons[0]
    assert (comparison.measure, comparison.standing) == ("p99", "ahead")
    assert comparison.interval.ratio == pytest.approx(0.5, rel=0.1)
    assert [entry.label for entry in summary.entries] == ["fast", "slow"]
    verdict = summary.verdict
    assert (verdict.winner, verdict.has_verdict) == ("fast", True)
    assert verdict.headline.startswith("Run fast: the slowest 1 % of requests are ")
    assert "faster than under slow, the runner-up" in verdict.headline
    assert "a failed request counting as slow as the deadline" in verdict.details[-1]
    assert verdict.details[-1].endswith(" The intervals hold at every look.")
    assert re.findall(r"after (\d+) blocks: Run (\w+):", capsys.readouterr().out) == [("8", "fast")]
    written = json.loads((tmp_path / "summary.json").read_text())
    assert (written["scenario"]["baseline"], written["verdict"]["headline"]) == ("slow", verdict.headline)
    page = (tmp_path / "report.md").read_text()
    assert "its own traffic" in page
    assert "generator" not in page
    drawn = {file.stem for file in (tmp_path / "figures").glob("*.svg")}
    assert drawn == {"verdict", "paired-ratios", "latency-quantiles", "latency-distribution"}


def test_two_result_sets_are_compared(tmp_path: Path) -> None:
    """Their blocks are not paired: the seed decides nothing but the order."""
    names = [str(tmp_path / name) for name in ("first", "second")]
    for name, mean in zip(names, (0.06, 0.09), strict=True):
        balancer = MadeUpBalancer()
        balancer.means["fast"] = mean
        evaluate(balancer, Path(name))
    ran = CliRunner().invoke(cli, ["compare", *names])
    assert "By p99 latency, the second is worse: fast; practically equal: slow." in ran.output
    assert "throughput" not in ran.output
    assert "A balancer's own traffic has no seed, so none were paired" in ran.output


def test_a_policy_that_fails_more_requests_is_not_ahead(tmp_path: Path) -> None:
    """Twice as fast, and 1.9 % of its requests fail: its p99 is the deadline, and its goodput is shown."""
    balancer = MadeUpBalancer()
    balancer.error_share["fast"] = 0.019
    summary = evaluate(balancer, tmp_path, 10, rails=(None, 0.5))
    comparison = summary.comparisons[0]
    assert (comparison.standing, comparison.judged_by) == ("behind", "p99")
    assert summary.verdict.winner == "slow"
    entries = {entry.label: entry for entry in summary.entries}
    assert entries["fast"].latency_deadline_mapped[4].seconds == 30.0
    assert entries["fast"].goodput == pytest.approx(0.981, abs=0.003)
    assert entries["fast"].goodput == pytest.approx(1 - entries["fast"].table.ko_percent / 100)
    assert entries["slow"].goodput == 1.0


def test_a_policy_whose_clients_leave_is_not_ahead(tmp_path: Path) -> None:
    """Twice as fast for those that wait for it: a request whose client left is no success, and the rail sees it."""
    balancer = MadeUpBalancer()
    balancer.left_share["fast"] = 0.3
    summary = evaluate(balancer, tmp_path, 10, rails=(None, 0.5))
    assert (summary.comparisons[0].standing, summary.verdict.winner) == ("behind", "slow")
    assert errors_by_kind(load_results(tmp_path).runs_of("fast")).keys() == {"abandoned"}
    with pytest.raises(RailBroken, match=r"of requests failed, more than 2\.0%"):
        evaluate(balancer, tmp_path / "again", 4)


async def test_requests_are_counted_and_not_attempts() -> None:
    """A worker's 5xx counts where a client got it: the balancer's attempts, all errors here, were retried."""
    balancer = MadeUpBalancer()
    before = MetricsReading.of(await balancer.latency(), balancer.now())
    await balancer.sleep(1)
    document = await balancer.latency() | {"worker_errors": 3}
    window = between(before, MetricsReading.of(document, balancer.now()))
    assert (window.requests, window.failed) == (200, 3)


def test_failures_of_a_window_count_as_the_deadline() -> None:
    """Nine answers of 1 s and a failure: the last tenth is the deadline."""
    run = run_of(SCENARIO, PLANNED, between(reading([], 0.0), reading([1.0] * 9, 10.0, 10, 1)))
    mapped = deadline_mapped(run)
    assert percentile(mapped, 90) == pytest.approx(1.0, rel=0.05)
    assert percentile(mapped, 91) == 30.0
    assert (goodput([run], 30.0), goodput([run], 0.5)) == (0.9, 0.0)
    assert (errors_by_kind([run]), run.span) == ({"error_status": 1}, 10.0)


def test_a_period_without_an_end_makes_its_block_invalid() -> None:
    run = run_of(SCENARIO, PLANNED, between(reading([], 0.0), reading([], 10.0)))
    assert run.facts.invalid_reasons == ("interrupted: no request ended",)


def test_a_policy_that_is_stood_in_for_makes_its_run_invalid() -> None:
    """With the fault, which the status no longer shows when the initial policy is back."""
    before = reading([], requests=0)
    later = replace(reading([0.1], 10.0, 1000), fallback_picks=20, last_fault="Boom raised KeyError")
    (reason,) = run_of(SCENARIO, PLANNED, between(before, later)).facts.invalid_reasons
    assert reason == "the policy failed 20 of 1000 times and was stood in for: Boom raised KeyError"


def test_short_periods_are_judged_by_the_mean(tmp_path: Path) -> None:
    """200 requests a second for 2 s are too few for a p99."""
    summary = evaluate(MadeUpBalancer(), tmp_path, period=4.0)
    assert {comparison.measure for comparison in summary.comparisons} == {"p50", "mean"}
    assert summary.verdict.headline.startswith("Run fast: the average request is ")
    assert summary.verdict.sentences[0].startswith("The mean decides: a p99 takes 1\u202f000 requests")


def test_an_a_a_pair_is_not_different(tmp_path: Path) -> None:
    policies, control = policies_chosen("fast,fast", ())
    summary = evaluate(MadeUpBalancer(), tmp_path, 10, policies, control, rails=(1.0, None))
    floor = summary.noise_floor["p99"]
    assert floor.low < 1 < floor.high or floor.ratio == pytest.approx(1, abs=0.05)
    assert summary.verdict.headline.startswith("fast: ")
    assert "Noise floor: the same entry run twice differed by" in summary.verdict.details[-1]


def test_a_much_slower_policy_is_rolled_back_at_once(tmp_path: Path) -> None:
    """Within the wash-out, too; what was measured before it is kept."""
    balancer = MadeUpBalancer()
    balancer.means["slow"] = 0.9
    with pytest.raises(RailBroken, match=r"slow: p99 is \d+ ms"):
        evaluate(balancer, tmp_path, 4, washout=6.0)
    assert balancer.policy == {"name": "old"}
    assert balancer.at <= 8.0 * len(balancer.put[:-1]) + 3
    assert len(list((tmp_path / "runs").iterdir())) == len(balancer.put) - 2


@pytest.mark.parametrize(
    ("rails", "why"), [((0.05, None), r"p99 is \d+ ms, more than 50 ms"), ((None, 0.0), "requests failed")]
)
def test_an_initial_policy_that_breaks_a_guard_rail_is_told_first(
    tmp_path: Path, rails: tuple[float | None, float | None], why: str
) -> None:
    """Before another policy gets a request, which could only be rolled back; the directory is free for another try."""
    balancer = MadeUpBalancer()
    balancer.error_share["old"] = 0.01
    with pytest.raises(
        BadInputError, match=f"^'old', the initial policy, breaks a guard rail already: .*{why}"
    ):
        evaluate(balancer, tmp_path / "new", 4, rails=rails, is_reported=True)
    assert balancer.put == []
    assert balancer.at == TIMES["period"]
    assert not (tmp_path / "new").exists()


def test_a_policy_whose_command_failed_may_be_in_force() -> None:
    balancer = MadeUpBalancer()
    turns = PolicyTurns(balancer, poll=0.01)
    turns.begin([*POLICIES.values()])
    failing = patch.object(balancer, "apply", side_effect=BadInputError("no answer"))
    with pytest.raises(BadInputError, match="no answer"), turns.restoring(), failing:
        asyncio.run(turns.apply(POLICIES["fast"]))
    assert balancer.put == [{"name": "old"}]


def test_errors_break_a_guard_rail(tmp_path: Path) -> None:
    balancer = MadeUpBalancer()
    balancer.error_share["fast"] = 0.2
    with pytest.raises(RailBroken, match=r"of requests failed, more than 2\.0%"):
        evaluate(balancer, tmp_path, 4)
    assert balancer.policy == {"name": "old"}


def test_requests_without_answers_break_a_guard_rail() -> None:
    """A policy that sends all requests to a hanging worker has no slow answers."""
    window = MetricsWindow(5.0, 300, 0, 0, {}, SHORTEST, RATIO)
    assert "none of 300 requests was answered" in str(Rails(1.0, 0.5).broken_by(window))


def test_ctrl_c_restores_the_initial_policy_and_keeps_whole_periods(tmp_path: Path) -> None:
    balancer = MadeUpBalancer()

    def stop() -> None:
        if balancer.at == 30:
            os.kill(os.getpid(), signal.SIGINT)

    balancer.sleeping = stop
    with pytest.raises(KeyboardInterrupt):
        evaluate(balancer, tmp_path, 4)
    assert balancer.policy == {"name": "old"}
    summary = summarise(load_results(tmp_path))
    assert (len(summary.runs), summary.missing_runs) == (2, 6)


def test_a_failing_balancer_gets_its_initial_policy_back(tmp_path: Path) -> None:
    balancer = MadeUpBalancer()
    fine = balancer.latency

    async def failing() -> dict[str, Any]:
        if 20 < balancer.at < 23:
            raise LiveError("no answer")
        return await fine()

    balancer.latency = failing  # type: ignore[method-assign]
    with pytest.raises(LiveError, match="no answer"):
        evaluate(balancer, tmp_path, 4)
    assert balancer.policy == {"name": "old"}


def test_a_failed_restoration_is_reported(tmp_path: Path) -> None:
    balancer = MadeUpBalancer()
    balancer.means["slow"] = 5.0
    fine = balancer.apply

    async def refusing(policy: dict[str, Any]) -> None:
        if policy["name"] == "old":
            raise LiveError("no answer")
        await fine(policy)

    balancer.apply = refusing  # type: ignore[method-assign]
    with pytest.raises(LiveError, match=r"'old'.*'slow'"):
        evaluate(balancer, tmp_path, 4)


def test_a_policy_applied_by_another_client_is_kept(tmp_path: Path) -> None:
    balancer = MadeUpBalancer()
    balancer.means["theirs"] = 0.1

    def meddle() -> None:
        if balancer.at > 30:
            balancer.policy = {"name": "theirs"}

    balancer.sleeping = meddle
    with pytest.raises(LiveError, match=r"^a reload or another client has applied 'theirs'"):
        evaluate(balancer, tmp_path, 4)
    assert balancer.policy == {"name": "theirs"}


def test_a_changed_file_of_a_policy_ends_the_evaluation(tmp_path: Path) -> None:
    """Its periods would have different policies; the initial one is restored."""
    balancer = MadeUpBalancer()

    def edit() -> None:
        balancer.files = [{"path": "/a.py", "version": "222" if balancer.at > 40 else "111"}]

    balancer.sleeping = edit
    message = r"^/a\.py was changed during the evaluation: version 111 before, 222 now"
    with pytest.raises(BadInputError, match=message):
        evaluate(balancer, tmp_path)
    assert balancer.policy == {"name": "old"}


def test_an_unknown_policy_is_rejected_before_anything_is_changed(tmp_path: Path) -> None:
    balancer = MadeUpBalancer()
    with pytest.raises(BadInputError, match="unknown policy"):
        evaluate(balancer, tmp_path, policies={"fast": {"name": "fast"}, "p2x": {"name": "p2x"}})
    assert (balancer.put, balancer.at) == ([], 0.0)


def test_too_little_traffic_ends_the_evaluation(tmp_path: Path) -> None:
    balancer = MadeUpBalancer()
    with pytest.raises(BadInputError, match="--block must be long enough"):
        evaluate(balancer, tmp_path, 4, period=0.25, washout=0.1)
    assert balancer.put == []


@pytest.mark.parametrize(("period", "washout"), [(60.0, 10.0), (6.0, 2.0), (2.0, 1.0), (0.5, 0.25)])
def test_washout_follows_the_period(period: float, washout: float) -> None:
    assert usual_washout(period) == washout


# --- over HTTP


async def test_requests_to_the_admin_interface() -> None:
    """A 503 is retried."""

    def answer(_: Message) -> bytes:
        is_first = len(server.requests) == 1
        return response(b'{"fine": true}', status=b"503 Later" if is_first else b"200 OK")

    async def at_once(seconds: float) -> None:
        pass

    async with ScriptedWorker(answering(answer)) as server:
        balancer = LiveBalancer(server.url, "secret", at_once)
        assert await balancer.latency() == {"fine": True}
        await balancer.apply({"name": "x", "option": 1})
    assert [request.line for request in server.requests] == [
        b"GET /-/latency HTTP/1.1",
        b"GET /-/latency HTTP/1.1",  # 503 is asked again
        b"PUT /-/policy HTTP/1.1",
    ]
    assert {request.value(b"Authorization") for request in server.requests} == {b"Bearer secret"}
    assert json.loads(server.requests[-1].body) == {"name": "x", "option": 1}


@pytest.mark.parametrize(("status", "problem"), [(404, "see --token"), (422, "unknown policy")])
async def test_rejected_requests_are_bad_input(status: int, problem: str) -> None:
    answer = response(b'{"error": "unknown policy \'x\'"}', status=b"%d No" % status)
    async with ScriptedWorker(answering(answer)) as server:
        with pytest.raises(BadInputError, match=problem):
            await LiveBalancer(server.url, None).apply({"name": "x"})


# --- options


def test_policies_from_the_command_line() -> None:
    chosen, control = policies_chosen("a, b", ('{"name": "a", "margin": 0.5}',))
    assert (list(chosen), control) == (["a", "b", "a (margin=0.5)"], None)
    assert chosen["a (margin=0.5)"] == {"name": "a", "margin": 0.5}
    assert policies_chosen("a,a", ())[1] == ("a", "a again")


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--policies", "a"], "--policies: name two or more"),
        (["--policies", "a,a,a"], "one pair too many"),
        (["--policies", "a,b", "--policy", "{"], "--policy: must be a JSON object with a name"),
        (["--policies", "a,b", "--block", "soon"], "--block: must be a duration"),
        (
            ["--policies", "a,b", "--block", "2s", "--washout", "2s"],
            "--washout: must be shorter than --block",
        ),
        (["--policies", "a,b", "--max-p99", "0"], "--max-p99: must be a duration"),
        (["--policies", "a,b", "--out", "/dev/null/a"], "--out: /dev/null/a"),
        (["--policies", "a,b", "--max-errors", "many"], "--max-errors: must be a percentage"),
    ],
)
def test_bad_input_is_one_line(arguments: list[str], problem: str) -> None:
    ran = CliRunner().invoke(cli, ["live", "http://127.0.0.1:1", *arguments])
    assert isinstance(ran.exception, ExperimentError)
    assert ran.exception.exit_code == 2
    assert problem in str(ran.exception)


def test_values_that_no_scenario_has_are_one_line() -> None:
    with pytest.raises(BadInputError, match=r"^--period: Input should be less than or equal to 10000000"):
        live_scenario("http://a", POLICIES, None, {}, blocks=8, seed=1, **(TIMES | {"period": 2e7}))


def test_percentages() -> None:
    assert PERCENT.convert("1.5%", None, None) == pytest.approx(0.015)


def test_non_finite_numbers_are_null_in_json(tmp_path: Path) -> None:
    write_json(tmp_path / "x", {"p99": math.nan, "rows": [(1.5, math.inf)]})
    assert json.loads((tmp_path / "x").read_text()) == {"p99": None, "rows": [[1.5, None]]}
