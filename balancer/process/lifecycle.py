"""The life of a process that serves: told to start, to reload, to hand over, to end.

Rule of this file: readable aloud, and the only place that hears signals with an event loop. It speaks to whoever runs
the unit; one of several processes leaves that to the supervisor, or to the first of them.
"""

from __future__ import annotations

import asyncio
import gc
import signal
from collections.abc import Callable

from balancer.config.listen import ListenAddress
from balancer.config.load import ConfigError, Settings
from balancer.process.allocator import keep_freed_memory
from balancer.process.hot_restart import HotRestart
from balancer.process.member import Member
from balancer.process.shutdown import Ending
from balancer.process.socket_handover import tell_ready
from balancer.server import Server

Say = Callable[[str], None]

GC_THRESHOLD = 50_000
"""Allocations between collections of the youngest generation. An exchange leaves no cycles behind, so the default
of 700 makes the collector look at live connections some dozen times a second for nothing."""


async def serve(
    settings: Settings, read: Callable[[], Settings], say: Say, member: Member | None = None
) -> bool:
    """Run until told to end; returns whether all was finished. `read` gives the configuration on each reload; that of
    a `member` of several is its part, as `settings` are."""
    server = Server(settings, read=read, member=member)

    def ready() -> str:
        return ready_line(settings, server.address, len(server.proxy.roster.members))

    return await attend(server, ready, say, member)


async def attend(server: Server, ready: Callable[[], str], say: Say, member: Member | None = None) -> bool:
    """The life of a server that is made and not started; `ready` is the line that says that it serves."""
    loop, ending = asyncio.get_running_loop(), Ending()
    tell = say if member is None or not member.index else _in_silence  # one of several speaks for all
    reloading: set[asyncio.Task[None]] = set()
    loop.add_signal_handler(signal.SIGHUP, lambda: _reload_soon(server, tell, reloading))
    if member is None:
        ending.hear_everybody()
        succession = HotRestart(server.listening, say, ending.replaced)
        loop.add_signal_handler(signal.SIGUSR2, succession.begin)
    else:
        ending.hear_supervisor()
        loop.add_reader(member.lifeline, ending.orphaned, member.lifeline)
    await server.start()
    _settle_down()
    if member is None:
        say(ready())
        tell_ready()
    else:
        member.tell_ready()
    await ending.begun.wait()
    if member is None:
        say(f"balancer stopping: {server.proxy.in_flight} in flight")
    return await _ended(server, ending)


def _settle_down() -> None:
    """What there is now stays: the collector need not look at it again."""
    keep_freed_memory()
    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD)


async def _ended(server: Server, ending: Ending) -> bool:
    """Whether everything was finished before somebody lost patience."""
    ending.on_haste = server.close_idle
    stop = asyncio.ensure_future(server.stop(is_patient=ending.is_patient))
    cut = asyncio.ensure_future(ending.cut_short.wait())
    await asyncio.wait((stop, cut), return_when=asyncio.FIRST_COMPLETED)
    cut.cancel()
    if not stop.done():
        stop.cancel()
        return False
    return stop.result()


def ready_line(settings: Settings, address: ListenAddress, endpoints: int) -> str:
    """What whoever started the unit waits for; how many `endpoints` are known by then."""
    processes = settings.processes
    return (
        f"balancer ready on {'http' if settings.tls is None else 'https'}://{address} "
        f"(policy {settings.policy.name}, {endpoints} endpoint{'s' if endpoints != 1 else ''}"
        f"{f', {processes} processes' if processes != 1 else ''})"
    )


def _in_silence(line: str) -> None:
    """Another process says the same."""


def _reload_soon(server: Server, say: Say, under_way: set[asyncio.Task[None]]) -> None:
    """One after the one that is under way is enough for all the signals that come meanwhile."""
    if len(under_way) < 2:
        task = asyncio.get_running_loop().create_task(_reload(server, say))
        under_way.add(task)
        task.add_done_callback(under_way.discard)


async def _reload(server: Server, say: Say) -> None:
    try:
        await server.reload()
    except ConfigError as error:
        say(f"balancer keeps the configuration that it has: {error}")
        return
    waiting = ", ".join(server.proxy.reload_counts.waiting)
    say(
        f"balancer has reloaded; only the next start changes: {waiting}"
        if waiting
        else "balancer has reloaded"
    )
