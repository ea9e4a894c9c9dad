"""An engine in real time: steps end by the clock, and requests that wait for tokens then continue."""

from __future__ import annotations

import asyncio
import time
from math import inf

from workers.alarm import DeadlineTimer
from workers.inference.engine import Engine, EngineModel, Sequence


class RealTimeEngine:
    """Advances an engine with `time.monotonic()`. What happens late does not delay what follows."""

    def __init__(self, model: EngineModel, timer: DeadlineTimer) -> None:
        self.engine = Engine(model)
        self._timer = timer
        self._armed_for = inf
        self._now = 0.0
        self._waiting: dict[Sequence, tuple[int, asyncio.Future[None]]] = {}

    def now(self) -> float:
        """Advance the engine to now, and return the instant."""
        self._now = max(self._now, time.monotonic())
        self.engine.advance(self._now)
        return self._now

    def submit(self, sequence: Sequence) -> bool:
        """Submit a sequence; False if the queue is full. Raises ValueError if it is too long."""
        return self.engine.submit(sequence, self.now())

    def cancel(self, sequence: Sequence) -> None:
        """Remove a sequence, if it has not finished, and free what it holds."""
        self.engine.cancel(sequence, self.now())

    async def wait_for(self, sequence: Sequence, tokens: int) -> int:
        """Wait until `tokens` of the answer are there; return how many there are."""
        while (generated := self.engine.generated_by(sequence, self.now())) < tokens:
            woken = asyncio.get_running_loop().create_future()
            self._waiting[sequence] = tokens, woken
            self._arm()
            try:
                await woken
            finally:
                self._waiting.pop(sequence, None)
        return generated

    def slow_down(self, factor: float) -> None:
        """Multiply the time of steps by `factor`."""
        self.engine.slow_down(factor, self.now())

    def _arm(self) -> None:
        is_streaming = any(tokens < sequence.output for sequence, (tokens, _) in self._waiting.items())
        at = self.engine.next_step_at(self._now) if is_streaming else self.engine.next_at
        if at < self._armed_for:
            self._armed_for = at
            self._timer.schedule(at, self._ring)

    def _ring(self) -> None:
        self._armed_for = inf
        now = self.now()
        for sequence, (tokens, woken) in self._waiting.items():
            if not woken.done() and self.engine.generated_by(sequence, now) >= tokens:
                woken.set_result(None)
        if self._waiting:
            self._arm()
