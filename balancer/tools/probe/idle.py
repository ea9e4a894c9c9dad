"""Idle timeout of a server: trials on concurrent connections, each idle for longer than the one before, and what they
show. Durations are in seconds.

Each trial is one connection that was idle for the time of its step. A server that closes idle connections does so
visibly, at its own time; a middlebox may drop a connection silently, which only the next request reveals. The trials
take as long as the longest step, twice that if connections are lost silently. All connections are closed at the end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import Enum

from balancer.errors import UpstreamError
from balancer.tools.probe.connection import ProbeConnection

FIRST_IDLE_S = 0.5
"""Idle time of the first step in seconds; each further one doubles it."""

FINER_STEPS = 3
"""Steps of the second round, between the longest kept and the shortest lost idle time."""

RANDOM = 1.25
"""Ratio of longest to shortest idle time at close from which the timeout counts as random."""


class Ending(Enum):
    """End of a trial: `ANSWERED` if the connection was reused, `CLOSED` by the server before that, or `LOST`: it seemed
    open, and the request failed.
    """

    ANSWERED = "answered"
    CLOSED = "closed"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class IdleRun:
    """Result of one connection, with its idle time."""

    idle: float
    ending: Ending


@dataclass(frozen=True, slots=True)
class IdleLimit:
    """Estimated idle limit of a server.

    `kept`: the longest idle time below `closed` after which a connection was reused; `closed`: the shortest after which
    one was gone, None if none was within `waited`; `closed_longest`: the longest one. `is_silent`: connections were not
    closed but lost.
    """

    waited: float
    kept: float
    closed: float | None = None
    closed_longest: float | None = None
    is_silent: bool = False

    @property
    def is_random(self) -> bool:
        """Whether the server closes at varying idle times."""
        if self.closed is None or self.closed_longest is None or self.is_silent:
            return False
        return self.closed_longest > self.closed * RANDOM + 1.0

    @property
    def safe(self) -> float:
        """Idle time up to which a connection is still open."""
        if self.closed is None:
            return self.waited
        return self.kept if self.is_silent else self.closed


def idle_steps(limit: float) -> list[float]:
    """Return the idle times of the first round: 0.5, 1, 2, 4 … and `limit`."""
    found, next_one = [], FIRST_IDLE_S
    while next_one < limit:
        found.append(next_one)
        next_one *= 2
    return [*found, limit]


def finer_idle_steps(limit: IdleLimit) -> list[float]:
    """Return the idle times of the second round, which narrows the limit where connections are lost silently."""
    if not limit.is_silent or limit.closed is None:
        return []
    step = (limit.closed - limit.kept) / (FINER_STEPS + 1)
    return [limit.kept + step * number for number in range(1, FINER_STEPS + 1)]


def limit_of(trials: Sequence[IdleRun], waited: float) -> IdleLimit:
    """Return the estimate from the trials; `waited` is the longest idle time tried."""
    closed = [trial.idle for trial in trials if trial.ending is Ending.CLOSED]
    gone = closed or [trial.idle for trial in trials if trial.ending is Ending.LOST]
    answered = [trial.idle for trial in trials if trial.ending is Ending.ANSWERED]
    if not gone:
        return IdleLimit(waited, max(answered, default=0.0))
    kept = max((idle for idle in answered if idle < min(gone)), default=0.0)
    return IdleLimit(waited, kept, min(gone), max(gone), is_silent=not closed)


Open = Callable[[], Awaitable[ProbeConnection]]
"""Coroutine function that opens a connection. Raises `ConnectFailed`."""


async def idle_limit(open_one: Open, method: str, limit: float, timeout: float) -> IdleLimit:
    """Measure idle times up to `limit` seconds; `timeout` in seconds is for each response."""
    trials = await _round(open_one, method, idle_steps(limit), timeout)
    found = limit_of(trials, limit)
    finer = finer_idle_steps(found)
    return limit_of(trials + await _round(open_one, method, finer, timeout), limit) if finer else found


async def _round(open_one: Open, method: str, idles: Sequence[float], timeout: float) -> list[IdleRun]:
    """Run one trial per idle time concurrently; connections that fail before being idle are left out."""
    trials = await asyncio.gather(*(_trial(open_one, method, idle, timeout) for idle in idles))
    return [trial for trial in trials if trial is not None]


async def _trial(open_one: Open, method: str, idle: float, timeout: float) -> IdleRun | None:
    try:
        conversation = await open_one()
    except UpstreamError:
        return None
    try:
        answer = await conversation.ask(method, timeout)
        if not answer.may_follow:
            return None
        closed_after = await conversation.idle_for(idle)
        if closed_after is not None:
            return IdleRun(closed_after, Ending.CLOSED)
        return IdleRun(idle, await _used_again(conversation, method, timeout))
    except UpstreamError:
        return None
    finally:
        conversation.close()


async def _used_again(conversation: ProbeConnection, method: str, timeout: float) -> Ending:
    try:
        await conversation.ask(method, timeout)
    except UpstreamError:
        return Ending.LOST
    return Ending.ANSWERED
