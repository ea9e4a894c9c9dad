"""Turns of policies at a running balancer, under its own traffic or the load of `experiments load`.

The initial policy is restored in every case, before the report is drawn, unless another client has changed the policy
meanwhile. While a policy is tried the balancer's own counters are watched, because users may be served by it.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

from experiments.errors import BadInputError, ExperimentError
from experiments.platform.terminal import signals_ignored, signals_interrupt
from experiments.switchback.balancer import LiveBalancer
from experiments.switchback.readings import (
    LiveError,
    MetricsReading,
    MetricsWindow,
    RailBroken,
    Rails,
    Watch,
    between,
)


class PolicyTurns:
    """Puts policies in force for one run each. `p99` in seconds and `errors` as a share override the default rails.

    `poll` is the time between two readings in seconds; `now` and `sleep` are the clock.
    """

    def __init__(
        self,
        balancer: LiveBalancer,
        p99: float | None = None,
        errors: float | None = None,
        notify: Callable[[str], None] = lambda line: None,
        poll: float = 2.0,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._balancer = balancer
        self._initial: dict[str, Any] = {}  # empty before `begin`
        self._expected: dict[str, Any] = {}
        self._is_ours = False  # whether the policy in force was set here
        self._versions: dict[str, str] = {}
        self._p99, self._errors = p99, errors
        self._poll = poll
        self.now = now
        self._watch: Watch | None = None
        self.notify = notify
        self.sleep = sleep
        self.rails: Rails | None = None

    def begin(self, policies: list[dict[str, Any]]) -> dict[str, Any]:
        """Check that the policies can be applied; returns the initial one. Raises `ExperimentError`.

        What does not answer like a balancer gets no command.
        """
        self._initial = self._expected = asyncio.run(self._checked(policies))
        return self._initial

    async def _checked(self, policies: list[dict[str, Any]]) -> dict[str, Any]:
        first = await self._counters()
        for policy in policies:
            await self._balancer.check(policy)
        return first.policy

    @contextmanager
    def restoring(self) -> Iterator[None]:
        """Restore the initial policy at the end, however it comes. Raises `LiveError`."""
        with signals_interrupt():
            try:
                yield
            finally:
                self._restore()

    async def observe_initial(self, load: Callable[[], Awaitable[object]]) -> MetricsWindow:
        """Await the load of one run under the initial policy, and set the rails.

        Raises `BadInputError` where that breaks one already: every policy would be rolled back to it.
        """
        first = await self._counters()
        await load()
        window = between(first, await self._counters())
        self.rails = Rails.after(window, self._p99, self._errors)
        if (problem := self.rails.broken_by(window)) is not None:
            raise BadInputError(
                f"'{self._initial['name']}', the initial policy, breaks a guard rail already: {problem}; "
                "see --max-p99 and --max-errors"
            )
        return window

    async def apply(self, policy: dict[str, Any]) -> None:
        """Put a policy in force, and watch it."""
        self._is_ours = True  # it may be in force although the command fails
        await self._balancer.apply(policy)
        self._expected = policy
        self._watch = None if self.rails is None else Watch(self.rails)

    async def observe(self, until: float) -> MetricsWindow:
        """Read the counters until that instant; returns what they grew by. Raises `RailBroken`."""
        first = last = await self._read()
        while (left := until - self.now()) > 0:
            await self.sleep(min(self._poll, left))
            last = await self._read()
        return between(first, last)

    async def guarded(self, load: Callable[[], Awaitable[object]]) -> MetricsWindow:
        """Await the load while the rails are watched; returns what the counters grew by. Raises `RailBroken`."""
        first = await self._read()
        sending, watching = asyncio.ensure_future(load()), asyncio.ensure_future(self.observe(math.inf))
        try:
            await asyncio.wait((sending, watching), return_when=asyncio.FIRST_COMPLETED)
            if not sending.done():
                await watching  # raises what ended it
            await sending
        finally:
            sending.cancel()
            watching.cancel()
            await asyncio.gather(sending, watching, return_exceptions=True)
        return between(first, await self._counters())

    async def _read(self) -> MetricsReading:
        """Read the counters, and check the rails. Raises `RailBroken`."""
        reading = await self._counters()
        problem = self._watch.broken_by(reading) if self._watch is not None else None
        if problem is not None:
            raise RailBroken(
                f"{reading.policy['name']}: {problem}; '{self._initial['name']}' is in force again"
            )
        return reading

    async def _counters(self) -> MetricsReading:
        """Read the counters. Raises `LiveError` for a policy of another client, `BadInputError` for a changed file."""
        status = await self._balancer.latency()
        try:
            reading = MetricsReading.of(status, self.now())
        except (KeyError, TypeError, AttributeError) as error:
            raise BadInputError(
                f"URL: it is no balancer of this version: its answer has no latencies as these: {error!r}"
            ) from None
        if self._expected and reading.policy != self._expected:
            self._is_ours = False
            raise LiveError(
                f"a reload or another client has applied '{reading.policy['name']}'; it was left as it is, and "
                "nothing measured after it counts"
            )
        for path, version in reading.versions:
            before = self._versions.setdefault(path, version)
            if version != before:
                raise BadInputError(
                    f"{path} was changed during the evaluation: version {before} before, {version} now; "
                    "put it back, or start again"
                )
        return reading

    def _restore(self) -> None:
        """Put the initial policy in force, if another one was set here; stop signals are ignored meanwhile."""
        if not self._is_ours:
            return
        with signals_ignored():
            try:
                asyncio.run(self._balancer.apply(self._initial))
            except ExperimentError as error:
                raise LiveError(
                    f"'{self._initial['name']}' could not be put in force again, '{self._expected['name']}' still "
                    f"is: {error}"
                ) from None
            self.notify(f"'{self._initial['name']}' is in force again.")


def status_of(policy: dict[str, Any], window: MetricsWindow) -> dict[str, Any]:
    """What the balancer counted of a policy, with the keys of its status."""
    counts = {
        "routed": window.requests,
        "fallback_picks": window.fallback_picks,
        "last_fault": window.last_fault,
    }
    return {"policy": {"name": policy["name"], **counts}, "shares": window.shares}
