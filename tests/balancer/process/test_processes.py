"""Several processes on one port: merged status, commands to all of them, signals, killed processes."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from functools import partial
from pathlib import Path

import pytest

from balancer.config.problems import ConfigError
from balancer.configuration import load
from balancer.control.admin.socket_path import found_socket
from tests.support.admin_requests import local, put_policy, samples_of
from tests.support.command_line import printed
from tests.support.live_stream import opened, snapshot_of
from tests.support.programs import (
    TWO_PROCESSES,
    Load,
    Start,
    eventually_true,
    is_replaced,
    process_of,
    restart_all,
    workers,
)
from tests.support.stage import Stage
from tests.support.wire import Message, answering_after, get, response

pytestmark = pytest.mark.second_tier


HELD = response(b"held")


async def test_two_processes_report_as_one(start: Start, stage: Stage) -> None:
    """Either process answers for both, a reload is logged once, and SIGTERM ends both with 0."""
    program = await start(*TWO_PROCESSES, *workers(await stage.worker(response())))
    assert "(policy steelyard, 1 endpoint, 2 processes, " in program.lines[-1]
    clients = [await program.client() for _ in range(40)]
    for client in clients:
        assert (await client.ask(get())).status == 200
    merged = await program.status()
    rows = merged["processes"]["answering"]
    assert merged["processes"]["configured"] == len({row["pid"] for row in rows}) == 2
    assert merged["clients"] == sum(row["clients"] for row in rows) == 40
    assert merged["requests"] == 40
    assert merged["endpoints"][0]["outcomes"]["ok"] == merged["endpoints"][0]["latency"]["count"] == 40
    assert all(row["clients"] for row in rows), "one of them has taken all clients"
    client = await program.admin_client()
    metrics = (await client.ask(local(b"/-/metrics"))).body.decode().splitlines()
    assert 'steelyard_endpoint_outcomes_total{endpoint="r-0",outcome="ok",region="r"} 40.0' in metrics
    admin = found_socket(f"http://127.0.0.1:{program.port}")
    assert admin is not None
    program.signal(signal.SIGHUP)
    await program.line("balancer has reloaded")
    program.signal(signal.SIGTERM)
    assert await program.ended() == 0
    assert await program.rest() == ["balancer stopping: 0 in flight"]
    with pytest.raises(FileNotFoundError):
        os.stat(admin)
    for wire in (client, *clients):
        await wire.close()


async def test_condition_of_an_endpoint_in_all_views(start: Start, stage: Stage) -> None:
    """The same in each, of both processes; one of them logs it, once."""
    dead = f"r=http://127.0.0.1:{stage.dead_port()}"
    program = await start(*TWO_PROCESSES, *workers(await stage.worker(response())), "--worker", dead)
    await program.line("^balancer: endpoint r-1 is down: unreachable: Connection refused$")

    async def is_agreed() -> bool:
        client = await program.admin_client()
        page = await snapshot_of(await opened(client))
        await client.close()
        documents = [page, *[await program.ask(local(path)) for path in (b"/-/status", b"/-/endpoints")]]
        texts, *others = [[each["condition_text"] for each in one["endpoints"]] for one in documents]
        rows = [
            [line for line in await printed(f"http://127.0.0.1:{program.port}", *words) if line[:2] == "r-"]
            for words in (["status"], ["endpoints", "list"])
        ]
        return (
            others == [texts, texts]
            and re.fullmatch(r"ready,unreachable: Connection refused \(last \d+ s ago\)", ",".join(texts))
            is not None
            and all(text in line for one in rows for text, line in zip(texts, one, strict=True))
        )

    await eventually_true(is_agreed)
    program.signal(signal.SIGTERM)
    assert await program.ended() == 0
    assert await program.rest() == ["balancer stopping: 0 in flight"]


async def test_command_reaches_all_processes(start: Start, stage: Stage) -> None:
    """Whichever process gets the command, and also in a process that starts later."""
    program = await start(*TWO_PROCESSES, *workers(await stage.worker(response())))

    async def policies() -> set[str]:
        return {(await program.ask(local(b"/-/policy")))["name"] for _ in range(12)}

    answer = await program.ask(
        local(b"/-/policy", method=b"PUT", body=b'{"name": "least-in-flight", "choices": 3}')
    )
    assert (answer["name"], answer["options"]) == ("least-in-flight", {"choices": 3})
    assert await policies() == {"least-in-flight"}
    refused = await program.ask(put_policy("p2x"))
    assert "p2x" in refused["error"]
    await restart_all(program)
    assert await policies() == {"least-in-flight"}


async def test_killed_process_loses_only_its_own_requests(start: Start, stage: Stage) -> None:
    """One log line names it, another process takes its place, and its requests in flight leave the status."""
    go = asyncio.Event()
    worker = await stage.worker(answering_after(go, HELD))
    program = await start(*TWO_PROCESSES, *workers(worker))
    clients = [await program.client() for _ in range(40)]
    for client in clients:
        await client.send(get())
    await stage.eventually(lambda: len(worker.requests) == 40)
    merged = await program.status()
    assert merged["endpoints"][0]["in_flight"] == 40
    rows = {row["pid"]: row["in_flight"] for row in merged["processes"]["answering"]}
    killed = min(rows, key=lambda pid: rows[pid])
    program.signal(signal.SIGKILL, killed)
    await program.line(rf"balancer process \d \({killed}\) was killed by SIGKILL; it is started again$")
    await eventually_true(lambda: is_replaced(program, killed))
    assert (await program.status())["endpoints"][0]["in_flight"] == 40 - rows[killed]
    go.set()
    answers = await asyncio.gather(*(client.response() for client in clients), return_exceptions=True)
    assert (
        sum(isinstance(answer, Message) and answer.body == b"held" for answer in answers) == 40 - rows[killed]
    )
    program.signal(signal.SIGTERM)
    assert await program.ended() == 0
    for client in clients:
        await client.close()


async def test_counters_do_not_fall_with_a_process(start: Start, stage: Stage) -> None:
    """That is killed, has been started again, or does not answer."""
    program = await start(*TWO_PROCESSES, *workers(await stage.worker(response())))
    for _ in range(40):
        client = await program.client()
        assert (await client.ask(get())).status == 200
        await client.close()

    async def requests() -> float:
        client = await program.admin_client()
        found = samples_of((await client.ask(local(b"/-/metrics"))).body.decode())
        await client.close()
        return found["steelyard_requests_total",]

    assert await requests() == 40
    one, other = await program.pids()
    program.signal(signal.SIGKILL, one)
    await program.line("is started again")
    assert await requests() == 40
    await eventually_true(lambda: is_replaced(program, one))
    assert await requests() == 40
    program.signal(signal.SIGSTOP, other)
    assert await requests() == 40
    program.signal(signal.SIGCONT, other)
    assert await requests() == 40


async def test_kill_under_load_fails_only_requests_in_flight(start: Start, stage: Stage) -> None:
    """At most one failure per client; connections in the kernel's queue are served by the other process."""
    program = await start(*TWO_PROCESSES, *workers(await stage.worker(response())))
    load = Load(program)
    await load.answers(200)
    program.signal(signal.SIGKILL, (await program.pids())[0])
    await load.answers(500)
    failures = await load.end()
    assert 0 < len(failures) <= 8


