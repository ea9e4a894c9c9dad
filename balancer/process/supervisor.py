"""Supervisor of several processes: it starts, monitors and restarts them, and forwards no traffic.

It must not have an event loop or a thread, so that it can fork at any time; it waits in one `select`. The listening
sockets are opened here and inherited, so connections in their queues survive the death of a process. Children are
controlled by signals (`lifecycle.py`) and report by a pipe; a child reads the end of another pipe when the supervisor
vanishes, and shuts down. One that dies is restarted at once if it ran for `MIN_UPTIME` seconds, otherwise after a delay
that grows with each death in a row.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Self

from balancer.config.loading import Settings
from balancer.control.admin.channel import READ_TIMEOUT
from balancer.control.admin.client import AdminClient, Unreachable
from balancer.control.admin.runtime_overrides import ORDERS
from balancer.errors import ListenFailed
from balancer.log.output import complain
from balancer.process.lifecycle import CUT_SHORT, RELOAD, REPLACED, STOPPED
from balancer.process.listening import listening, ready_line
from balancer.process.member import ServingProcess, prompt_memory
from balancer.process.socket_handover import Successor, started, tell_ready
from balancer.rate_limits.shared_buckets import SharedBuckets
from balancer.sharing.shared_counters import SharedCounters
from balancer.tls.contexts import shared_contexts

SPARE_TIME = 5.0
"""Seconds beyond the grace period after which a process that does not end is killed."""

Work = Callable[[ServingProcess], int]
"""Function that a child runs; returns its exit code."""


class Supervisor:
    """Supervisor of the balancer's processes; `run` returns the exit code."""

    def __init__(self, settings: Settings, work: Work, say: Callable[[str], None]) -> None:
        self._settings = settings
        self._work = work
        self._say = say
        self._listening = listening(settings, complain)
        self._board = SharedCounters(settings.processes)
        self._buckets = SharedBuckets(settings.processes)
        self._prompts = prompt_memory(settings)
        self._directory = made_directory()
        self._lifeline, self._held = os.pipe()
        self._fronts = shared_contexts(settings)
        self._children = [Child(index) for index in range(settings.processes)]
        self._successor: Successor | None = None
        self._replacement: Successor | None = None  # that has taken over
        self._reloads = 0  # that had begun before the successor was started
        self._is_ready = self._is_stopping = self._is_patient = False
        self._kill_at: float | None = None
        self._code = 0

    def run(self) -> int:
        """Start all processes and restart those that die, until shutdown."""
        try:
            with Signals() as signals:
                while self._step(signals):
                    for number in signals.wait(self._readable(), self._patience()):
                        self._obey(number)
        finally:
            shutil.rmtree(self._directory, ignore_errors=True)
        if self._listening.is_closed:
            self._listening.remove_unused()
        return self._code

    def _step(self, signals: Signals) -> bool:
        """Start, reap and kill processes as due; return whether to continue."""
        now = time.monotonic()
        for child in self._children:
            if child.is_due(now) and not self._is_stopping:
                self._start(child, signals)
        self._hear()
        for child in self._children:
            if (status := child.ended()) is not None:
                self._reap(child, status)
        if self._kill_at is not None and now >= self._kill_at:
            self._tell(signal.SIGKILL)
        return not self._is_stopping or any(child.pid for child in self._children)

    # --- children

    def _start(self, child: Child, signals: Signals) -> None:
        reading, writing = os.pipe()
        with signals.held():
            pid = os.fork()
            if not pid:
                signals.forget()
                self._be(child, reading, writing)
        os.close(writing)
        child.started(pid, reading)

    def _be(self, child: Child, reading: int, writing: int) -> None:
        """Run the child; does not return, and exits without the parent's cleanup."""
        code = 1
        try:
            os.close(reading)
            os.close(self._held)  # or the children would not notice the end of the parent
            member = ServingProcess(
                child.index,
                len(self._children),
                self._listening,
                self._board,
                self._buckets,
                self._directory,
                self._lifeline,
                writing,
                self._fronts,
                self._prompts,
                self._is_ready,
            )
            code = self._work(member)
        finally:
            os._exit(code)

    def _reap(self, child: Child, status: int) -> None:
        """Handle the end of a child: clear its counters and schedule its restart."""
        was_ready, pid, owes_reload = child.is_ready, child.pid, self._owes_reload(child)
        self._board.pages[child.index].clear()
        delay = child.gone()
        if self._is_stopping:
            # Our signal kills one that has not begun to serve, and so has no request.
            self._code = max(self._code, 0 if status in (0, -STOPPED, -REPLACED) else 1)
        elif not self._is_ready:
            self._code = status if status > 0 else 1
            self._stop(STOPPED)
        else:
            how = (
                f"was killed by {signal.Signals(-status).name}" if status < 0 else f"has ended with {status}"
            )
            when = f" in {delay:g} s" if delay else ""
            early = "" if was_ready else " before it served"
            self._say(f"balancer process {child.index + 1} ({pid}) {how}{early}; it is started again{when}")
            if owes_reload:
                self._say(
                    f"balancer process {child.index + 1} ended before it had reloaded; send SIGHUP again"
                )

    # --- signals

    def _obey(self, number: int) -> None:
        if number == signal.SIGHUP:
            self._reload() if self._replacement is None else self._replacement.reload()
        elif number == signal.SIGUSR2:
            self._begin_hot_restart()
        elif number in (signal.SIGTERM, signal.SIGINT):
            self._end()

    def _end(self) -> None:
        if not self._is_stopping or self._is_patient:
            self._stop(STOPPED)
        else:
            self._tell(CUT_SHORT)

    def _stop(self, number: int) -> None:
        if self._is_ready and not self._is_stopping:
            in_flight = sum(page.total_in_flight for page in self._board.pages)
            self._say(f"balancer stopping: {in_flight} in flight")
        self._is_stopping, self._is_patient = True, number == REPLACED
        if self._successor is not None:
            self._successor.end()
            self._successor = None
        if not self._listening.is_closed:  # else a successor serves
            self._listening.remove()
            self._listening.close()
        grace = max(page.grace for page in self._board.pages) or self._settings.timeouts.shutdown
        self._kill_at = time.monotonic() + grace + SPARE_TIME
        self._tell(number)

    def _tell(self, number: int) -> None:
        for child in self._children:
            if child.pid:
                with suppress(ProcessLookupError):
                    os.kill(child.pid, number)

    def _reload(self) -> None:
        """Let one process reload: it reads the files of policies once, for all processes."""
        first = next((child for child in self._children if child.is_ready), None)
        if first is None:
            self._say("balancer has not reloaded: no process serves; send SIGHUP again")
        elif first.pid is not None:
            first.reload_after = self._board.pages[first.index].reloads[0]
            os.kill(first.pid, RELOAD)  # one that has ended is reaped later

    def _owes_reload(self, child: Child) -> bool:
        """Return whether a child has not carried out its last reload."""
        after = child.reload_after
        return after is not None and self._board.pages[child.index].reloads[1] <= after

    @property
    def _begun_reloads(self) -> int:
        return sum(page.reloads[0] for page in self._board.pages)

    def _begin_hot_restart(self) -> None:
        if self._successor is None and not self._is_stopping:
            self._reloads = self._begun_reloads
            self._successor = started(self._listening.labelled(), self._discovered(), self._say)

    def _discovered(self) -> bytes:
        """Return what the first process that answers knows of discovery, for the successor."""
        for child in self._children:
            with suppress(Unreachable):
                client = AdminClient(f"unix:{self._directory / f'{child.index}.sock'}", timeout=READ_TIMEOUT)
                status, found = client.request("GET", ORDERS)
                if status == 200:
                    return found
        return b""

    # --- readiness

    def _readable(self) -> list[int]:
        pipes = [child.pipe for child in self._children if child.pipe is not None]
        return pipes if self._successor is None else [*pipes, self._successor.fileno()]

    def _patience(self) -> float | None:
        """Return the seconds until the next restart or kill is due; None if there is none."""
        due = [child.due_at for child in self._children if child.due_at is not None and not self._is_stopping]
        if self._kill_at is not None:
            due.append(self._kill_at)
        return max(0.0, min(due) - time.monotonic()) if due else None

    def _hear(self) -> None:
        """Read the readiness of children and of the successor."""
        readable, _, _ = select.select(self._readable(), (), (), 0)
        for child in self._children:
            if child.pipe in readable:
                child.hear()
        if not self._is_ready and not self._is_stopping and all(child.is_ready for child in self._children):
            self._is_ready = True
            self._listening.discovered.clear()  # of the start; a later process asks its siblings
            endpoints = max(len(self._settings.endpoints), *(len(page.rows()) for page in self._board.pages))
            self._say(ready_line(self._settings, self._listening, endpoints))
            tell_ready()
            signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGHUP, signal.SIGUSR2))  # held since `main`
        if self._successor is not None and self._successor.fileno() in readable:
            self._succeeded(self._successor)

    def _succeeded(self, successor: Successor) -> None:
        self._successor = None
        is_outdated = self._begun_reloads != self._reloads or any(map(self._owes_reload, self._children))
        if successor.has_taken_over(self._say, is_outdated=is_outdated):
            self._replacement = successor
            self._listening.close()
            self._stop(REPLACED)


