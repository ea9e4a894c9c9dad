"""Health, list, status, metrics and log agree: dead workers, a hanging one, an ejected one, panic, and the return."""

from __future__ import annotations

import asyncio
import json
import socket
from importlib.metadata import version
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from balancer.__main__ import cli
from balancer.cluster.condition import Condition
from balancer.cluster.state_log import BURST, PAUSE, RANKS, SiblingConditions, StateLog
from balancer.config.schema.policy_spec import PolicySpec
from balancer.control.admin import status_command
from balancer.control.admin.client import AdminClient
from balancer.control.admin.merge import merged_metrics, merged_status
from balancer.control.admin.policy_report import raw
from balancer.control.admin.status import proxy_status
from balancer.sharing.shared_counters import SharedCounters, key_of
from policies.facts import AdminState
from tests.support.admin_requests import local, metrics, samples_of, status
from tests.support.command_line import printed
from tests.support.scripts import hang
from tests.support.stage import Stage
from tests.support.wire import ScriptedWorker, Wire, answering, get, playing, response

BAD = response(b"broken", status=b"500 Internal Server Error")
UNHEALTHY = response(b"no", status=b"503 Service Unavailable")
REFUSED = "Connection refused"


class Log:
    """A log of states that only `look` brings up to date, and not the server's sweep."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._lines: list[str] = []
        cluster, checks = stage.cluster, stage.control_plane.checks
        self._log = StateLog(cluster.router, cluster.pools, checks, self._lines.append)

    def share(self, siblings: SiblingConditions, policy_key: int = 1) -> None:
        """Include the conditions in sibling processes."""
        self._log.siblings = siblings
        self._log.policy_key = policy_key

    def look(self, seconds: float = 1.0) -> list[str]:
        """Let time pass, and return the new lines."""
        self._stage.jump(seconds)
        self._log.sweep(self._stage.clock.at)
        lines = list(self._lines)
        self._lines.clear()
        return lines


async def test_server_writes_the_log(stage: Stage, capfd: pytest.CaptureFixture[str]) -> None:
    """With its sweep, on standard error."""
    await stage.serve(stage.dead_port(), health_checks={"first_connect": True})
    await stage.eventually(lambda: stage.pool().is_unreachable)
    stage.jump(1.0)
    stage.control_plane.sweep(stage.clock.at)
    assert capfd.readouterr().err == f"balancer: endpoint w0 is down: unreachable: {REFUSED}\n"


async def listed(stage: Stage, *words: str) -> list[str]:
    """The lines of `balancer endpoints list`, or of another command."""
    return await printed(f"http://{stage.running.address}", *(words or ("endpoints", "list")))


async def probe(stage: Stage) -> tuple[int, dict[str, Any]]:
    """Status and body of /-/ready on the traffic port."""
    client = await stage.client()
    answer = await client.ask(get(b"/-/ready"))
    await client.close()
    return answer.status, json.loads(answer.body)


async def samples(stage: Stage, name: str) -> dict[tuple[str, ...], float]:
    """The samples of a metric by the values of their labels."""
    found = samples_of(await metrics(stage))
    return {sample[1:]: value for sample, value in found.items() if sample[0] == name}


SHOWN = ("steelyard_endpoint_condition", "steelyard_ready", "steelyard_panic")


async def agreed(stage: Stage) -> dict[str, str]:
    """The condition of each endpoint, equal in status, /-/endpoints, list, table, metrics and health, and the same of
    two processes."""
    document = await status(stage)
    conditions = {each["id"]: each["condition"] for each in document["endpoints"]}
    texts = [each["condition_text"] for each in document["endpoints"]]
    separate = json.loads((await stage.ask(local(b"/-/endpoints"))).body)["endpoints"]
    assert {each["id"]: each["condition"] for each in separate} == conditions
    lines = [line for line in await listed(stage) if not line.startswith("panic")]
    table = [line for line in await listed(stage, "status") if line.startswith(tuple(conditions))]
    for shown in (lines, table):
        assert [text in line for text, line in zip(texts, shown, strict=True)] == [True] * len(texts)
    found = await samples(stage, "steelyard_endpoint_condition")
    assert {labels[1]: labels[0] for labels, value in found.items() if value} == conditions
    assert sum(found.values()) == len(conditions)
    health = json.loads((await stage.ask(local(b"/-/health"))).body)
    assert health == document["health"]
    assert sum(health["endpoints"].values()) == len(conditions)
    assert (
        (await samples(stage, "steelyard_ready"))[()] == health["healthy"] == ((await probe(stage))[0] == 200)
    )
    one = proxy_status(stage.control_plane, raw)
    merged = merged_status([one, one], 2, 1)
    assert merged["health"]["summary"] == health["summary"]
    assert [each["condition"] for each in merged["endpoints"]] == [*conditions.values()]
    text = await metrics(stage)
    both, alone = samples_of(merged_metrics([text, text]).decode()), samples_of(text)
    assert {one: both[one] for one in alone if one[0] in SHOWN} == {
        one: alone[one] for one in alone if one[0] in SHOWN
    }
    return conditions


async def test_three_dead_workers(stage: Stage) -> None:
    """Not ready, without a request and without active checks; one line for each; ready again when one is back."""
    await stage.serve(*[stage.dead_port() for _ in range(3)], health_checks={"first_connect": True})
    log = Log(stage)
    await stage.eventually(lambda: all(pool.is_unreachable for pool in stage.cluster.pools.by_id.values()))
    assert await agreed(stage) == dict.fromkeys(("w0", "w1", "w2"), "unreachable")
    assert await probe(stage) == (503, {"healthy": False, "reason": "no endpoint can answer"})
    document = await status(stage)
    assert document["health"]["summary"] == "no endpoint can answer: 3 endpoints (3 unreachable)"
    assert document["endpoints"][0]["condition_text"] == f"unreachable: {REFUSED} (last 0 s ago)"
    assert log.look() == [f"endpoint w{i} is down: unreachable: {REFUSED}" for i in range(3)]
    assert log.look() == []

    port = stage.held_sockets[0].getsockname()[1]
    stage.held_sockets.pop(0).close()
    worker = ScriptedWorker(answering(response()))
    await stage.start(worker, socket.create_server(("127.0.0.1", port)))
    stage.advance(3.0)
    stage.advance(3.0)
    await stage.eventually(lambda: not stage.pool("w0").is_unreachable)
    assert await agreed(stage) == {"w0": "ready", "w1": "unreachable", "w2": "unreachable"}
    assert await probe(stage) == (200, {"healthy": True, "reason": "serving"})
    assert log.look(1.0) == ["endpoint w0 is back after 8 s"]
    assert worker.requests == []


async def test_ejected_endpoint(stage: Stage) -> None:
    """With the seconds left and the cause; the log says for how long, and when it is over."""
    worker = await stage.worker(BAD)
    await stage.serve(worker, await stage.worker(response()), await stage.worker(response()))
    log = Log(stage)
    for _ in range(15):
        await stage.ask(get())
    assert await agreed(stage) == {"w0": "ejected", "w1": "ready", "w2": "ready"}
    left = round(float((await status(stage))["endpoints"][0]["ejection"]["seconds_left"]))
    assert 27 <= left <= 30
    assert (await status(stage))["endpoints"][0]["condition_text"] == (
        f"ejected, {left} s left (consecutive failures)"
    )
    [line] = log.look(0.0)
    assert line == f"endpoint w0 is ejected for {left} s: consecutive failures"
    assert (await probe(stage))[0] == 200
    stage.clock.at += 30.0
    stage.cluster.router.tick()
    assert log.look(1.0) == ["endpoint w0 is back: its ejection is over after 31 s"]
    assert (await agreed(stage))["w0"] == "ready"


async def test_hanging_worker_fails_its_checks(stage: Stage) -> None:
    """It accepts connections; the check says that there is no answer, and the pool is ready as long as one answers."""
    await stage.serve(
        await stage.worker(hang), await stage.worker(response()), health_checks={"path": "/up", "fall": 1}
    )
    log = Log(stage)
    stage.advance(0.0)
    stage.advance(3.0)
    await stage.turn()
    stage.advance(1.5)
    await stage.eventually(lambda: stage.control_plane.checks.by_id["w0"].state.failed)
    assert await agreed(stage) == {"w0": "failing checks", "w1": "ready"}
    text = (await status(stage))["endpoints"][0]["condition_text"]
    assert text == "failing checks: no answer within 1 s (last 0 s ago)"
    assert log.look() == ["endpoint w0 is down: failing checks: no answer within 1 s"]
    assert (await probe(stage))[0] == 200


async def test_all_checks_fail(stage: Stage) -> None:
    """Panic: not ready, until a request shows that the workers answer in spite of their checks."""
    workers = [await stage.worker(UNHEALTHY) for _ in range(3)]
    await stage.serve(*workers, health_checks={"path": "/up", "fall": 1}, retries=0)
    log = Log(stage)
    stage.advance(0.0)
    stage.advance(3.0)
    await stage.eventually(lambda: stage.cluster.router.health.panic.is_everywhere)
    await stage.eventually(
        lambda: all(each.state.failed for each in stage.control_plane.checks.by_id.values())
    )
    assert await agreed(stage) == dict.fromkeys(("w0", "w1", "w2"), "failing checks")
    panic = "panic: health is ignored, all 3 endpoints fail their checks"
    document = await status(stage)
    assert document["health"]["summary"] == (
        f"no endpoint can answer: 3 endpoints (3 failing checks); {panic}"
    )
    assert (await listed(stage))[0] == panic
    text = document["endpoints"][0]["condition_text"]
    assert text == "failing checks: status 503 (last 0 s ago); gets requests in panic"
    lines = log.look()
    assert lines == [
        *(f"endpoint w{i} is down: failing checks: status 503" for i in range(3)),
        "panic everywhere: health is ignored, 3 of 3 endpoints are down",
    ]


async def test_wrong_path_of_checks_does_not_stop_traffic(stage: Stage) -> None:
    """In panic a request that succeeds keeps the balancer ready."""
    script = answering(lambda request: UNHEALTHY if b"/up" in request.line else response())
    await stage.serve(await stage.worker(script), health_checks={"path": "/up", "fall": 1})
    log = Log(stage)
    stage.advance(0.0)
    stage.advance(3.0)
    await stage.eventually(lambda: stage.cluster.router.health.panic.is_everywhere)
    assert (await probe(stage))[0] == 503
    assert (await stage.ask(get())).status == 200
    assert await probe(stage) == (200, {"healthy": True, "reason": "panic"})
    assert len(log.look()) == 2
    stage.clock.at += 20.0
    assert (await probe(stage))[0] == 503


async def test_end_of_a_panic_is_logged(stage: Stage) -> None:
    await stage.serve(await stage.worker(response()), await stage.worker(response()))
    log, router = Log(stage), stage.cluster.router
    for name in ("w0", "w1"):
        router.set_healthy(name, False)
    assert len(log.look()) == 3
    for name in ("w0", "w1"):
        router.set_healthy(name, True)
    assert log.look(9.0) == [
        *(f"endpoint {name} is back after 9 s" for name in ("w0", "w1")),
        "panic everywhere is over after 9 s",
    ]


async def test_admin_states_and_full_endpoint(stage: Stage) -> None:
    """Draining, maintenance and full, with the requests in flight."""
    go = asyncio.Event()
    worker = await stage.worker(playing(Wire.request, go, response()))
    await stage.serve(worker, await stage.worker(response()), max_in_flight=1)
    log = Log(stage)
    client = await stage.asking(worker, get())
    assert await agreed(stage) == {"w0": "full", "w1": "ready"}
    assert (await status(stage))["endpoints"][0]["condition_text"] == "full: 1 of 1 in flight"
    stage.cluster.router.set_admin_state("w0", AdminState.DRAIN)
    stage.cluster.router.set_admin_state("w1", AdminState.MAINTENANCE)
    assert await agreed(stage) == {"w0": "draining", "w1": "maintenance"}
    here = proxy_status(stage.control_plane, raw)
    assert here["endpoints"][0]["condition_text"] == "draining, 1 in flight"
    assert merged_status([here, here], 2, 1)["endpoints"][0]["condition_text"] == "draining, 2 in flight"
    assert (await probe(stage))[0] == 503
    assert log.look() == ["endpoint w0 is draining", "endpoint w1 is in maintenance"]
    go.set()
    assert (await client.response()).status == 200


async def test_flapping_endpoint_cannot_flood_the_log(stage: Stage) -> None:
    """A burst, then one line per pause, with the number of changes that are left out."""
    await stage.serve(await stage.worker(response()), await stage.worker(response()))
    log, router = Log(stage), stage.cluster.router
    lines = []
    for second in range(60):
        router.set_healthy("w0", second % 2 == 1)
        lines += log.look(1.0)
    assert BURST <= len(lines) <= BURST + 60 / PAUSE
    assert "changes before are left out" in lines[-1]
    assert log.look(PAUSE)[0].startswith("endpoint w0 is ")


async def test_many_endpoints_that_go_down_at_once(stage: Stage) -> None:
    """Some by name, the others by number."""
    ports = [stage.dead_port() for _ in range(25)]
    await stage.serve(*ports)
    log = Log(stage)
    for state in stage.cluster.router.states:
        stage.cluster.router.set_healthy(state.id, False)
    lines = log.look()
    assert len([line for line in lines if "is down" in line]) == 20
    assert lines[20].startswith("endpoints: 5 more have changed at the same time")


class Broken:
    """Policy whose every pick fails."""

    def pick(self, facts: Any, available: Any, now: float) -> Any:
        raise ValueError("no such key")


class Unlearning:
    """Policy that picks, and whose `observe` fails."""

    def pick(self, facts: Any, available: Any, now: float) -> Any:
        return available[0]

    def observe(self, *args: Any) -> None:
        raise ValueError("no such key")


async def test_fault_of_a_hook_beside_the_picks_is_logged_as_that(stage: Stage) -> None:
    await stage.serve(await stage.worker(response()))
    log = Log(stage)
    stage.cluster.router.set_policy(Unlearning())
    assert (await stage.ask(get())).status == 200
    fault = "policy: Unlearning raised ValueError('no such key')"
    [line] = log.look()
    assert line.startswith(fault)
    assert line.endswith("; faults of this hook are not counted, and not printed again")


async def test_first_fault_of_a_policy_is_logged_once_per_installation(stage: Stage) -> None:
    await stage.serve(await stage.worker(response()))
    log = Log(stage)
    for number in range(2):
        stage.cluster.router.set_policy(Broken())
        for _ in range(3):
            assert (await stage.ask(get())).status == 200
        [line] = log.look()
        assert line.startswith("policy: Broken raised ValueError('no such key')")
        assert line.endswith(
            "; such picks are made by the fallback policy and counted, and not printed again"
        )
        assert log.look() == []
        assert (await status(stage))["policy"]["fallback_picks"] == 3
        assert (await samples(stage, "steelyard_fallback_picks_total"))[()] == 3 * (number + 1)
    stage.control_plane.apply_policy(PolicySpec(name="round-robin"))
    policy = (await status(stage))["policy"]
    assert (policy["fallback_picks"], policy["last_fault"]) == (0, None)


class Failing:
    """Policy of which `observe` fails at the first answer, and every pick afterwards."""

    def __init__(self) -> None:
        self.has_failed = False

    def pick(self, facts: Any, available: Any, now: float) -> Any:
        if self.has_failed:
            raise ValueError("no such key")
        return available[0]

    def observe(self, *args: Any) -> None:
        if not self.has_failed:
            self.has_failed = True
            raise KeyError("first")


@pytest.mark.parametrize("is_between", [True, False])
async def test_fault_at_a_pick_is_logged_beside_one_of_a_hook(stage: Stage, is_between: bool) -> None:
    """Also if the log is read in between, after which only the other one is new."""
    await stage.serve(await stage.worker(response()))
    log, lines = Log(stage), list[str]()
    stage.cluster.router.set_policy(Failing())
    for _ in range(2):
        assert (await stage.ask(get())).status == 200
        lines += log.look() if is_between else []
    lines += log.look()
    assert sorted(line.partition("(")[0] + line.partition("; ")[2][:7] for line in lines) == [
        "policy: Failing raised KeyErrorfaults ",
        "policy: Failing raised ValueErrorsuch pi",
    ]


async def test_condition_in_one_of_two_processes(stage: Stage) -> None:
    """The worst one, and in how many processes; limits of all of them are added."""
    await stage.serve(await stage.worker(response()), await stage.worker(response()), max_in_flight=4)
    one = proxy_status(stage.control_plane, raw)
    stage.cluster.router.set_healthy("w0", False)
    other = proxy_status(stage.control_plane, raw)
    whole = merged_status([one, other], 2, 1)
    first, second = whole["endpoints"]
    assert first["condition"] == "failing checks"
    assert first["condition_text"].endswith("; in 1 of 2 processes")
    assert (second["condition"], second["condition_text"], second["limit"]) == ("ready", "ready", 8)
    assert whole["health"]["endpoints"] == {"ready": 1, "failing checks": 1}
    assert whole["health"]["healthy"]
    one["readiness"] = "panic"
    assert [merged_status(both, 2, 1)["readiness"] for both in ([one, other], [other, one])] == ["panic"] * 2


@pytest.mark.parametrize("answer", [response(status=b"404 Not Found"), response(), BAD])
async def test_responses_are_counted_by_status(stage: Stage, answer: bytes) -> None:
    """What clients were sent: the worker's statuses, and the balancer's own."""
    await stage.serve(await stage.worker(answer), retries=0)
    code = answer.split(b" ")[1].decode()
    for _ in range(3):
        await stage.ask(get())
    client = await stage.client()
    await client.send(b"GET / HTTP/9.9\r\n\r\n")
    refused = str((await client.response()).status)
    usual = {(each,): 0.0 for each in ("200", "500", "502", "503", "504")}
    expected = usual | {(code,): 3.0, (refused,): 1.0}
    assert await samples(stage, "steelyard_responses_total") == expected
    assert (await status(stage))["responses"] == {code: 3, refused: 1}


async def test_process_metrics_and_build(stage: Stage) -> None:
    await stage.serve(await stage.worker(response()))
    document = await status(stage)
    [labels] = await samples(stage, "steelyard_build_info")
    assert {document["version"], document["build"]} <= set(labels)
    assert document["http2_library"] == f"ngh2 {version('ngh2')}"
    assert (await samples(stage, "process_resident_memory_bytes"))[()] > 1e6
    assert 3 < (await samples(stage, "process_open_fds"))[()] <= (await samples(stage, "process_max_fds"))[()]


async def test_table_of_the_status(stage: Stage) -> None:
    """One row for each endpoint: share, in flight, rate, percentiles, errors and condition."""
    await stage.serve(await stage.worker(response()), stage.dead_port())
    for _ in range(8):
        await stage.ask(get())
        stage.clock.at += 1.0
    lines = await listed(stage, "status")
    head = next(number for number, line in enumerate(lines) if line.startswith("endpoint "))
    first, second = lines[head + 1], lines[head + 2]
    assert first.split()[:2] == ["w0", "r"]
    assert first.endswith("  ready")
    assert "unreachable: Connection refused" in second
    assert [line.index("condition") for line in lines[head : head + 1]] == [first.rindex("ready")]
    assert "serving: 2 endpoints (1 ready, 1 unreachable)" in lines


async def test_watch_prints_successive_tables(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over the time since the oldest reading; a balancer that is lost meanwhile is waited for."""
    await stage.serve(await stage.worker(response()))
    for _ in range(5):
        await stage.ask(get())
    url = f"http://{stage.running.address}"
    documents = {
        path: json.loads((await stage.ask(local(path.encode()))).body) for path in ("/-/status", "/-/latency")
    }
    later = json.loads(json.dumps(documents["/-/latency"]))
    later["endpoints"][0]["outcomes"]["ok"] += 3
    later["endpoints"][0]["outcomes"]["reset"] += 1
    later["endpoints"][0]["buckets"][10] += 3
    answers: list[Any] = [documents["/-/latency"], None, later]

    def ask(self: Any, method: str, target: str, body: Any = None) -> Any:
        if target == "/-/status" and answers[0] is None:
            answers.pop(0)
            raise click.ClickException("no answer")
        return documents[target] if target == "/-/status" else answers.pop(0)

    def next_second(seconds: float) -> None:
        clock[0] += seconds
        if not answers:
            raise KeyboardInterrupt

    clock = [0.0]
    monkeypatch.setattr(AdminClient, "document", ask)
    monkeypatch.setattr(status_command, "sleep", next_second)
    monkeypatch.setattr(status_command, "monotonic", lambda: clock[0])
    ran = CliRunner().invoke(cli, ["status", "--watch", "--url", url], standalone_mode=False)
    assert isinstance(ran.exception, KeyboardInterrupt | click.Abort)
    first, second = (line.split() for line in ran.stdout.splitlines() if line.startswith("w0 "))
    assert (first[2], first[-2]) == ("100.0%", "0")
    assert (second[4], second[-2], second[-1]) == ("2.0", "1", "ready")
    assert "no answer" in ran.stderr
    assert "\x1b" not in ran.stdout


