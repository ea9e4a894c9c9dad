"""Lifecycle of a serving process: start, reload, hot restart, shutdown.

All signals of a process with an event loop are handled here. A single process prints messages for the operator; with
several processes the supervisor does, or the process that it has asked to reload all. At a hot restart (SIGUSR2) a
single process starts the new program and stops when that serves; until then it must stay unchanged.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import json
import signal
from collections.abc import Callable
from typing import Any

import click

from balancer.config.loading import Settings
from balancer.config.problems import ConfigError
from balancer.control.reload import Read
from balancer.log.output import complain
from balancer.process.listening import ready_line
from balancer.process.member import ServingProcess
from balancer.process.server import Server, in_silence
from balancer.process.socket_handover import Successor, started, tell_ready
from balancer.syntax.printable import one_line

REPLACED = signal.SIGTERM
STOPPED = signal.SIGINT
CUT_SHORT = signal.SIGQUIT
RELOAD = signal.SIGUSR1
"""Signals from the supervisor to its processes."""


class Shutdown:
    """Shutdown state of a process, which signals change.

    Without a supervisor, the first SIGTERM or SIGINT starts the shutdown and the second one cuts the grace period
    short. A child process gets SIGTERM when a successor of the program or of the process takes over, SIGINT when the
    balancer stops, SIGQUIT to cut the grace period short, and SIGUSR1 to reload the configuration in all processes.
    Service managers often signal all processes at once, so a second SIGTERM has no effect on a child.

    `begun` is set when the shutdown starts, `cut_short` when it must end at once. `is_patient` is set while a successor
    serves, so that idle clients get time; `on_impatient` is called when that ends.
    """

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.cut_short = asyncio.Event()
        self.is_patient = False
        self.on_impatient: Callable[[], None] | None = None

    def begin(self) -> None:
        """Start the shutdown; a repeated call only ends the patience."""
        was_patient, self.is_patient = self.is_patient, False
        self.begun.set()
        if was_patient and self.on_impatient is not None:
            self.on_impatient()

    def replaced(self) -> None:
        """Start a patient shutdown: a successor serves."""
        if not self.begun.is_set():
            self.is_patient = True
            self.begun.set()

    def orphaned(self, lifeline: int) -> None:
        """Start the shutdown because the supervisor has vanished, which would restart processes."""
        asyncio.get_running_loop().remove_reader(lifeline)
        self.begin()

    def begin_or_cut(self) -> None:
        """Start the shutdown, or cut it short if it has begun."""
        if self.begun.is_set() and not self.is_patient:
            self.cut()
        else:
            self.begin()

    def cut(self) -> None:
        """Start the shutdown if it has not begun, and cut it short."""
        self.begun.set()
        self.cut_short.set()


Say = Callable[[str], None]


def say(line: str) -> None:
    """Print a line at once, because a caller may wait for the ready line; on standard error if that fails."""
    try:
        click.echo(line)
    except OSError as error:
        complain(f"standard output: {error.strerror}: {line}")


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
    tell = say if member is None or not member.index else in_silence  # the first process reports for all
    reloading: set[asyncio.Task[None]] = set()
    if member is None:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, ending.begin_or_cut)
        succession = HotRestart(server, say, ending)
        loop.add_signal_handler(signal.SIGUSR2, succession.begin)
    else:
        loop.add_signal_handler(STOPPED, ending.begin)
        loop.add_signal_handler(REPLACED, ending.replaced)
        loop.add_signal_handler(CUT_SHORT, ending.cut)
        loop.add_signal_handler(RELOAD, lambda: _reload_soon(server, say, reloading, everywhere=True))
        loop.add_reader(member.lifeline, ending.orphaned, member.lifeline)
    if await _unless(ending.begun, loop.create_task(server.start())):  # a lookup of endpoints may take long
        loop.add_signal_handler(signal.SIGHUP, lambda: _reload_soon(server, tell, reloading))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGHUP, signal.SIGUSR2))  # held back since `main`
        keep_freed_memory()
        gc.freeze()  # the collector does not scan what exists now; a collection before would take a tenth of the start
        if member is None:
            say(ready())
            tell_ready()
        else:
            member.tell_ready()
    await ending.begun.wait()
    for reload in reloading:
        reload.cancel()
    if member is None:
        succession.end()
        say(f"balancer stopping: {server.cluster.process.in_flight} in flight")
    return await _ended(server, ending)


async def _ended(server: Server, ending: Shutdown) -> bool:
    """Stop the server; return whether all requests finished before the shutdown was cut short."""
    ending.on_impatient = server.close_idle
    stop = asyncio.ensure_future(server.stop(is_patient=ending.is_patient))
    return await _unless(ending.cut_short, stop) and stop.result()


async def _unless(event: asyncio.Event, task: asyncio.Task[Any]) -> bool:
    """Wait for the end of a task; return False if the event was set before, and the task is cancelled."""
    cut = asyncio.ensure_future(event.wait())
    await asyncio.wait((task, cut), return_when=asyncio.FIRST_COMPLETED)
    cut.cancel()
    if task.done():
        task.result()
        return True
    task.cancel()
    await asyncio.wait((task,))
    return False


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


class HotRestart:
    """Hot restart of a process without a supervisor, whose shutdown starts when the successor serves."""

    def __init__(self, server: Server, say: Callable[[str], None], ending: Shutdown) -> None:
        self._server = server
        self._say = say
        self._ending = ending
        self._successor: Successor | None = None
        self._reloads = 0  # reloads that had begun before the successor was started

    def begin(self) -> None:
        """Start the successor, unless one is starting already or this process is shutting down."""
        if self._successor is not None or self._ending.begun.is_set():
            return
        self._reloads = self._server.reloads.tally[0]
        known = json.dumps({"discovered": self._server.control_plane.known()}).encode()
        self._successor = started(self._server.listening.labelled(), known, self._say)
        if self._successor is not None:
            asyncio.get_running_loop().add_reader(self._successor.fileno(), self._heard, self._successor)

    def _heard(self, successor: Successor) -> None:
        asyncio.get_running_loop().remove_reader(successor.fileno())
        self._successor = None
        is_outdated = self._server.reloads.tally[0] != self._reloads
        if successor.has_taken_over(self._say, is_outdated=is_outdated):
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, successor.reload)
            self._ending.replaced()

    def end(self) -> None:
        """End a successor that does not serve yet."""
        if self._successor is not None:
            asyncio.get_running_loop().remove_reader(self._successor.fileno())
            self._successor.end()


_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3
"""M_TRIM_THRESHOLD, M_TOP_PAD and M_MMAP_THRESHOLD of glibc's malloc.h."""

KEPT_FREE_BYTES = 64 << 20
"""Bytes of freed memory that are kept for the next burst."""


def keep_freed_memory() -> None:
    """Keep freed memory instead of returning it to the kernel, which would fault it in again at the next large read.

    A read of a large body is a quarter of a mebibyte; freed, it would be at the top of the heap and trimmed each time.
    With the memory kept, a mebibyte costs a third less time.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # musl, macOS, Windows
        return
    mallopt(_TRIM_THRESHOLD, KEPT_FREE_BYTES)
    mallopt(_TOP_PAD, 1 << 20)
    mallopt(_MMAP_THRESHOLD, KEPT_FREE_BYTES // 2)
