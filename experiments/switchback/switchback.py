"""Randomised switchback experiment: policies alternate on the same traffic, in random order within each block.

The initial policy is restored in every case, unless another client has changed the policy meanwhile. The wash-out of a
policy does not count: until then responses arrive for requests that its predecessor placed.

    before     the initial policy for one period: reference of the rails, and check that there is traffic
    block 1    each policy for one period, in random order
    block 2    …
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from experiments.errors import BadInputError, ExperimentError
from experiments.switchback.balancer import LiveBalancer
from experiments.switchback.guard_rails import JUDGED, Rails, Watch
from experiments.switchback.policy_in_force import PolicyInForce
from experiments.switchback.readings import Reading, Window, between


class RailBroken(ExperimentError):
    """A guard rail was broken and the initial policy was restored."""

    exit_code = 1


@dataclass(frozen=True, slots=True)
class Plan:
    """Plan of the evaluation. `policies` by label, each with name and options; durations in seconds.

    A failed request counts as slow as `deadline`, and an answer is good within it.
    """

    policies: dict[str, dict[str, Any]]
    blocks: int
    period: float
    washout: float
    seed: int = 1
    poll: float = 1.0
    p99: float | None = None
    errors: float | None = None
    deadline: float = 30.0

    def order(self, block: int) -> list[str]:
        """Random order of labels in a block."""
        rng = np.random.default_rng([self.seed, block])
        labels = list(self.policies)
        return [labels[index] for index in rng.permutation(len(labels))]

    @property
    def seconds(self) -> float:
        """Total duration in seconds."""
        return self.period * (1 + self.blocks * len(self.policies))


@dataclass(slots=True)
class Findings:
    """Results so far. `windows` by label and block; `initial` is the policy at the start."""

    initial: dict[str, Any]
    before: Window | None = None
    rails: Rails | None = None
    windows: dict[str, dict[int, Window]] = field(default_factory=dict)
    is_restored: bool = False


class Observer(Protocol):
    """Receiver of progress events."""

    def period_began(self, block: int | None, label: str) -> None: ...
    def window_grew(self, window: Window) -> None: ...
    def period_ended(self, block: int | None, label: str, window: Window) -> None: ...


class Switchback:
    """One evaluation. `now` and `sleep` are the clock."""

    def __init__(
        self,
        balancer: LiveBalancer,
        plan: Plan,
        observer: Observer,
        now: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]],
    ) -> None:
        self._in_force = PolicyInForce(balancer, now)
        self._plan = plan
        self._observer = observer
        self._now = now
        self._sleep = sleep
        self._watch: Watch | None = None
        self.findings = Findings({})

    async def run(self) -> Findings:
        """Run the whole evaluation. Raises `ExperimentError`; `findings` keeps what was measured by then."""
        first = await self._in_force.begin(self._plan.policies.values())
        self.findings.initial = first.policy
        try:
            await self._measure_initial(first)
            for block in range(self._plan.blocks):
                for label in self._plan.order(block):
                    window = await self._measure_period(block, label)
                    self.findings.windows.setdefault(label, {})[block] = window
        finally:
            await asyncio.shield(asyncio.ensure_future(self._restore()))
        return self.findings

    async def _measure_initial(self, first: Reading) -> None:
        """Measure the initial policy for one period and set the rails."""
        name, plan = first.policy["name"], self._plan
        self._observer.period_began(None, name)
        window = await self._watch_until(first, self._now() + plan.period)
        self.findings.before = window
        if window.answered < JUDGED:
            raise BadInputError(
                f"URL: {window.answered} requests were answered in {plan.period:g} s, too few to compare; "
                f"--block must be long enough for {JUDGED}"
            )
        self.findings.rails = Rails.after(window, plan.p99, plan.errors)
        self._observer.period_ended(None, name, window)

    async def _measure_period(self, block: int, label: str) -> Window:
        """One period of one policy; sets it even if it is in force already, so that every period starts alike."""
        plan, began = self._plan, self._now()
        self._observer.period_began(block, label)
        await self._in_force.apply(plan.policies[label])
        self._watch = Watch(self.findings.rails) if self.findings.rails is not None else None
        reading = await self._read()
        await self._watch_until(reading, began + plan.washout)
        window = await self._watch_until(await self._read(), began + plan.period)
        self._observer.period_ended(block, label, window)
        return window

    async def _watch_until(self, first: Reading, end: float) -> Window:
        """Poll until `end`; returns the window since `first`."""
        last = first
        while (left := end - self._now()) > 0:
            await self._sleep(min(self._plan.poll, left))
            last = await self._read()
            window = between(first, last)
            self._observer.window_grew(window)
        return between(first, last)

    async def _read(self) -> Reading:
        reading = await self._in_force.read()
        problem = self._watch.broken_by(reading) if self._watch is not None else None
        if problem is not None:
            raise RailBroken(
                f"{reading.policy['name']}: {problem}; '{self.findings.initial['name']}' is in force again"
            )
        return reading

    async def _restore(self) -> None:
        """Restore the initial policy."""
        self.findings.is_restored = await self._in_force.restore()