async def test_first_process_logs_what_another_has_found(stage: Stage) -> None:
    """Once, also if it finds the same itself; back only when it is back in all."""
    await stage.serve(await stage.worker(response()), await stage.worker(response()))
    board = SharedCounters(2)
    state, log = stage.state(), Log(stage)
    theirs = board.pages[1]
    row = theirs.enter(key_of("w0"))
    own_row = board.pages[0].enter(key_of("w0"))
    assert row is not None
    assert own_row is not None
    state.publish(board.pages[0].in_flight, own_row)
    log.share(SiblingConditions(board, 0))
    assert log.look() == []
    other = SiblingConditions(board, 1)
    theirs.conditions[row] = RANKS[Condition.EJECTED]
    assert log.look() == ["endpoint w0 is down in 1 other process: ejected"]
    stage.cluster.router.set_healthy("w0", False)
    assert log.look() == ["endpoint w0 is down: failing checks: no connection"]
    other.begin(stage.cluster.router.states)
    assert other.worst(state) == (Condition.FAILING_CHECKS, 1)
    theirs.conditions[row] = RANKS[Condition.FAILING_CHECKS]
    stage.cluster.router.set_healthy("w0", True)
    assert log.look() == []
    theirs.clear()
    assert log.look() == ["endpoint w0 is back after 2 s"]
    state.stop_sharing()


