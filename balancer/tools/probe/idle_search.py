"""Measure the idle timeout of a server with concurrent connections, each idle for longer than the one before.

It takes as long as the longest step, twice that if connections are lost silently. All connections are closed at the
end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from balancer.errors import UpstreamError
from balancer.tools.probe.connection import ProbeConnection
from balancer.tools.probe.idle_limit import Ending, IdleLimit, IdleRun, finer_idle_steps, idle_steps, limit_of

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
