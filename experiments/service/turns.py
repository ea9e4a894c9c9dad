"""Turns of policies at a running balancer that gets the load of `experiments load`.

The initial policy is restored in every case, before the report is drawn. While a policy is tried, the balancer's own
counters are watched, because users may be served by it too: the guard rails of `experiments live`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

from experiments.generator.ledger import Ledger
from experiments.platform.terminal import signals_ignored, signals_interrupt
from experiments.service.generator import ServiceGenerator
from experiments.switchback.balancer import LiveBalancer
from experiments.switchback.guard_rails import Rails, Watch
from experiments.switchback.policy_in_force import PolicyInForce
from experiments.switchback.readings import Reading, between
from experiments.switchback.switchback import RailBroken

POLL = 2.0
"""Seconds between two readings: reading takes processor time of the generator."""


class PolicyTurns:
    """Puts policies in force for one run each. `p99` in seconds and `errors` as a share override the default rails."""

    def __init__(
        self,
        balancer: LiveBalancer,
        p99: float | None = None,
        errors: float | None = None,
        notify: Callable[[str], None] = lambda line: None,
    ) -> None:
        self._in_force = PolicyInForce(balancer, time.monotonic)
        self._p99, self._errors = p99, errors
        self._notify = notify
        self.rails: Rails | None = None

    def begin(self, policies: list[dict[str, Any]]) -> dict[str, Any]:
        """Check that the policies can be applied; returns the initial one. Raises `ExperimentError`."""
        return asyncio.run(self._in_force.begin(policies)).policy

    @contextmanager
    def restoring(self) -> Iterator[None]:
        """Restore the initial policy at the end, however it comes. Raises `RestoreFailed`."""
        with signals_interrupt():
            try:
                yield
            finally:
                self._restore()

    async def observe_initial(self, generator: ServiceGenerator) -> None:
        """Send the load of one run under the initial policy, and set the rails."""
        first = await self._in_force.read()
        await generator.run(1)
        self.rails = Rails.after(between(first, await self._in_force.read()), self._p99, self._errors)

    async def apply(self, policy: dict[str, Any]) -> None:
        """Put a policy in force."""
        await self._in_force.apply(policy)

    async def guarded(self, load: Callable[[], Coroutine[Any, Any, Ledger]]) -> dict[str, Any]:
        """Run the load and watch the rails; returns what the balancer counted. Raises `RailBroken`."""
        first = await self._in_force.read()
        sending, watching = asyncio.ensure_future(load()), asyncio.ensure_future(self._watch(first))
        try:
            await asyncio.wait((sending, watching), return_when=asyncio.FIRST_COMPLETED)
            if not sending.done():
                await watching  # raises what ended it
            await sending
        finally:
            sending.cancel()
            watching.cancel()
            await asyncio.gather(sending, watching, return_exceptions=True)
        last = await self._in_force.read()
        window = between(first, last)
        policy = {"name": last.policy["name"], "routed": window.requests}
        return {
            "policy": {**policy, "fallback_picks": window.fallback_picks, "last_fault": "see the status"},
            "shares": window.shares,
        }

    async def _watch(self, first: Reading) -> None:
        assert self.rails is not None
        watch = Watch(self.rails)
        watch.broken_by(first)
        while True:
            await asyncio.sleep(POLL)
            reading = await self._in_force.read()
            problem = watch.broken_by(reading)
            if problem is not None:
                raise RailBroken(
                    f"{reading.policy['name']}: {problem}; '{self._in_force.initial['name']}' is in force again"
                )

    def _restore(self) -> None:
        """Restore the initial policy; stop signals are ignored meanwhile."""
        with signals_ignored():
            if asyncio.run(self._in_force.restore()):
                self._notify(f"'{self._in_force.initial['name']}' is in force again.")
