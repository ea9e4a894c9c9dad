"""Storms: schedule of faults, checked messages, figures and verdicts, faulty workers, and a short storm."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from benchmarks.harness.peer_files import Site, rendered
from benchmarks.harness.verified.account import TIMEOUT, Account
from benchmarks.harness.verified.load_process import steelyard
from benchmarks.harness.verified.messages import (
    LEAST,
    MOST,
    REGIONS,
    WORKERS,
    CheckedRequest,
    Ending,
    answer_of,
    checked_requests,
    outcome_of,
)
from benchmarks.harness.verified.worker_group import Executions
from benchmarks.storm.command import OTHERS, doubts, introduction, ours, pace_of
from benchmarks.storm.figures import Figures, Recovery, figures_of, rows_of, verdicts
from benchmarks.storm.plan import FAULTS, QUICK, Episode, Pace, schedule
from benchmarks.storm.runs import (
    LOOK,
    FaultyWorkers,
    Spans,
    Storm,
    StormPlan,
    disturbances,
    send_control,
    widened,
)
from experiments.platform import cpu_time
from experiments.platform.ports import free_ports, lowest_ephemeral
from tests.benchmarks.commands import measured

REQUEST = CheckedRequest(7, is_post=True, body_size=300, answer_size=1000)
HEAD = b"HTTP/1.1 200 OK\r\nX-Storm-Worker: west-1\r\nX-Storm-Id: p0000007\r\nContent-Length: 1000\r\n\r\n"
PACE = Pace(rate=100.0, quiet=10.0, storm=20.0, episodes=1, lasts=2.0)

# --- the schedule


def test_every_region_has_every_fault_once() -> None:
    """Region after region; each fault strikes the first worker, the second, and both."""
    storm = schedule(Pace(), 3)
    regions = [episode.workers[0].partition("-")[0] for episode in storm]
    assert list(dict.fromkeys(regions)) == list(REGIONS)
    for fault in FAULTS:
        struck = [episode.workers for episode in storm if episode.fault == fault]
        assert len({workers[0].partition("-")[0] for workers in struck}) == len(REGIONS)
        assert sorted("".join(worker[-1] for worker in workers) for workers in struck) == ["0", "01", "1"]


def test_schedule_follows_from_the_seed_and_fits_the_duration() -> None:
    storm = schedule(Pace(), 3)
    assert storm == schedule(Pace(), 3) != schedule(Pace(), 4)
    assert storm[0].at == Pace().quiet
    gaps = [later.at - earlier.until for earlier, later in pairwise(storm)]
    assert min(gaps) > 3.0
    assert Pace().seconds - storm[-1].until > 3.0


def test_short_schedule_has_each_fault_once_and_every_region() -> None:
    storm = schedule(QUICK, 1)
    assert sorted(episode.fault for episode in storm) == sorted(FAULTS)
    assert {episode.workers[0].partition("-")[0] for episode in storm} == set(REGIONS)


# --- messages


def test_every_request_has_its_own_content() -> None:
    asked = checked_requests(500, 0.5, 1)
    assert len({one.id for one in asked}) == 500
    assert len({one.answer for one in asked}) == 500
    assert all(LEAST <= len(one.answer) <= MOST for one in asked)
    assert asked == checked_requests(500, 0.5, 1)


def test_message_of_a_post() -> None:
    message = REQUEST.message(80)
    assert message.startswith(b"POST /storm/p0000007/1000 HTTP/1.1\r\n")
    assert message.endswith(b"Content-Length: 300\r\n\r\n" + REQUEST.body)


@pytest.mark.parametrize(
    ("head", "body", "ending"),
    [
        (HEAD, REQUEST.answer, Ending.OK),
        (HEAD, REQUEST.answer[:-1] + b"x", Ending.CORRUPT),
        (HEAD, answer_of(b"p0000008", b"", 1000), Ending.CORRUPT),
        (HEAD, answer_of(REQUEST.id, REQUEST.body[:-1], 1000), Ending.CORRUPT),
        (HEAD.replace(b"p0000007", b"p0000008"), REQUEST.answer, Ending.CROSSED),
        (HEAD.replace(b"200 OK", b"503 Busy"), b"busy\n", Ending.WORKER_503),
        (b"HTTP/1.1 503 Busy\r\n\r\n", b"", Ending.STATUS_503),
        (b"HTTP/1.1 502 Bad\r\n\r\n", b"", Ending.STATUS_502),
        (b"HTTP/1.1 504 Slow\r\n\r\n", b"", Ending.STATUS_504),
        (b"HTTP/1.1 418 Tea\r\n\r\n", b"", Ending.OTHER_STATUS),
        (b"HTTP/1.1 200 OK\r\n\r\n", REQUEST.answer, Ending.CORRUPT),
    ],
)
def test_outcome_depends_on_every_byte_of_a_response(head: bytes, body: bytes, ending: Ending) -> None:
    """The body of the response also shows which body the worker received."""
    assert outcome_of(REQUEST, head, body)[0] is ending


# --- figures


def account(**changed: object) -> Account:
    """Rows of a request every 10 ms for 30 s, each fifth a POST, workers in turn, all answered in 10 ms."""
    count = 3000
    due = np.arange(count) / 100
    rows = Account(
        due=due,
        sent=due,
        ended=due + 0.01,
        has_waited=np.zeros(count, dtype=np.bool_),
        is_post=np.arange(count) % 5 == 0,
        ending=np.zeros(count, dtype=np.int64),
        worker=np.arange(count) % len(WORKERS),
        strays=np.array([0]),
    )
    return replace(rows, **changed)  # type: ignore[arg-type]


def stormy(
    rows: Account, executed: Counter[bytes] | None = None, disturbed: Spans = (), **marks: Counter[bytes]
) -> Figures:
    """Figures of a storm in which north-0 is killed from 12 s to 14 s; by default every POST is executed once."""
    once = Counter({b"p%07d" % number: 1 for number in np.flatnonzero(rows.is_post)})
    ran = Executions(once if executed is None else executed, **marks)
    episode = Episode(12.0, 14.0, "killed", ("north-0",))
    return figures_of(Storm("steelyard random", 0, (episode,), rows, ran, disturbed=disturbed), PACE)


def met(*rounds: Figures) -> list[bool | None]:
    """Of one storm as if each of two had been like it, or of several."""
    return [one.is_met for one in verdicts(rounds * 2 if len(rounds) == 1 else rounds)]


def test_storm_without_failures_meets_every_bound() -> None:
    found = stormy(account())
    assert met(found) == [True] * 5
    assert (found.gets, found.posts) == (1600, 400)
    assert found.recoveries == (Recovery("killed", "north-0", 0.0),)


def test_success_counts_requests_of_the_storm_only() -> None:
    ending = account().ending.copy()
    ending[[101, 1201, 1202, 1205]] = Ending.STATUS_502
    found = stormy(account(ending=ending))
    assert (found.gets_ok, found.posts_ok) == (1598, 399)
    assert found.failures == {"GET": {"502": 2}, "POST": {"502": 1}}
    assert met(found)[0] is False


def test_post_that_was_executed_twice() -> None:
    once = Counter({b"p%07d" % number: 1 for number in range(0, 3000, 5)})
    found = stormy(account(), once + Counter({b"p0001000": 1}))
    assert found.twice == 1
    assert met(found)[1] is False


def test_answered_post_must_have_been_executed() -> None:
    """A POST that failed for its client but was executed is counted as in doubt."""
    once = Counter({b"p%07d" % number: 1 for number in range(0, 3000, 5) if number != 1000})
    ending = account().ending.copy()
    ending[1005] = Ending.CLOSED
    found = stormy(account(ending=ending), once)
    assert (found.untrue, found.in_doubt, found.twice) == (1, 1, 0)
    assert met(found)[2] is False


@pytest.mark.parametrize("wrong", ["crossed", "corrupt", "stray", "damaged"])
def test_crossed_and_corrupted_responses(wrong: str) -> None:
    ending, strays, damaged = account().ending.copy(), np.array([0]), Counter[bytes]()
    if wrong == "stray":
        strays = np.array([1])
    elif wrong == "damaged":
        damaged[b"p0001000"] += 1
    else:
        ending[1501] = Ending[wrong.upper()]
    found = stormy(account(ending=ending, strays=strays), damaged=damaged)
    assert found.crossed == 1
    assert met(found)[2] is False


def without_north_0(until: float) -> Account:
    """Rows in which the first worker gets no request from 12 s to `until`."""
    rows = account()
    is_out = (rows.due >= 12) & (rows.due < until) & (rows.worker == 0)
    return account(worker=np.where(is_out, 1, rows.worker))


def test_recovery_is_the_first_window_with_its_share() -> None:
    """The worker returns at 14 s and gets requests from 16 s on."""
    found = stormy(without_north_0(16.0))
    assert 1.5 < found.recovery <= 2.0
    assert met(found)[3] is True
    assert met(stormy(without_north_0(18.5)))[3] is False


def test_worker_without_requests_has_not_recovered() -> None:
    found = stormy(without_north_0(30.0))
    assert found.recoveries[0].seconds is None
    assert found.faults[0].recovery is None
    assert "never" in verdicts([found])[3].found


def test_p99_excludes_the_first_second_of_a_fault() -> None:
    rows = account()
    late = np.where((rows.due >= 12) & (rows.due < 13), 0.5, 0.01)
    assert stormy(account(ended=rows.due + late)).ratio == pytest.approx(1.0)
    later = np.where((rows.due >= 13) & (rows.due < 14), 0.5, 0.01)
    slow = stormy(account(ended=rows.due + later))
    assert met(slow)[4] is False
    assert met(slow, stormy(account()))[4] is None  # the interval is on both sides of the bound
    assert verdicts([slow])[4].is_met is None  # one storm has none


def test_times_exclude_disturbed_seconds() -> None:
    """The due time decides, not the duration; failures are not excluded."""
    rows = account()
    struck = (rows.due >= 20) & (rows.due < 22)
    ending = np.where(struck, Ending.STATUS_502, Ending.OK)
    slow = account(ended=rows.due + np.where(struck, 0.5, 0.01), ending=ending)
    assert met(stormy(slow))[4] is False
    found = stormy(slow, disturbed=((19.95, 22.2),))
    assert found.ratio == pytest.approx(1.0)
    assert found.whole_p99[1] == TIMEOUT
    assert list(found.undisturbed) == pytest.approx([1, 1 - 2.25 / 19], abs=0.01)
    assert (met(found)[0], met(found)[4]) == (False, True)
    assert stormy(slow, disturbed=((19.0, 20.0), (22.0, 23.0))).storm_p99 == TIMEOUT


def test_lag_excludes_disturbed_seconds() -> None:
    rows = account()
    late = replace(rows, sent=rows.due + np.where((rows.due >= 20) & (rows.due < 22), 0.3, 0.0))
    assert not stormy(late).is_timed
    assert stormy(late, disturbed=((19.9, 22.1),)).is_timed


@pytest.mark.parametrize("disturbed", [((0.0, 5.5),), ((14.0, 24.0),)])
def test_times_are_not_judged_if_too_little_is_undisturbed(disturbed: Spans) -> None:
    """Of the time before the storm, or of the storm."""
    found = stormy(account(), disturbed=disturbed)
    assert not found.is_timed
    assert met(found) == [True] * 4 + [None]
    assert "not judged" in doubts([found])


def test_disturbances_are_widened_and_merged() -> None:
    spans = widened([(100.0, 100.1), (100.2, 100.3), (101.0, 101.1)], 90.0)
    assert np.ravel(spans) == pytest.approx([9.95, 10.5, 10.95, 11.3])


async def test_disturbance_is_found_between_two_readings() -> None:
    """The stolen time grows once, between the second reading and the third."""
    readings, all_read = [5.0, 5.0, 5.01, 5.01], asyncio.Event()

    def stolen(cores: Sequence[int]) -> float:
        assert cores == [0, 1]
        if len(readings) == 1:
            all_read.set()
        return readings.pop(0) if len(readings) > 1 else readings[0]

    async with disturbances([0, 1], stolen) as found:
        await all_read.wait()
    ((since, until),) = found
    assert until - since >= LOOK


@pytest.mark.skipif(not cpu_time.is_known_here(), reason="accounts are Linux's")
def test_stolen_time_is_read_from_the_kernel() -> None:
    assert cpu_time.stolen_seconds(cpu_time.cores()) >= cpu_time.stolen_seconds([]) == 0
    with pytest.raises(OSError, match="no core 9999"):
        cpu_time.stolen_seconds([9999])


@pytest.mark.skipif(not cpu_time.is_known_here(), reason="processes are pinned on Linux only")
async def test_replacement_of_a_killed_worker_is_started_before_the_kill(tmp_path: Path) -> None:
    """It listens from the end of the fault on; replacements that are not used are stopped."""
    async with FaultyWorkers(tmp_path, cpu_time.cores()[-1]) as workers:
        zero = time.monotonic()
        episode = Episode(0.0, 0.2, "killed", ("north-0",))
        await workers.start_replacements([episode, Episode(60.0, 62.0, "killed", ("west-1",))], zero)
        _, until = await workers.inject(episode, zero)
        assert until >= 0.2
        await send_control(workers.ports[0], "/-/well")


def test_failure_counts_with_the_timeout_as_latency() -> None:
    rows = account()
    ending = np.where((rows.due >= 13) & (rows.due < 14), Ending.STATUS_502, Ending.OK)
    assert stormy(account(ending=ending)).storm_p99 == TIMEOUT


def test_late_generator_makes_times_not_judged() -> None:
    """Failures are judged all the same."""
    rows = without_north_0(30.0)
    late = replace(rows, sent=rows.due + 0.005)
    assert met(stormy(late)) == [True, True, True, None, None]
    ending = rows.ending.copy()
    ending[1201] = Ending.CUT
    assert met(stormy(replace(late, ending=ending)))[0] is False


def test_invalid_run_misses_the_bounds() -> None:
    assert met(figures_of(Storm("steelyard random", 0, fault="died"), PACE)) == [False]


def test_table_has_a_column_for_each_proxy() -> None:
    ending = account().ending.copy()
    ending[1201] = Ending.CUT
    cells = dict(
        rows_of([[stormy(account())], [stormy(account(ending=ending))], [Figures("x", 0, fault="y")]])
    )
    assert cells["GET success"] == ["100.000 %", "99.937 %", "INVALID"]
    assert cells["GET: cut short"] == ["–", "1", "–"]
    assert cells["longest recovery"][0] == "0.00 s"


# --- configurations and the command


def test_every_configuration_names_every_worker(tmp_path: Path) -> None:
    ports = tuple(range(9001, 9007))
    site = Site(8080, ports, tmp_path)
    for text in (
        steelyard(site, "random"),
        rendered("storm-nginx.conf", site),
        rendered("storm-haproxy.cfg", site),
    ):
        assert all(f"127.0.0.1:{port}" in text for port in ports)


def test_introduction_shows_the_schedule() -> None:
    plan = StormPlan((ours("random"), *OTHERS.values()), QUICK, 2, 7, 0, 1)
    text = introduction(plan)
    assert "150 requests per second, 20% POSTs" in text
    assert all(str(episode) in text for episode in schedule(QUICK, 7))
    assert pace_of(200.0, is_quick=False) == replace(Pace(), rate=200.0)


INHERENT = {
    "GET": {Ending.CUT},
    "POST": {Ending.CUT, Ending.CLOSED, Ending.WORKER_503, Ending.STATUS_502, Ending.STATUS_504},
}
"""Failures that are possible on any machine: a response that has begun and a POST cannot be repeated."""


@pytest.mark.second_tier
@pytest.mark.timeout(120)
@pytest.mark.skipif(not cpu_time.is_known_here(), reason="processes are pinned on Linux only")
def test_short_storm(tmp_path: Path) -> None:
    """On any machine: no POST is executed twice, nothing is crossed, and every repeatable GET succeeds."""
    printed, found = measured(tmp_path, "storm", "--quick", "--plots", str(tmp_path))
    (run,) = found["runs"]
    assert run["fault"] == ""
    assert (run["twice"], run["crossed"], run["untrue"]) == (0, 0, 0)
    assert [episode["fault"] for episode in run["episodes"]] == [one.fault for one in schedule(QUICK, 1)]
    assert run["gets"] > 1000 < run["gets_ok"]
    for method, allowed in INHERENT.items():
        assert set(run["failures"][method]) <= {ending.words for ending in allowed}
    assert (tmp_path / "steelyard-0.png").read_bytes().startswith(b"\x89PNG")
    assert "no POST executed twice" in printed


def test_ports_of_restarted_workers_are_below_the_ephemeral_range() -> None:
    """No outgoing connection can take such a port while a worker is down."""
    ports = list(free_ports(6))
    assert len(set(ports)) == 6
    assert max(ports) < max(20_000, lowest_ephemeral())