async def test_process_ended_by_sigterm_is_started_again(start: Start, stage: Stage) -> None:
    """It drains first, so processes can be replaced one by one without a failed request."""
    program = await start(*TWO_PROCESSES, *workers(await stage.worker(response())))
    load = Load(program)
    await load.answers(100)
    for pid in await program.pids():
        program.signal(signal.SIGTERM, pid)
        await program.line(rf"\({pid}\) has ended with 0; it is started again$")
        await eventually_true(partial(is_replaced, program, pid))
        await load.answers(100)
    assert await load.end() == []


async def test_sigterm_to_all_processes_finishes_requests_in_flight(start: Start, stage: Stage) -> None:
    """Process supervisors signal every process of a group; none takes that for a second signal."""
    go = asyncio.Event()
    worker = await stage.worker(answering_after(go, HELD))
    program = await start(*TWO_PROCESSES, *workers(worker))
    clients = [await program.client() for _ in range(8)]
    for client in clients:
        await client.send(get())
    await stage.eventually(lambda: len(worker.requests) == 8)
    pids = await program.pids()
    for pid in (None, *pids):
        program.signal(signal.SIGTERM, pid)
        program.signal(signal.SIGINT, pid) if pid else None
    await program.line("balancer stopping: 8 in flight")

    async def is_refused() -> bool:
        try:
            await (await program.client()).close()
        except ConnectionRefusedError:
            return True
        return False

    await eventually_true(is_refused)
    go.set()
    for client in clients:
        assert (await client.response()).body == b"held"
        assert await client.rest() == b""
        await client.close()
    assert await program.ended() == 0


async def test_second_signal_ends_the_grace_period(start: Start, stage: Stage) -> None:
    """In all processes; the exit code is 1 because a request was not finished."""
    go = asyncio.Event()
    worker = await stage.worker(answering_after(go, HELD))
    program = await start(*TWO_PROCESSES, *workers(worker))
    client = await program.client()
    await client.send(get())
    await stage.eventually(lambda: worker.requests)
    program.signal(signal.SIGTERM)
    await program.line("balancer stopping: 1 in flight")
    program.signal(signal.SIGTERM)
    assert await program.ended() == 1
    await client.closed()
    await client.close()


async def test_processes_end_when_the_supervisor_is_killed(start: Start, stage: Stage) -> None:
    """They finish their requests first."""
    go = asyncio.Event()
    worker = await stage.worker(answering_after(go, HELD))
    program = await start(*TWO_PROCESSES, *workers(worker))
    client = await program.client()
    await client.send(get())
    await stage.eventually(lambda: worker.requests)
    program.signal(signal.SIGKILL)
    assert await program.ended() == -signal.SIGKILL
    go.set()
    assert (await client.response()).body == b"held"
    assert await program.rest() == []
    await client.close()


async def test_bad_configuration_is_reported_once(tmp_path: Path) -> None:
    """One line and exit code 2, not one per process."""
    where = str(tmp_path / "absent" / "log")
    arguments = ("--worker", "r=http://127.0.0.1:9", *TWO_PROCESSES, "--port", "0")
    logging = {"BALANCER_LOG__ACCESS": "text", "BALANCER_LOG__PATH": where}
    process = await process_of(arguments, "", None, logging)
    stdout, _ = await process.communicate()
    assert (process.returncode, stdout.count(b"\n"), where in stdout.decode()) == (2, 1, True), stdout


def test_sources_of_the_number_of_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """In this order: the command line, $WEB_CONCURRENCY, BALANCER_PROCESSES, the default."""
    given = {"endpoints": [{"id": "a", "address": "http://a:1"}]}
    monkeypatch.delenv("WEB_CONCURRENCY", raising=False)
    assert load(None, given).processes == 1
    monkeypatch.setenv("BALANCER_PROCESSES", "2")
    assert load(None, given).processes == 2
    monkeypatch.setenv("WEB_CONCURRENCY", "3")
    assert load(None, given).processes == 3
    assert load(None, {**given, "processes": 4}).processes == 4
    monkeypatch.setenv("WEB_CONCURRENCY", "0")
    with pytest.raises(ConfigError, match="WEB_CONCURRENCY"):
        load(None, given)
