"""Reports between the routers of a simulation: `policies/routing/units.py` between the channel of a store."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from math import floor, inf

from experiments.scenario.mechanisms import SharedTable
from policies.clock import SWEEP_PERIOD
from policies.routing.router import Router
from policies.routing.units import LATENCIES_EVERY, OtherUnits, UnitReport


class SimulatedExchange:
    """Each router reports to the others when it has changed, at most every `model.every` seconds, evenly spread; the
    others hear it `model.delay` later. `at(seconds, router)` asks for a call of `send` then, or of `deliver` for −1."""

    def __init__(self, routers: list[Router], model: SharedTable, at: Callable[[float, int], None]) -> None:
        self._units = [OtherUnits(router) for router in routers]
        self._numbers = {router: number for number, router in enumerate(routers)}
        self._every, self._delay = model.every, model.delay
        self._at = at
        self._due = [inf] * len(routers)
        self._swept_at = [0.0] * len(routers)
        self._under_way: deque[tuple[int, UnitReport]] = deque()

    def begin(self) -> None:
        """Ask for the first reports."""
        for number in range(len(self._units)):
            self._ask(number, self._every * number / len(self._units))

    def changed(self, router: Router, now: float) -> None:
        """Ask for a report of this router as soon as it may send one."""
        number = self._numbers[router]
        phase = self._every * number / len(self._units)
        due = phase + self._every * (floor((now - phase) / self._every) + 1)
        if due < self._due[number]:
            self._ask(number, due)

    def _ask(self, number: int, due: float) -> None:
        self._due[number] = due
        self._at(due, number)

    def send(self, number: int, now: float) -> None:
        """Send a report, unless it was sent earlier."""
        if now < self._due[number]:
            return
        units = self._units[number]
        self._under_way.append((number, units.report(now)))
        self._at(now + self._delay, -1)
        if now >= self._swept_at[number] + SWEEP_PERIOD:
            self._swept_at[number] = now
            units.sweep(now)
        self._ask(number, now + LATENCIES_EVERY)

    def deliver(self, now: float) -> None:
        """Let the others hear the oldest report that is under way."""
        sender, report = self._under_way.popleft()
        for number, units in enumerate(self._units):
            if number != sender:
                units.hear(sender, report, now, self._delay, self._every)
