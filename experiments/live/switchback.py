"""A randomised switchback: one policy after the other on the same traffic, in random order within each block.

Rule of this file: whatever happens, the policy that was in force at the beginning is in force at the end, unless
somebody else has put another in force meanwhile: that is not ours to undo. Nothing counts before a policy has been in
force for the wash-out: until then answers come back that its predecessor has placed.

    before     the policy in force, for one period: what the rails are beside, and whether there is traffic at all
    block 1    each policy for one period, in random order
    block 2    …
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from experiments.errors import BadInputError, ExperimentError
from experiments.live.rails import JUDGED, Rails, Watch
from experiments.live.readings import Reading, Window, between
from experiments.live.unit import LiveUnit


class RailBroken(ExperimentError):
    """It got worse than it may, and the old policy was put back."""

    exit_code = 1


class SomebodyElse(ExperimentError):
    """The policy in force is not the one that was put in force."""

    exit_code = 3


class NotRolledBack(ExperimentError):
    """The old policy could not be put back: somebody must."""

    exit_code = 3


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do. `policies` by label, each a name and options; durations in seconds."""

    policies: dict[str, dict[str, Any]]
    blocks: int
    period: float
    washout: float
    seed: int = 1
    poll: float = 1.0
    p99: float | None = None
    errors: float | None = None

    def order(self, block: int) -> list[str]:
        """Labels in the order of that block."""
        rng = np.random.default_rng([self.seed, block])
        labels = list(self.policies)
        return [labels[index] for index in rng.permutation(len(labels))]

    @property
    def seconds(self) -> float:
        """Of the whole."""
        return self.period * (1 + self.blocks * len(self.policies))


@dataclass(slots=True)
class Findings:
    """What came of it. `windows` by label and block; `initial` is the policy of the beginning."""

    initial: dict[str, Any]
    before: Window | None = None
    rails: Rails | None = None
    windows: dict[str, dict[int, Window]] = field(default_factory=dict)
    is_restored: bool = False


class Observer(Protocol):
    """Who is told how it goes."""

    def began(self, block: int | None, label: str) -> None: ...
    def looked(self, seconds: float, window: Window) -> None: ...
    def ended(self, block: int | None, label: str, window: Window) -> None: ...


class Switchback:
    """One evaluation. `now` and `sleep` tell the time."""

    def __init__(
        self,
        unit: LiveUnit,
        plan: Plan,
        observer: Observer,
        now: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]],
    ) -> None:
        self._unit = unit
        self._plan = plan
        self._observer = observer
        self._now = now
        self._sleep = sleep
        self._expected: dict[str, Any] = {}
        self._is_ours = True  # what is in force
        self._watch: Watch | None = None
        self.findings = Findings({})

    async def run(self) -> Findings:
        """All of it. Raises ExperimentError; `findings` has what was measured by then."""
        for policy in self._plan.policies.values():
            await self._unit.check(policy)
        first = await self._read()
        self.findings.initial = self._expected = first.policy
        try:
            await self._look_before(first)
            for block in range(self._plan.blocks):
                for label in self._plan.order(block):
                    window = await self._try(block, label)
                    self.findings.windows.setdefault(label, {})[block] = window
        finally:
            await asyncio.shield(asyncio.ensure_future(self._restore()))
        return self.findings

    async def _look_before(self, first: Reading) -> None:
        """How it is without us."""
        name, plan = first.policy["name"], self._plan
        self._observer.began(None, name)
        window = await self._watch_until(first, self._now() + plan.period)
        self.findings.before = window
        if window.answered < JUDGED:
            raise BadInputError(
                f"URL: {window.answered} requests were answered in {plan.period:g} s, which says nothing; "
                f"--block must be long enough for {JUDGED}"
            )
        self.findings.rails = Rails.beside(window, plan.p99, plan.errors)
        self._observer.ended(None, name, window)

    async def _try(self, block: int, label: str) -> Window:
        """One period of one policy; also where it was in force already, so that every period begins alike."""
        plan, began = self._plan, self._now()
        self._observer.began(block, label)
        await self._put(plan.policies[label])
        self._watch = Watch(self.findings.rails) if self.findings.rails is not None else None
        reading = await self._read()
        await self._watch_until(reading, began + plan.washout)
        window = await self._watch_until(await self._read(), began + plan.period)
        self._observer.ended(block, label, window)
        return window

    async def _watch_until(self, first: Reading, end: float) -> Window:
        """Look now and then until it is time; returns what happened since `first`."""
        last = first
        while (left := end - self._now()) > 0:
            await self._sleep(min(self._plan.poll, left))
            last = await self._read()
            window = between(first, last)
            self._observer.looked(self._now(), window)
        return between(first, last)

    async def _read(self) -> Reading:
        told = await self._unit.look()
        try:
            reading = Reading.of(told, self._now())
        except (KeyError, TypeError, AttributeError) as error:
            raise BadInputError(f"URL: what it answers is no account of latencies: {error!r}") from None
        if self._expected and reading.policy != self._expected:
            self._is_ours = False
            raise SomebodyElse(
                f"somebody else has put '{reading.policy['name']}' in force; it was left as it is, and nothing "
                "measured after it counts"
            )
        problem = self._watch.look(reading) if self._watch is not None else None
        if problem is not None:
            raise RailBroken(
                f"{reading.policy['name']}: {problem}; '{self.findings.initial['name']}' is in force again"
            )
        return reading

    async def _put(self, policy: dict[str, Any]) -> None:
        await self._unit.use(policy)
        self._expected = policy

    async def _restore(self) -> None:
        """The policy of the beginning."""
        if not self._is_ours:
            return
        initial = self.findings.initial
        try:
            await self._unit.use(initial)
        except ExperimentError as error:
            raise NotRolledBack(
                f"'{initial['name']}' could not be put in force again, '{self._expected['name']}' still is: {error}"
            ) from None
        self.findings.is_restored = True


def order_of(plan: Plan) -> Sequence[tuple[int, str]]:
    """Every period: its block and its policy."""
    return [(block, label) for block in range(plan.blocks) for label in plan.order(block)]