async def test_first_process_logs_panic_of_others(stage: Stage) -> None:
    """Unless it is in panic itself, which says the same."""
    await stage.serve(await stage.worker(response()))
    board, log = SharedCounters(3), Log(stage)
    log.share(SiblingConditions(board, 0))
    assert log.look() == []
    for index in (1, 2):
        SiblingConditions(board, index).publish_process(is_in_panic=True, failing_policy=0)
    assert log.look() == ["panic in 2 other processes: health is ignored there"]
    assert log.look() == []
    stage.cluster.router.set_healthy("w0", False)
    stage.cluster.router.tick()
    lines = log.look()
    assert "panic everywhere: health is ignored, 1 of 1 endpoints are down" in lines
    assert not any("other process" in line for line in lines)
    assert board.pages[0].is_in_panic
    stage.cluster.router.set_healthy("w0", True)
    stage.cluster.router.tick()
    assert "panic in 2 other processes: health is ignored there" in log.look()
    for page in board.pages:
        page.clear()
    assert log.look() == ["panic in other processes is over after 1 s"]


async def test_first_process_logs_failure_of_the_policy_in_others(stage: Stage) -> None:
    """Once for each policy, and not for a policy that was replaced."""
    await stage.serve(await stage.worker(response()))
    board, log = SharedCounters(2), Log(stage)
    log.share(SiblingConditions(board, 0), policy_key=7)
    other = SiblingConditions(board, 1)
    other.publish_process(is_in_panic=False, failing_policy=5)
    assert log.look() == []
    other.publish_process(is_in_panic=False, failing_policy=7)
    [line] = log.look()
    assert line == (
        "policy: it has failed in 1 other process; 'balancer status' names the fault and counts fallback picks"
    )
    assert log.look() == []
    stage.cluster.router.set_policy(Broken())
    assert (await stage.ask(get())).status == 200
    [line] = log.look()
    assert line.startswith("policy: Broken raised ValueError('no such key')")
    assert board.pages[0].failing_policy == 7
    assert log.look() == []


async def test_key_of_the_policy_is_that_of_its_version(stage: Stage, tmp_path: Path) -> None:
    """It tells processes which of them run the same."""
    path = tmp_path / "mine.py"
    text = "class Mine:\n    def pick(self, facts, available, now):\n        return available[0]\n"
    keys = set()
    await stage.serve(await stage.worker(response()))
    for change in ("", "", "# changed"):
        path.write_text(text + change)
        stage.control_plane.apply_policy(PolicySpec(name=f"{path}:Mine"))
        keys.add(stage.control_plane.state_log.policy_key)
    stage.control_plane.apply_policy(PolicySpec(name="random"))
    keys.add(stage.control_plane.state_log.policy_key)
    assert len(keys) == 3
