"""`experiments live`: readings, switchback, guard rails and restoration, on a simulated balancer and over HTTP."""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from aiohttp import web
from click.testing import CliRunner

from experiments.__main__ import cli
from experiments.commands.live import in_words
from experiments.commands.live_options import percent, policies_chosen, usual_washout
from experiments.errors import BadInputError, ExperimentError
from experiments.platform.terminal import write_json
from experiments.switchback.balancer import BalancerUnreachable, HttpBalancer
from experiments.switchback.guard_rails import Rails
from experiments.switchback.policy_in_force import PolicyChangedExternally, PolicyFileChanged, RestoreFailed
from experiments.switchback.readings import BalancerRestarted, Reading, Window, between
from experiments.switchback.switchback import Findings, Plan, RailBroken, Switchback
from experiments.switchback.verdict import result_of
from policies.stats.load import RATIO, SHORTEST, Histogram
from tests.support.made_up_balancer import MadeUpBalancer

POLICIES: dict[str, dict[str, Any]] = {"slow": {"name": "slow"}, "fast": {"name": "fast", "choices": 2}}


class Silent:
    """Observer."""

    def __init__(self) -> None:
        self.ends: list[tuple[int | None, str]] = []

    def period_began(self, block: int | None, label: str) -> None:
        pass

    def window_grew(self, window: Window) -> None:
        pass

    def period_ended(self, block: int | None, label: str, window: Window) -> None:
        self.ends.append((block, label))


def plan(blocks: int = 8, **changes: Any) -> Plan:
    return Plan(**{"policies": POLICIES, "blocks": blocks, "period": 12.0, "washout": 2.0, **changes})


def switchback(balancer: MadeUpBalancer, what: Plan) -> Switchback:
    return Switchback(balancer, what, Silent(), balancer.now, balancer.sleep)


# --- readings


def reading(seconds: list[float], at: float = 0.0, requests: int = 0, errors: int = 0) -> Reading:
    histogram = Histogram()
    for one in seconds:
        histogram.record(one)
    counts = np.asarray(histogram.counts, dtype=np.int64)
    return Reading(at, {"name": "x"}, requests, errors, {"a": counts}, SHORTEST, RATIO)


def test_a_window_is_the_difference_of_two_readings() -> None:
    rng = np.random.default_rng(1)
    old, new = rng.gamma(4, 1.0, 500).tolist(), rng.gamma(4, 0.01, 5000).tolist()
    window = between(reading(old, 10.0, 500, 3), reading(old + new, 20.0, 5600, 103))
    assert (window.answered, window.requests, window.rate) == (5000, 5100, 510.0)
    assert window.error_share == pytest.approx(100 / 5100)
    for q in (0.1, 0.5, 0.9, 0.99):
        assert window.quantile(q) == pytest.approx(float(np.quantile(new, q)), rel=0.03)
    assert window.mean == pytest.approx(float(np.mean(new)), rel=0.02)


@pytest.mark.parametrize(("count", "named"), [(1000, ", p99 "), (999, ", p95 "), (199, ", p90 "), (39, "")])
def test_a_line_names_the_percentile_that_its_requests_support(count: int, named: str) -> None:
    """The same rule as in tables: ten requests beyond it."""
    line = in_words(between(reading([], 0.0), reading([0.1] * count, 10.0, count)))
    assert re.sub(r"\d+ ms", "", line.partition("p50")[2].partition(", errors")[0]).strip() == named.strip()


def test_an_empty_window_has_no_quantile() -> None:
    same = reading([0.1])
    assert math.isnan(between(same, same).quantile(0.99))


def test_shrunken_counters_mean_a_restart() -> None:
    with pytest.raises(BalancerRestarted):
        between(reading([0.1, 0.2], requests=2), reading([0.1], requests=1))


# --- the evaluation


async def test_every_policy_runs_in_every_block_and_the_initial_one_is_restored() -> None:
    balancer, what = MadeUpBalancer(), plan(6)
    made = switchback(balancer, what)
    findings = await made.run()
    assert {label: sorted(windows) for label, windows in findings.windows.items()} == {
        "slow": list(range(6)),
        "fast": list(range(6)),
    }
    assert Counter(policy["name"] for policy in balancer.put[:-1]) == {"slow": 6, "fast": 6}
    assert balancer.put[-1] == balancer.policy == {"name": "old"}
    assert findings.is_restored
    assert len({tuple(what.order(block)) for block in range(6)}) == 2  # the order changes
    assert balancer.at == what.seconds
    assert all(window.seconds == 10 for windows in findings.windows.values() for window in windows.values())


