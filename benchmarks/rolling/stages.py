"""Stages of an operator's work under load: restart the workers, reload the balancer, replace the balancer.

Each stage has a fresh balancer and fresh workers, and acts from a second after the load began. It also verifies its
effect: a reload that changes nothing proves nothing.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.harness.peer_files import Site
from benchmarks.harness.serving import serving
from benchmarks.harness.verified.account import Account
from benchmarks.harness.verified.load_process import CHECK, OURS, VerifiedLoad, loading, steelyard
from benchmarks.harness.verified.messages import WORKERS
from benchmarks.harness.verified.worker_group import Executions, WorkerGroup
from benchmarks.rolling.process_session import end, wait_for_end
from experiments.errors import FleetFailedError
from experiments.platform.control import balancer_status
from experiments.platform.ports import free_ports
from experiments.platform.processes import Child, program

FRESH_SHARE = 0.2
"""Share of requests after which the client reconnects: clients that keep connections never test new ones."""

POSTS = 0.2
"""Share of POSTs."""

SETTLED = 1.0
"""Seconds of load before the first and after the last action."""

REPLACED_WITHIN = 40.0
"""Seconds for the new balancer to start on a busy machine and the old one to drain (`timeouts.shutdown` is 25 s)."""

TAKES_TURNS = ("round-robin", "least-in-flight")
"""Policies that the configuration alternates between, so that a reload is visible."""

FILE = "steelyard.toml"


@dataclass(frozen=True, slots=True)
class StageTiming:
    """Number and duration of actions, in seconds. `idle` is the balancer's limit for idle connections."""

    rate: float = 300.0
    idle: float = 4.0
    workers: float = 60.0
    reloads: int = 60
    every: float = 1.0
    takeovers: int = 5
    takeover: float = 6.0


QUICK = StageTiming(rate=100.0, idle=0.5, workers=11.0, reloads=4, every=0.5, takeovers=1, takeover=4.0)


@dataclass(frozen=True, slots=True)
class Stage:
    """Result of one stage. `steps` describes what was done, `fault` why it could not be done."""

    name: str
    requests: int = 0
    failed: int = 0
    failures: dict[str, int] = field(default_factory=dict)
    wrong: int = 0
    """POSTs executed twice, responses crossed or corrupted."""

    steps: str = ""
    fault: str = ""


@dataclass(frozen=True, slots=True)
class StageEnvironment:
    """Environment of a stage: the balancer, its configuration folder and its workers."""

    proxy: Child
    site: Site
    workers: WorkerGroup
    timing: StageTiming

    async def status(self) -> dict[str, Any]:
        """The balancer's status. Raises `FleetFailedError`."""
        return await balancer_status(("127.0.0.1", self.site.port))

    async def has_policy(self, name: str) -> bool:
        """Whether this policy is in force according to the status."""
        return bool((await self.status())["policy"]["name"] == name)


def configured(site: Site, timing: StageTiming, policy: str, without: str = "") -> str:
    """Write the balancer's configuration without one worker; returns its path."""
    mechanisms = OURS + f"[pool]\nidle_timeout = {timing.idle:g}\n"
    return site.file(FILE, steelyard(site, policy, mechanisms, without))


Action = Callable[[StageEnvironment], Awaitable[str]]
"""Action of a stage; returns its steps in words. Raises `FleetFailedError` if it has no effect."""


async def restart_workers(environment: StageEnvironment) -> str:
    """Restart every worker in turn, gracefully."""
    for name in WORKERS:
        await environment.workers.restart(name)
    return f"{len(WORKERS)} workers restarted, one after the other"


async def reload_balancer(environment: StageEnvironment) -> str:
    """Reload with SIGHUP repeatedly; each time with another policy and another worker left out."""
    seen, timing = 0, environment.timing
    began_at = time.monotonic()
    for number in range(timing.reloads):
        policy = TAKES_TURNS[number % len(TAKES_TURNS)]
        without = WORKERS[number % len(WORKERS)]
        await asyncio.to_thread(configured, environment.site, timing, policy, without)
        os.kill(environment.proxy.pid, signal.SIGHUP)
        await asyncio.sleep(max(0.0, began_at + (number + 1) * timing.every - time.monotonic()))
        seen += await environment.has_policy(policy)
    for _ in range(round(REPLACED_WITHIN / SETTLED)):
        if await environment.has_policy(policy):  # the last one, which is not the initial one
            steps = f"{timing.reloads} reloads, one every {timing.every:g} s"
            return f"{steps}; {seen} were seen in the balancer's status"
        await asyncio.sleep(SETTLED)
    raise FleetFailedError("SIGHUP does not change the policy")


async def replace_balancer(environment: StageEnvironment) -> str:
    """Replace the balancer with SIGUSR2, then its successor, and so on."""
    pid = environment.proxy.pid
    for _ in range(environment.timing.takeovers):
        os.kill(pid, signal.SIGUSR2)
        await wait_for_end(pid, REPLACED_WITHIN)
        pid = (await environment.status())["pid"]
        await asyncio.sleep(SETTLED)
    return (
        f"{environment.timing.takeovers} times a new balancer on the same socket, while the old one drained"
    )


STAGES: dict[str, Action] = {
    "rolling restart of the workers": restart_workers,
    "reload of the balancer": reload_balancer,
    "replacement of the balancer": replace_balancer,
}


def seconds_of(name: str, timing: StageTiming) -> float:
    """Duration of a stage's load in seconds."""
    spans: dict[Action, float] = {
        restart_workers: timing.workers,
        reload_balancer: timing.reloads * timing.every,
        replace_balancer: timing.takeovers * timing.takeover,
    }
    return 2 * SETTLED + spans[STAGES[name]]


async def staged(name: str, timing: StageTiming, seed: int, cores: tuple[int, int], folder: Path) -> Stage:
    """Run one stage; a failure other than of requests is recorded as its fault."""
    proxy_core, rest_core = cores
    account = folder / "account.npz"
    try:
        async with WorkerGroup(folder, rest_core) as workers:
            site = Site(next(free_ports(1)), workers.ports, folder)
            load = VerifiedLoad(site.port, timing.rate, seconds_of(name, timing), POSTS, seed, FRESH_SHARE)
            argv = [*program("balancer"), "serve", "--config", configured(site, timing, TAKES_TURNS[0])]
            async with (
                serving("balancer", argv, site.port, CHECK, proxy_core) as child,
                ended_with(child.pid),
                loading(load, account, rest_core) as zero,
            ):
                await asyncio.sleep(max(0.0, zero + SETTLED - time.monotonic()))
                done = await STAGES[name](StageEnvironment(child, site, workers, timing))
            return stage_of(name, Account.load(account), workers.executions(), done)
    except (FleetFailedError, OSError, TimeoutError) as failure:
        return Stage(name, fault=str(failure) or type(failure).__name__)


@asynccontextmanager
async def ended_with(session: int) -> AsyncIterator[None]:
    try:
        yield
    finally:
        await end(session)


def stage_of(name: str, rows: Account, ran: Executions, steps: str) -> Stage:
    counted = rows.due >= 0
    found = rows.failures(counted)
    twice = sum(times > 1 for times in ran.executed.values())
    return Stage(
        name,
        requests=int(counted.sum()),
        failed=sum(found.values()),
        failures=found,
        wrong=twice + rows.crossed + len(ran.damaged),
        steps=steps,
    )