MIN_UPTIME = 10.0
"""Seconds of uptime after which a death does not count as one in a row."""

DELAYS = (0.0, 0.5, 1.0, 2.0, 4.0, 8.0)
"""Delay in seconds before a restart, by the number of deaths in a row."""


class Child:
    """A child process; `pid` is None while it does not run, `due_at` the time of its next start, `pipe` the read end of
    its readiness pipe.
    """

    def __init__(self, index: int) -> None:
        self.index = index
        self.pid: int | None = None
        self.due_at: float | None = 0.0
        self.pipe: int | None = None
        self.is_ready = False
        self.reload_after: int | None = (
            None  # number of reloads that had begun when it was last told to reload
        )
        self._deaths = 0
        self._started_at = 0.0

    def is_due(self, now: float) -> bool:
        """Return whether the child is to be started now."""
        return self.due_at is not None and now >= self.due_at

    def started(self, pid: int, pipe: int) -> None:
        """Register the started process."""
        self.pid, self.pipe, self.due_at = pid, pipe, None
        self._started_at = time.monotonic()

    def hear(self) -> None:
        """Read the readiness pipe, which is readable or closed."""
        if self.pipe is not None:
            self.is_ready = os.read(self.pipe, 16) != b""
            self._close_pipe()

    def _close_pipe(self) -> None:
        if self.pipe is not None:
            os.close(self.pipe)
            self.pipe = None

    def ended(self) -> int | None:
        """Reap the child; return its exit code if it has ended, negative for a signal, else None."""
        if self.pid is None:
            return None
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        return os.waitstatus_to_exitcode(status) if pid else None

    def gone(self) -> float:
        """Register the end of the process; return the seconds until its restart."""
        now = time.monotonic()
        if now - self._started_at >= MIN_UPTIME:
            self._deaths = 0
        delay = DELAYS[min(self._deaths, len(DELAYS) - 1)]
        self._deaths += 1
        self.pid, self.is_ready, self.reload_after, self.due_at = None, False, None, now + delay
        self._close_pipe()
        return delay