async def test_the_faster_policy_is_ahead() -> None:
    balancer, what = MadeUpBalancer(), plan(10)
    result = result_of(what, await switchback(balancer, what).run(), None)
    assert result.baseline == "slow"
    (comparison,) = [c for c in result.comparisons if c.measure == "p99"]
    assert comparison.standing == "ahead"
    assert comparison.interval.ratio == pytest.approx(0.5, rel=0.1)
    assert [row.label for row in result.rows] == ["fast", "slow"]
    assert (result.verdict.winner, result.verdict.has_verdict) == ("fast", True)
    assert result.verdict.headline.startswith("Run fast: the slowest 1 % of requests are ")
    assert "faster than under slow, the runner-up" in result.verdict.headline
    assert "a failed request counting as slow as the deadline" in result.verdict.details[-1]
    assert result.verdict.details[-1].endswith(" The intervals hold at every look.")
    written = json.loads(json.dumps(result.as_dict()))
    assert (written["baseline"], written["verdict"]["winner"]) == ("slow", "fast")
    assert written["verdict"]["headline"] == result.verdict.headline


async def test_a_policy_that_fails_more_requests_is_not_ahead() -> None:
    """Twice as fast, and 1.9 % of its requests fail: its p99 is the deadline, and its goodput is shown."""
    balancer, what = MadeUpBalancer(), plan(10, errors=0.5)
    balancer.error_share["fast"] = 0.019
    result = result_of(what, await switchback(balancer, what).run(), None)
    (comparison,) = [c for c in result.comparisons if c.measure == "p99"]
    assert (comparison.standing, comparison.judged_by) == ("behind", "p99")
    assert result.verdict.winner == "slow"
    rows = {row.label: row for row in result.rows}
    assert rows["fast"].p99 == what.deadline
    assert (
        rows["fast"].goodput == pytest.approx(1 - rows["fast"].error_share) == pytest.approx(0.981, abs=0.003)
    )
    assert rows["slow"].goodput == 1.0


async def test_goodput_decides_where_both_policies_fail() -> None:
    """Both have the deadline as p99: the one with half of the failures is ahead."""
    balancer, what = MadeUpBalancer(), plan(12, errors=0.5)
    balancer.error_share = {"slow": 0.08, "fast": 0.03}
    result = result_of(what, await switchback(balancer, what).run(), None)
    (comparison,) = [c for c in result.comparisons if c.measure == "p99"]
    assert (comparison.standing, comparison.judged_by) == ("ahead", "goodput")
    assert result.verdict.headline.startswith("Run fast: the odds of a late or failed answer are ")


def test_latencies_with_failures_at_the_deadline() -> None:
    """Nine answers of 1 s and a failure: the last tenth is the deadline. Without any end there is nothing."""
    window = between(reading([], 0.0), reading([1.0] * 9, 10.0, 10, 1))
    assert window.mapped_quantile(0.9, 30.0) == pytest.approx(window.quantile(1.0))
    assert window.mapped_quantile(0.91, 30.0) == 30.0
    assert window.mapped_mean(30.0) == pytest.approx((9 * window.mean + 30) / 10)
    assert (window.goodput(30.0), window.goodput(0.5)) == (0.9, 0.0)
    failing = between(reading([], 0.0), reading([], 10.0, 10, 10))
    assert (failing.mapped_quantile(0.5, 30.0), failing.mapped_mean(30.0), failing.goodput(30.0)) == (
        30,
        30,
        0,
    )
    none = between(reading([], 0.0), reading([], 10.0))
    assert math.isnan(none.mapped_quantile(0.5, 30.0))
    assert math.isnan(none.goodput(30.0))


async def test_short_periods_are_judged_by_the_mean() -> None:
    """200 requests a second for 2 s are too few for a p99."""
    balancer, what = MadeUpBalancer(), plan(8, period=4.0, washout=2.0)
    result = result_of(what, await switchback(balancer, what).run(), None)
    assert {comparison.measure for comparison in result.comparisons} == {"p50", "mean"}
    assert result.verdict.headline.startswith("Run fast: the average request is ")
    assert all(math.isnan(row.p99) and row.p50 > 0 for row in result.rows)
    assert result.verdict.sentences[0].startswith("The mean decides: a p99 takes 1\u202f000 requests")


