"""The addresses of names, looked up in the background: no request waits for a name that was known.

Rule of this file: the sweep starts look-ups, one at a time for each name; a request starts one only for a name that
nobody has ever resolved, or too long ago, and all that ask meanwhile wait for the same. What serves, and for how long,
is `known_name.py`'s to say.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from balancer.upstream.lookup import Look, SystemLook, is_literal
from balancer.upstream.resolved_name import KnownName, NameRules, Worth
from balancer.upstream.resolver import LookupFailed

AT_ONCE = 16
"""Look-ups under way; a thousand names at the start take turns."""

Heard = Callable[[str, tuple[str, ...], float], None]
"""Told of each answer: name, addresses, seconds."""


@dataclass(frozen=True, slots=True)
class NamesPlan:
    """How names are looked up. `resolver` is for people; `is_ahead`: the sweep looks them up, too."""

    rules: NameRules = field(default_factory=NameRules)
    look: Look = field(default_factory=lambda: SystemLook(ttl=30.0, timeout=5.0))
    resolver: str = "system"
    is_ahead: bool = True


@dataclass(slots=True)
class NameCounts:
    """Totals since the start. Askers: `fresh` and `stale` were answered at once, `waited` had to wait, `refused` were
    told at once that there is no answer. Look-ups: `answered` and `failed`."""

    fresh: int = 0
    stale: int = 0
    waited: int = 0
    refused: int = 0
    answered: int = 0
    failed: int = 0


class Names:
    """All names that the endpoints have. `now` is the clock."""

    def __init__(self, plan: NamesPlan, now: Callable[[], float], on_answer: Heard | None = None) -> None:
        self.plan = plan
        self.counts = NameCounts()
        self.known: dict[str, KnownName] = {}
        self._now = now
        self._on_answer = on_answer
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._places = asyncio.Semaphore(AT_ONCE)

    @property
    def is_looking(self) -> bool:
        """Whether an answer is still to come."""
        return bool(self._tasks)

    def follow(self, hosts: Iterable[str]) -> None:
        """These are the endpoints' hosts from now on; forget the others."""
        wanted = dict.fromkeys(host for host in hosts if not is_literal(host))
        self.known = {host: self.known.get(host) or KnownName() for host in wanted}
        for host in self._tasks.keys() - wanted.keys():
            self._tasks[host].cancel()

    def add(self, host: str) -> None:
        """One more endpoint has this host."""
        if not is_literal(host):
            self.known.setdefault(host, KnownName())

    def forget(self, host: str) -> None:
        """No endpoint has this host any more."""
        self.known.pop(host, None)
        if host in self._tasks:
            self._tasks[host].cancel()

    def sweep(self, now: float) -> None:
        """Look up whatever is due."""
        if not self.plan.is_ahead:
            return
        for host, known in self.known.items():
            if known.is_due(now):
                self._start(host, known)

    async def addresses(self, host: str) -> tuple[str, ...]:
        """Where `host` is, at once if that is known. Raises `LookupFailed`."""
        if is_literal(host):
            return (host,)
        known = self.known.get(host) or self.known.setdefault(host, KnownName())
        worth = known.worth(self.plan.rules, self._now())
        if worth is Worth.FRESH:
            self.counts.fresh += 1
        elif worth is Worth.STALE:
            self.counts.stale += 1
            if not self.plan.is_ahead and known.is_due(self._now()):
                self._start(host, known)
        elif worth is Worth.FAILED:
            self.counts.refused += 1
            raise LookupFailed(known.fault or "")
        else:
            self.counts.waited += 1
            await self._answer(host, known)
        return known.hosts

    async def settled(self) -> None:
        """Wait for all look-ups that are under way."""
        if self._tasks:
            await asyncio.wait(list(self._tasks.values()))

    async def close(self) -> None:
        """Look up no more."""
        for task in self._tasks.values():
            task.cancel()
        await self.settled()

    async def _answer(self, host: str, known: KnownName) -> None:
        """Raises `LookupFailed`. Who stops waiting does not stop the look-up: others may wait, too. An answer serves
        who has waited for it, however short a time it holds."""
        look = self._start(host, known)
        await asyncio.wait([look])
        if look.cancelled() or look.exception() is not None or known.fault is not None:
            raise LookupFailed(known.fault or f"{host}: the look-up was given up")

    def _start(self, host: str, known: KnownName) -> asyncio.Task[None]:
        task = self._tasks.get(host)
        if task is None:
            task = self._tasks[host] = asyncio.get_running_loop().create_task(self._look(host, known))
            task.add_done_callback(lambda done: self._ended(host, done))
        return task

    def _ended(self, host: str, task: asyncio.Task[None]) -> None:
        if self._tasks.get(host) is task:
            del self._tasks[host]

    async def _look(self, host: str, known: KnownName) -> None:
        plan = self.plan
        try:
            async with self._places:
                found = await plan.look(host)
        except LookupFailed as error:
            self.counts.failed += 1
            known.failed(str(error), plan.rules, self._now())
            return
        self.counts.answered += 1
        known.answered(found.hosts, found.ttl, plan.rules, self._now())
        if self._on_answer is not None:
            self._on_answer(host, found.hosts, self._now())