HEARD = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR2, signal.SIGCHLD)

IGNORED_BY_CHILDREN = (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
"""Signals ignored by children: SIGUSR2 always, as it is for the supervisor; the others until a handler is installed."""


def made_directory() -> Path:
    """Make the directory for the sockets of the processes. Raises `ListenFailed`."""
    try:
        return Path(tempfile.mkdtemp(prefix="steelyard-"))
    except OSError as error:
        raise ListenFailed(
            f"TMPDIR: cannot make a directory for the sockets of the processes: {error.strerror or error}"
        ) from None


def _noted(number: int, frame: FrameType | None) -> None:
    """Do nothing: the signal's number is already written to the wake-up socket."""


class Signals:
    """Context manager that catches signals for `wait`, in a process without an event loop.

    Signal handlers do nothing: the interpreter writes each signal's number into a socket (`signal.set_wakeup_fd`),
    which is read.
    """

    def __enter__(self) -> Self:
        self._reading, self._writing = socket.socketpair()
        self._reading.setblocking(False)
        self._writing.setblocking(False)
        signal.set_wakeup_fd(self._writing.fileno(), warn_on_full_buffer=False)
        for number in HEARD:
            signal.signal(number, _noted)
        return self

    def __exit__(self, *_: object) -> None:
        signal.set_wakeup_fd(-1)
        self._reading.close()
        self._writing.close()

    def wait(self, also: list[int], seconds: float | None) -> list[int]:
        """Wait for a signal, a readable descriptor of `also`, or the timeout; return the numbers of the signals
        received.
        """
        select.select([self._reading.fileno(), *also], (), (), seconds)
        try:
            return list(self._reading.recv(256))
        except BlockingIOError:
            return []

    @contextmanager
    def held(self) -> Iterator[None]:
        """Block signals, so that none is delivered to a child that is being forked."""
        before = signal.pthread_sigmask(signal.SIG_BLOCK, HEARD)
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def forget(self) -> None:
        """Restore the default signal handling in a child."""
        signal.set_wakeup_fd(-1)
        self._reading.close()
        self._writing.close()
        for number in HEARD:
            signal.signal(number, signal.SIG_DFL)
        for number in IGNORED_BY_CHILDREN:
            signal.signal(number, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, HEARD)