async def test_an_a_a_pair_is_not_different() -> None:
    balancer = MadeUpBalancer()
    policies, control = policies_chosen("fast,fast", ())
    what = plan(10, policies=policies, p99=1.0)
    result = result_of(what, await switchback(balancer, what).run(), control)
    floor = result.floors["p99"]
    assert floor.low < 1 < floor.high or floor.ratio == pytest.approx(1, abs=0.05)
    assert result.verdict.headline.startswith("fast: ")
    assert "Noise floor: the same entry run twice differed by" in result.verdict.details[-1]


async def test_few_blocks_give_no_verdict() -> None:
    balancer, what = MadeUpBalancer(), plan(2)
    result = result_of(what, await switchback(balancer, what).run(), None)
    assert {comparison.standing for comparison in result.comparisons} == {"no verdict"}
    assert result.verdict.headline == "No verdict: each ran twice, 8 needed to tell a difference from chance"
    assert result.verdict.advice == "Repeat the command with --blocks 8 or more."


async def test_a_much_slower_policy_is_rolled_back_at_once() -> None:
    """Within the wash-out, too."""
    balancer = MadeUpBalancer()
    balancer.means["slow"] = 0.9
    made = switchback(balancer, plan(4, washout=6.0))
    with pytest.raises(RailBroken, match=r"slow: p99 rose to \d+ ms"):
        await made.run()
    assert balancer.policy == {"name": "old"}
    assert made.findings.is_restored
    slow_at = 12.0 + 12.0 * plan().order(0).index("slow")
    assert balancer.at <= slow_at + 3


async def test_errors_break_a_guard_rail() -> None:
    balancer = MadeUpBalancer()
    balancer.error_share["fast"] = 0.2
    with pytest.raises(RailBroken, match=r"of requests failed, more than 2\.0%"):
        await switchback(balancer, plan(4)).run()
    assert balancer.policy == {"name": "old"}


def test_requests_without_answers_break_a_guard_rail() -> None:
    """A policy that sends all requests to a hanging worker has no slow answers."""
    nothing = np.zeros(4, dtype=np.int64)
    window = Window(5.0, 300, 0, 0, nothing, {}, SHORTEST, RATIO)
    assert "none of 300 requests was answered" in str(Rails(1.0, 0.5).broken_by(window))


async def test_cancellation_restores_the_initial_policy() -> None:
    balancer = MadeUpBalancer()
    made = switchback(balancer, plan(4))
    task = asyncio.ensure_future(made.run())

    def stop() -> None:
        if balancer.at > 30:
            task.cancel()

    balancer.sleeping = stop
    with pytest.raises(asyncio.CancelledError):
        await task
    assert balancer.policy == {"name": "old"}
    assert made.findings.is_restored


async def test_a_failing_balancer_gets_its_initial_policy_back() -> None:
    balancer = MadeUpBalancer()
    fine = balancer.latency

    async def failing() -> dict[str, Any]:
        if 20 < balancer.at < 23:
            raise BalancerUnreachable("no answer")
        return await fine()

    balancer.latency = failing  # type: ignore[method-assign]
    with pytest.raises(BalancerUnreachable):
        await switchback(balancer, plan(4)).run()
    assert balancer.policy == {"name": "old"}


async def test_a_failed_restoration_is_reported() -> None:
    balancer = MadeUpBalancer()
    balancer.means["slow"] = 5.0
    fine = balancer.apply

    async def refusing(policy: dict[str, Any]) -> None:
        if policy["name"] == "old":
            raise BalancerUnreachable("no answer")
        await fine(policy)

    balancer.apply = refusing  # type: ignore[method-assign]
    with pytest.raises(RestoreFailed, match=r"'old'.*'slow'"):
        await switchback(balancer, plan(4)).run()


async def test_a_policy_applied_by_another_client_is_kept() -> None:
    balancer = MadeUpBalancer()
    balancer.means["theirs"] = 0.1

    def meddle() -> None:
        if balancer.at > 30:
            balancer.policy = {"name": "theirs"}

    balancer.sleeping = meddle
    made = switchback(balancer, plan(4))
    with pytest.raises(PolicyChangedExternally, match="'theirs'"):
        await made.run()
    assert balancer.policy == {"name": "theirs"}
    assert not made.findings.is_restored


