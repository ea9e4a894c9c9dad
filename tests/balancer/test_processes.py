"""Several processes on one port: one unit to whoever looks, and whatever befalls one of them is its own affair."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path

import pytest

from balancer.config.load import ConfigError
from balancer.configuration import load
from tests.balancer.conftest import Message, Stage, Wire, get, response
from tests.balancer.programs import PATIENCE, Load, Program, Start, process_of, starting, workers

pytestmark = pytest.mark.second_tier

LOCAL = b"localhost"


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    """Starts a unit of two processes; whatever still runs at the end is killed."""
    async with starting("--processes", "2") as started:
        yield started


def control(method: bytes, target: bytes, body: bytes = b"") -> bytes:
    length = b"Content-Length: %d" % len(body)
    return get(target, length, method=method).replace(b"example.org", LOCAL) + body


async def patiently(is_so: Callable[[], Awaitable[bool]]) -> None:
    """Ask again until it is so."""
    async with asyncio.timeout(PATIENCE):
        while not await is_so():  # noqa: ASYNC110 - it is another process's doing
            await asyncio.sleep(0)


class Held:
    """A worker that answers when it is let go."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.held = 0

    async def script(self, wire: Wire) -> None:
        while True:
            await wire.request()
            self.held += 1
            await self.go.wait()
            await wire.send(response(b"held"))


async def test_two_processes_are_one_unit(start: Start, stage: Stage) -> None:
    """Each is asked, both are told of as one by whoever answers, and SIGTERM ends both with 0."""
    program = await start(*workers(await stage.worker(response())))
    assert program.lines[-1].endswith("(policy random, 1 endpoint, 2 processes)")
    clients = [await program.client() for _ in range(40)]
    for client in clients:
        assert (await client.ask(get())).status == 200
    told = await program.status()
    rows = told["processes"]["answering"]
    assert told["processes"]["configured"] == len({row["pid"] for row in rows}) == 2
    assert told["clients"] == sum(row["clients"] for row in rows) == 40
    assert told["requests"] == 40
    assert told["endpoints"][0]["outcomes"]["ok"] == told["endpoints"][0]["latency"]["count"] == 40
    assert all(row["clients"] for row in rows), "one of them has taken all clients"
    client = await program.control_client()
    metrics = (await client.ask(control(b"GET", b"/-/metrics"))).body.decode().splitlines()
    assert 'steelyard_endpoint_outcomes_total{endpoint="r-0",outcome="ok",region="r"} 40.0' in metrics
    program.signal(signal.SIGTERM)
    assert await program.ended() == 0
    assert await program.rest() == ["balancer stopping: 0 in flight"]
    for wire in (client, *clients):
        await wire.close()


async def test_what_is_ordered_is_done_by_all(start: Start, stage: Stage) -> None:
    """Whoever is asked; and by a process that starts later."""
    program = await start(*workers(await stage.worker(response())))

    async def policies() -> set[str]:
        return {(await program.ask(control(b"GET", b"/-/policy")))["name"] for _ in range(12)}

    answer = await program.ask(control(b"PUT", b"/-/policy", b'{"name": "least-in-flight", "choices": 3}'))
    assert (answer["name"], answer["options"]) == ("least-in-flight", {"choices": 3})
    assert await policies() == {"least-in-flight"}
    refused = await program.ask(control(b"PUT", b"/-/policy", b'"p2x"'))
    assert "p2x" in refused["error"]
    killed, other = await program.pids()
    program.signal(signal.SIGKILL, killed)
    await program.line("started again")
    await patiently(lambda: are_two_without(program, killed))
    program.signal(signal.SIGKILL, other)
    await program.line("started again")
    await patiently(lambda: are_two_without(program, other))
    assert await policies() == {"least-in-flight"}


async def are_two_without(program: Program, gone: int) -> bool:
    pids = await program.pids()
    return len(pids) == 2 and gone not in pids


async def test_a_killed_process_takes_its_own_requests_along(start: Start, stage: Stage) -> None:
    """And no others; it is told in one line, another takes its place, and what it had in flight is forgotten."""
    held = Held()
    worker = await stage.worker(held.script)
    program = await start(*workers(worker))
    clients = [await program.client() for _ in range(40)]
    for client in clients:
        await client.send(get())
    await stage.eventually(lambda: held.held == 40)
    told = await program.status()
    assert told["endpoints"][0]["in_flight"] == 40
    rows = {row["pid"]: row["in_flight"] for row in told["processes"]["answering"]}
    killed = min(rows, key=lambda pid: rows[pid])
    program.signal(signal.SIGKILL, killed)
    await program.line(rf"balancer process \d \({killed}\) was killed by SIGKILL; it is started again$")
    await patiently(lambda: are_two_without(program, killed))
    assert (await program.status())["endpoints"][0]["in_flight"] == 40 - rows[killed]
    held.go.set()
    answers = await asyncio.gather(*(client.response() for client in clients), return_exceptions=True)
    assert (
        sum(isinstance(answer, Message) and answer.body == b"held" for answer in answers) == 40 - rows[killed]
    )
    program.signal(signal.SIGTERM)
    assert await program.ended() == 0
    for client in clients:
        await client.close()


