"""Rate limits of two real processes under load: what both admit together is what the limit states."""

from __future__ import annotations

import asyncio
import signal
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.programs import TWO_PROCESSES, Program, Start
from tests.support.stage import Stage
from tests.support.wire import ScriptedWorker, Wire, answering, get, response

pytestmark = pytest.mark.second_tier

SECONDS = 10.0
RATE, BURST = 100, 200
"""A bucket that takes two seconds to fill: so long the machine may do something else without a token being lost."""

CLIENTS = 16


async def patient(wire: Wire) -> None:
    """Answer every request, also after connections were idle for long."""
    wire.patience += SECONDS
    await answering(response())(wire)


def configuration(folder: Path, worker: ScriptedWorker) -> str:
    path = folder / "balancer.toml"
    path.write_text(
        f'[[rate_limits]]\nname = "all"\nrequests = {RATE}\nburst = {BURST}\nby = "all"\neverywhere = true\n'
        f'[[endpoints]]\nid = "w"\naddress = "http://127.0.0.1:{worker.port}"\n'
    )
    return str(path)


class Demand:
    """Clients that ask for more than the limit for `SECONDS`, on connections that are kept open.

    `admitted` counts answers, `begun_at` and `ended_at` are the times of the first request and the last response.
    `emptied` is their number and the time when the first request was refused: the bucket was empty.
    """

    def __init__(self, program: Program) -> None:
        self._program = program
        self.admitted = self.refused = 0
        self.begun_at = time.monotonic()
        self._until = self.begun_at + SECONDS
        self.ended_at = 0.0
        self.emptied: tuple[int, float] | None = None

    async def run(self) -> None:
        await asyncio.gather(*(self._client() for _ in range(CLIENTS)))
        self.ended_at = time.monotonic()

    async def _client(self) -> None:
        while time.monotonic() < self._until:
            with suppress(OSError, EOFError):
                await self._connection()

    async def _connection(self) -> None:
        client = await self._program.client()
        try:
            while time.monotonic() < self._until:
                status = (await client.ask(get())).status
                self.admitted += status == 200
                self.refused += status == 429
                if self.emptied is None and status == 429:
                    self.emptied = self.admitted, time.monotonic()
                assert status in (200, 429)
        finally:
            client.leave()

    @property
    def most(self) -> float:
        """Requests that the limit admits at most in the time, and one more for the second process."""
        return BURST + RATE * (self.ended_at - self.begun_at) + 1

    @property
    def since_emptied(self) -> tuple[int, float]:
        """Requests that were admitted since the bucket was empty, and those that the limit states for that time."""
        assert self.emptied is not None
        admitted, at = self.emptied
        return self.admitted - admitted, RATE * (self.ended_at - at)


async def test_both_admit_together_what_is_stated(start: Start, stage: Stage, tmp_path: Path) -> None:
    """To 1 % over the time, whichever process the clients are connected to."""
    program = await start(
        *TWO_PROCESSES, "--port", "0", "--config", configuration(tmp_path, await stage.worker(patient))
    )
    demand = Demand(program)
    await demand.run()
    admitted, stated = demand.since_emptied
    assert demand.refused > demand.admitted / 4, "the demand was too small to show anything"
    assert demand.admitted <= demand.most
    assert 0.99 * stated <= admitted <= 1.01 * stated + CLIENTS, (
        "of which some were in flight when it was empty"
    )
    document = await program.status()
    rows = document["processes"]["answering"]
    assert len(rows) == 2
    assert all(row["requests"] for row in rows), "one of them has taken all clients"
    [limit] = document["rate_limits"]
    assert (limit["passed"], limit["denied"]) == (demand.admitted, demand.refused)


async def test_death_of_a_process_gives_no_request_away(start: Start, stage: Stage, tmp_path: Path) -> None:
    """One of them is killed five times; each successor continues with the buckets. None are lost for ever either."""
    program = await start(
        *TWO_PROCESSES, "--port", "0", "--config", configuration(tmp_path, await stage.worker(patient))
    )
    demand = Demand(program)
    running = asyncio.ensure_future(demand.run())
    for _ in range(5):
        await asyncio.sleep(SECONDS / 8)
        program.signal(signal.SIGKILL, (await program.pids())[0])
    await running
    admitted, stated = demand.since_emptied
    killed = 5 * CLIENTS  # requests in flight at a process that is killed: admitted, and not answered
    assert demand.admitted <= demand.most
    assert admitted + killed >= 0.99 * stated