async def test_a_changed_file_of_a_policy_ends_the_evaluation() -> None:
    """Its periods would have different policies; the initial one is restored."""
    balancer = MadeUpBalancer()

    def edit() -> None:
        balancer.files = [{"path": "/a.py", "version": "222" if balancer.at > 40 else "111"}]

    balancer.sleeping = edit
    evaluation = switchback(balancer, plan())
    message = r"^/a\.py was changed during the evaluation: version 111 before, 222 now"
    with pytest.raises(PolicyFileChanged, match=message):
        await evaluation.run()
    assert balancer.policy == {"name": "old"}
    assert evaluation.findings.is_restored


async def test_an_unknown_policy_is_rejected_before_anything_is_changed() -> None:
    balancer = MadeUpBalancer()
    with pytest.raises(BadInputError, match="unknown policy"):
        await switchback(balancer, plan(policies={"fast": {"name": "fast"}, "p2x": {"name": "p2x"}})).run()
    assert (balancer.put, balancer.at) == ([], 0.0)


async def test_too_little_traffic_ends_the_evaluation() -> None:
    balancer = MadeUpBalancer()
    with pytest.raises(BadInputError, match="--block must be long enough"):
        await switchback(balancer, plan(4, period=0.25, washout=0.1)).run()
    assert balancer.put == [{"name": "old"}]


@pytest.mark.parametrize(("period", "washout"), [(60.0, 10.0), (6.0, 2.0), (2.0, 1.0), (0.5, 0.25)])
def test_washout_follows_the_period(period: float, washout: float) -> None:
    assert usual_washout(period) == washout


# --- over HTTP


async def served(handler: Any) -> tuple[web.AppRunner, str]:
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handler)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    return runner, f"http://127.0.0.1:{runner.addresses[0][1]}"


async def test_requests_to_the_admin_interface() -> None:
    """A 503 is retried."""
    asked: list[tuple[str, str, str | None, Any]] = []

    async def answer(request: web.Request) -> web.Response:
        body = await request.json() if request.can_read_body else None
        asked.append((request.method, request.path, request.headers.get("Authorization"), body))
        return web.json_response({"fine": True}, status=503 if len(asked) == 1 else 200)

    async def at_once(seconds: float) -> None:
        pass

    runner, url = await served(answer)
    balancer = HttpBalancer(url, "secret", at_once)
    assert await balancer.latency() == {"fine": True}
    await balancer.apply({"name": "x", "option": 1})
    await runner.cleanup()
    assert asked == [
        ("GET", "/-/latency", "Bearer secret", None),
        ("GET", "/-/latency", "Bearer secret", None),  # 503 is asked again
        ("PUT", "/-/policy", "Bearer secret", {"name": "x", "option": 1}),
    ]


@pytest.mark.parametrize(("status", "problem"), [(404, "see --token"), (422, "unknown policy")])
async def test_rejected_requests_are_bad_input(status: int, problem: str) -> None:
    async def answer(request: web.Request) -> web.Response:
        return web.json_response({"error": "unknown policy 'x'"}, status=status)

    runner, url = await served(answer)
    with pytest.raises(BadInputError, match=problem):
        await HttpBalancer(url, None).apply({"name": "x"})
    await runner.cleanup()


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
        (["--policies", "a,b", "--max-errors", "many"], "--max-errors: must be a percentage"),
    ],
)
def test_bad_input_is_one_line(arguments: list[str], problem: str) -> None:
    ran = CliRunner().invoke(cli, ["live", "http://127.0.0.1:1", *arguments])
    assert isinstance(ran.exception, ExperimentError)
    assert ran.exception.exit_code == 2
    assert problem in str(ran.exception)


def test_percentages() -> None:
    assert percent("--max-errors", "1.5%") == pytest.approx(0.015)


def test_non_finite_numbers_are_null_in_json(tmp_path: Path) -> None:
    write_json("--json", tmp_path / "x", {"p99": math.nan, "rows": [(1.5, math.inf)]})
    assert json.loads((tmp_path / "x").read_text()) == {"p99": None, "rows": [[1.5, None]]}


def test_verdict_without_measurements() -> None:
    verdict = result_of(plan(), Findings({"name": "old"}), None).verdict
    assert (verdict.headline, verdict.winner) == ("No verdict: no run had a success", None)