async def test_under_load_only_what_was_in_flight_fails(start: Start, stage: Stage) -> None:
    """Eight clients: no more than one failure each, whoever waited in the kernel's queue is served."""
    program = await start(*workers(await stage.worker(response())))
    load = Load(program)
    await load.answers(200)
    program.signal(signal.SIGKILL, (await program.pids())[0])
    await load.answers(500)
    failures = await load.end()
    assert 0 < len(failures) <= 8


async def test_a_process_that_is_told_to_end_is_started_again(start: Start, stage: Stage) -> None:
    """It finishes what it has, so that processes may be renewed one by one, and nobody notices."""
    program = await start(*workers(await stage.worker(response())))
    load = Load(program)
    await load.answers(100)
    for pid in await program.pids():
        program.signal(signal.SIGTERM, pid)
        await program.line(rf"\({pid}\) has ended with 0; it is started again$")
        await patiently(partial(are_two_without, program, pid))
        await load.answers(100)
    assert await load.end() == []


async def test_sigterm_to_all_of_them_finishes_what_is_in_flight(start: Start, stage: Stage) -> None:
    """Whoever runs a unit often signals every process of it; none takes that for a second signal."""
    held = Held()
    program = await start(*workers(await stage.worker(held.script)))
    clients = [await program.client() for _ in range(8)]
    for client in clients:
        await client.send(get())
    await stage.eventually(lambda: held.held == 8)
    pids = await program.pids()
    for pid in (None, *pids):
        program.signal(signal.SIGTERM, pid)
        program.signal(signal.SIGINT, pid) if pid else None
    await program.line("balancer stopping: 8 in flight")
    held.go.set()
    for client in clients:
        assert (await client.response()).body == b"held"
        assert await client.rest() == b""
        await client.close()
    assert await program.ended() == 0


async def test_a_second_signal_ends_the_grace_period(start: Start, stage: Stage) -> None:
    """Of all of them, and the exit code says that something was not finished."""
    held = Held()
    program = await start(*workers(await stage.worker(held.script)))
    client = await program.client()
    await client.send(get())
    await stage.eventually(lambda: held.held)
    program.signal(signal.SIGTERM)
    await program.line("balancer stopping: 1 in flight")
    program.signal(signal.SIGTERM)
    assert await program.ended() == 1
    await client.closed()
    await client.close()


async def test_processes_whose_parent_vanishes_end(start: Start, stage: Stage) -> None:
    """They finish what they have, and leave nothing behind."""
    held = Held()
    program = await start(*workers(await stage.worker(held.script)))
    client = await program.client()
    await client.send(get())
    await stage.eventually(lambda: held.held)
    program.signal(signal.SIGKILL)
    assert await program.ended() == -signal.SIGKILL
    held.go.set()
    assert (await client.response()).body == b"held"
    assert await program.rest() == []
    await client.close()


async def test_one_speaks_for_all(start: Start, stage: Stage) -> None:
    """SIGHUP reaches every process and is told in one line."""
    program = await start(*workers(await stage.worker(response())))
    program.signal(signal.SIGHUP)
    await program.line("balancer has reloaded")
    program.signal(signal.SIGTERM)
    assert await program.ended() == 0
    assert [line for line in await program.rest() if "reloaded" in line] == []


async def refusal(*arguments: str, **environment: str) -> str:
    process = await process_of(("--worker", "r=http://127.0.0.1:9", *arguments), "", None, environment)
    stdout, _ = await process.communicate()
    assert (process.returncode, stdout.count(b"\n")) == (2, 1), stdout
    return stdout.decode()


async def test_mistakes_are_told_once(tmp_path: Path) -> None:
    """One line and exit code 2, however many processes there would be."""
    where = str(tmp_path / "absent" / "log")
    logging = {"BALANCER_LOG__ACCESS": "text", "BALANCER_LOG__PATH": where}
    assert where in await refusal("--processes", "2", "--port", "0", **logging)
    assert "--processes" in await refusal("--processes", "0")
    assert "processes" in await refusal("--processes", "257")
    assert "WEB_CONCURRENCY: must be a whole number of 1–256, got 'many'" in await refusal(
        WEB_CONCURRENCY="many"
    )


def test_who_says_how_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """First to last: the command line, $WEB_CONCURRENCY, BALANCER_PROCESSES, the default."""
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
