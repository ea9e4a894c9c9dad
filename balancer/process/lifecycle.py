"""Lifecycle of a serving process: start, reload, hot restart, shutdown.

All signals of a process with an event loop are handled here. A single process prints messages for the operator; with
several processes the supervisor does, or the process that it has asked to reload all.
"""

from __future__ import annotations

import asyncio
import gc
import signal
from collections.abc import Callable

from balancer.config.loading import Settings
from balancer.config.problems import ConfigError
from balancer.control.reload import Read
from balancer.process.allocator import keep_freed_memory
from balancer.process.hot_restart import HotRestart
from balancer.process.listening import ready_line
from balancer.process.member import ServingProcess
from balancer.process.server import Server
from balancer.process.shutdown import RELOAD, Shutdown
from balancer.process.socket_handover import tell_ready
from balancer.syntax.printable import one_line

Say = Callable[[str], None]

GC_THRESHOLD = 50_000
"""Allocations between collections of the youngest generation. An exchange leaves no reference cycles, so the default of
700 makes the collector scan live connections some dozen times a second for nothing.
"""


async def serve(settings: Settings, read: Read, say: Say, member: ServingProcess | None = None) -> bool:
    """Serve until shutdown; return whether all requests finished.

    `read` returns the configuration for each reload. For a `member` of several processes, `settings` and `read` give
    its share of the configuration.
    """
    server = Server(settings, read=read, member=member)

    def ready() -> str:
        clusters = (server.control_plane, *server.control_plane.named.values())
        return ready_line(settings, server.listening, sum(len(plane.registry.members) for plane in clusters))

    return await attend(server, ready, say, member)


async def attend(
    server: Server, ready: Callable[[], str], say: Say, member: ServingProcess | None = None
) -> bool:
    """Start the server and serve until shutdown; `ready` returns the readiness message."""
    loop, ending = asyncio.get_running_loop(), Shutdown()
    tell = say if member is None or not member.index else _in_silence  # the first process reports for all
    reloading: set[asyncio.Task[None]] = set()
    loop.add_signal_handler(signal.SIGHUP, lambda: _reload_soon(server, tell, reloading))
    if member is None:
        ending.install_handlers()
        succession = HotRestart(server.listening, say, ending.replaced)
        loop.add_signal_handler(signal.SIGUSR2, succession.begin)
    else:
        ending.install_child_handlers()
        loop.add_signal_handler(RELOAD, lambda: _reload_soon(server, say, reloading, everywhere=True))
        loop.add_reader(member.lifeline, ending.orphaned, member.lifeline)
    await server.start()
    _tune_memory()
    if member is None:
        say(ready())
        tell_ready()
    else:
        member.tell_ready()
    await ending.begun.wait()
    if member is None:
        say(f"balancer stopping: {server.cluster.process.in_flight} in flight")
    return await _ended(server, ending)


def _tune_memory() -> None:
    """Tune the allocator, and freeze the objects that exist now: the garbage collector does not scan them again."""
    keep_freed_memory()
    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD)


async def _ended(server: Server, ending: Shutdown) -> bool:
    """Stop the server; return whether all requests finished before the shutdown was cut short."""
    ending.on_impatient = server.close_idle
    stop = asyncio.ensure_future(server.stop(is_patient=ending.is_patient))
    cut = asyncio.ensure_future(ending.cut_short.wait())
    await asyncio.wait((stop, cut), return_when=asyncio.FIRST_COMPLETED)
    cut.cancel()
    if not stop.done():
        stop.cancel()
        return False
    return stop.result()


def _in_silence(line: str) -> None:
    """Discard a message that another process prints."""


def _reload_soon(
    server: Server, say: Say, under_way: set[asyncio.Task[None]], *, everywhere: bool = False
) -> None:
    """Start a reload, unless one is running and another waits: that one covers all signals received meanwhile."""
    if len(under_way) < 2:
        task = asyncio.get_running_loop().create_task(_reload(server, say, everywhere=everywhere))
        under_way.add(task)
        task.add_done_callback(under_way.discard)


async def _reload(server: Server, say: Say, *, everywhere: bool) -> None:
    try:
        refused = await server.reload(everywhere=everywhere)
    except ConfigError as error:
        say(one_line(f"balancer keeps the configuration that it has: {error}"))
        return
    for line in refused:
        say(f"balancer {line}")
    waiting = ", ".join(server.control_plane.reload_counts.waiting)
    say(
        f"balancer has reloaded; only the next start changes: {waiting}"
        if waiting
        else "balancer has reloaded"
    )
