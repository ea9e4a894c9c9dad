"""Exchange of reports with other units through the channel of a store: one background task.

Every process of every unit publishes its report on one channel when it has changed, and hears those of all. Nothing is
stored: a unit that vanishes is silent, and what it has reported expires. A process hears its own reports too, which
shows that the store works, and how long a report takes. Requests never wait for anything here.
"""

from __future__ import annotations

import asyncio
import os
from abc import abstractmethod
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from dataclasses import asdict, dataclass
from random import Random, SystemRandom
from typing import Any, Protocol

from balancer.config.schema.sections import SharedConfig
from balancer.errors import StoreLost
from balancer.sharing.message import BadMessage, Message, decode, encode
from balancer.sharing.shared_counters import key_of
from policies.facts import Region
from policies.routing.router import Router
from policies.routing.units import EXPIRY, OtherUnits
from policies.stats.load import WindowedMinimum

SILENCE = EXPIRY
"""Age in seconds of the last own report that came back in time at which the store counts as lost. With a sweep every
0.25 s, that is noticed within 1 s. One report that is missed is no loss."""

MAX_REPORT_DELAY_S = EXPIRY / 2.0
"""Seconds that a report may take on its way. The next one is published when the store has answered, so that those of a
slower store would expire before it. They are not used, and the store counts as lost."""

FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0
"""Seconds before another attempt to connect: they double up to this, and up to half of each is left out at random."""

STEADY_S = 5.0
"""Seconds for which the store must answer before the pauses are short again: one that fails again and again is tried,
and logged, rarely."""

FIXED_COST, COST_PER_ENDPOINT, COST_SHARE = 45e-6, 0.6e-6, 0.02
"""Seconds of CPU time that a report takes to hear or to publish, and the share of a processor that all together may
take. Measured under load, in the compiled build: 46 to 48 µs with four endpoints and four units with 41 reports
of each per second, of which the data takes 8; with 80 endpoints the data takes 60. With four processes of other units
and four endpoints a process may publish 70 reports per second."""

SAVED_REPORTS = 8
"""Reports that a process may publish at once after some time without, so that short bursts are reported at once."""

LONGEST_INTERVAL = 0.25
"""Longest mean seconds between two reports, so that one that comes late does not look like a unit that vanished."""

MOST_PER_SECOND = 2000
"""Messages a second that are heard: twice what the most processes publish, which a flood exceeds."""

DELAY_WINDOW = 30.0
"""Seconds of one bucket of a sender's least delay. Clocks drift apart by less than 3 ms in it."""

NO_ANSWER = f"no answer within {MAX_REPORT_DELAY_S:g} s for {SILENCE:g} s"


class ReportChannel(Protocol):
    """An open channel of a store. Its methods raise `StoreLost`."""

    async def publish(self, data: bytes) -> None:
        """Send to all listeners."""
        ...

    async def ended(self) -> None:
        """Wait until nothing can be heard any more."""
        ...


Opened = Callable[[Callable[[object], None]], AbstractAsyncContextManager[ReportChannel]]
"""Opens a channel; the argument gets what all senders publish, and may raise `StoreLost`, which closes it."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Keys of this process: `unit` is common to sibling processes, which share by themselves; units in the same
    `place`, the home region, pool latencies."""

    unit: int
    sender: int
    place: int


@dataclass(slots=True)
class ExchangeCounts:
    """Totals since the start: reports sent, heard of other units, ignored; losses of the store."""

    sent: int = 0
    heard: int = 0
    ignored: int = 0
    lost: int = 0


class StoreTask:
    """Task that keeps the channel of a store open: `_converse` publishes on it, `_hear` gets what others publish, and
    `_lose` is called when the store is lost. Abstract."""

    def __init__(self, opened: Opened, now: Callable[[], float]) -> None:
        self._opened = opened
        self._now = now
        self._rng = Random()  # of its own: a seeded policy's sequence must not depend on the store
        self._task: asyncio.Task[None] | None = None
        self._answered_at = 0.0
        self._second_at, self._in_second = 0.0, 0

    def start(self) -> None:
        """Start the task, which connects."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Stop the task."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task], timeout=SILENCE)
            self._task = None  # whose cancellation refers to this

    async def _run(self) -> None:
        pause = FIRST_PAUSE
        while True:
            began_at = self._now()
            try:
                async with self._opened(self._take) as channel:
                    await self._converse(channel)
            except StoreLost as error:
                self._lose(str(error))
            is_steady = self._answered_at > began_at + STEADY_S
            pause = FIRST_PAUSE if is_steady else min(2 * pause, LONGEST_PAUSE)
            await asyncio.sleep(pause * self._rng.uniform(0.5, 1.0))

    def _take(self, data: object) -> None:
        """Take one message, unless there are too many. Raises `StoreLost`."""
        now = self._now()
        if now - self._second_at > 1.0:
            self._second_at, self._in_second = now, 0
        self._in_second += 1
        if self._in_second > MOST_PER_SECOND:
            raise StoreLost(f"more than {MOST_PER_SECOND} messages a second")
        self.hear(data, now)

    @abstractmethod
    async def _converse(self, channel: ReportChannel) -> None:
        """Use an open channel until it fails. Raises `StoreLost`."""

    @abstractmethod
    def hear(self, data: object, now: float) -> None:
        """Take one message of the channel, which may be anything."""

    @abstractmethod
    def _lose(self, reason: str) -> None:
        """Note that the store is lost."""


async def until_one_ends(*works: Coroutine[Any, Any, Any]) -> None:
    """Run until one of them ends, and cancel the others. Raises the first error."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
    for error in ended:
        if isinstance(error, BaseException) and not isinstance(error, asyncio.CancelledError):
            raise error


class ReportExchange(StoreTask):
    """Publishes the reports of `units` on the channel that `opened` opens, and applies those of others.

    `every` is the least seconds between two reports, `store` the store's name in messages. `is_connected`: the
    last own report that was back in time is younger than `SILENCE`; `delay` is the seconds that it took.
    """

    def __init__(
        self,
        units: OtherUnits,
        opened: Opened,
        identity: Identity,
        now: Callable[[], float],
        *,
        every: float,
        store: str,
        say: Callable[[str], None],
    ) -> None:
        super().__init__(opened, now)
        self._units = units
        self._identity = identity
        self._every = every
        self._store = store
        self._say = say
        self._least: dict[int, tuple[WindowedMinimum, WindowedMinimum]] = {}
        self._began_at = 0.0
        self._is_silent = asyncio.Event()
        self._lost_at: float | None = None
        self._has_said_ignored = False
        self.is_connected = False
        self.problem: str | None = None
        self.delay = 0.0
        self.counts = ExchangeCounts()

    # --- life

    async def stop(self) -> None:
        """Stop the task and forget what others have reported."""
        await super().stop()
        self.is_connected = False
        self._units.forget()

    def sweep(self, now: float) -> None:
        """Expire what is too old, and close the channel of a store that is silent; call it every quarter second."""
        self._units.sweep(now)
        if now - max(self._answered_at, self._began_at) > SILENCE:
            self._is_silent.set()
            if self.is_connected:
                self._lose(NO_ANSWER)

    async def _converse(self, channel: ReportChannel) -> None:
        """Publish and listen until one of them fails or the store is silent. Raises `StoreLost`."""
        self._began_at = self._now()
        self._is_silent.clear()
        await until_one_ends(self._publish(channel), channel.ended(), self._is_silent.wait())
        raise StoreLost(NO_ANSWER)

    async def _publish(self, channel: ReportChannel) -> None:
        """Publish the report when it has changed, within its share of a processor."""
        identity, published, paid_until = self._identity, None, self._now()
        while True:
            now, interval = self._now(), self.interval
            # Until an own report is back, further ones may arrive late, and others cannot know that.
            report, pause = self._units.report(now, is_empty=not self.is_connected), self._every
            if report.latencies is not None or report.prompts is not None or report.in_flight != published:
                published = report.in_flight
                paid_until = max(paid_until, now - SAVED_REPORTS * interval) + interval
                pause = max(pause, paid_until - now)
                await channel.publish(
                    encode(Message(identity.unit, identity.sender, identity.place, pause, now, report))
                )
                self.counts.sent += 1
            await asyncio.sleep(max(0.0, now + pause - self._now()))

    @property
    def others(self) -> int:
        """Number of processes of other units that report."""
        return len(self._units)

    @property
    def interval(self) -> float:
        """Least mean seconds between two own reports. In that time this process hears one of every other process, and
        its own."""
        cost = FIXED_COST + COST_PER_ENDPOINT * self._units.endpoints
        return max(self._every, min(LONGEST_INTERVAL, (len(self._units) + 2) * cost / COST_SHARE))

    # --- reports

    def hear(self, data: object, now: float) -> None:
        """Apply one message of the channel, which may be anything."""
        try:
            message = decode(data, now)
        except BadMessage as error:
            self._ignore(str(error))
            return
        identity = self._identity
        if message.unit == identity.unit:
            if message.sender == identity.sender:
                self._echo(now, now - message.sent_at)
            return
        if not self.is_connected or (age := self._age(message, now)) > MAX_REPORT_DELAY_S:
            self.counts.ignored += 1  # of a store that is slow, or has not yet shown that it is not
            return
        report = message.report
        if message.place != identity.place:  # measured over another path
            report = report._replace(latencies=None)
        if self._units.hear(message.sender, report, now, age, message.interval):
            self.counts.heard += 1
        else:
            self._ignore("too many processes report")

    def _age(self, message: Message, now: float) -> float:
        """Return how old the message is: what its way took longer than the fastest one of this sender, and the least
        that own reports took in the same window."""
        found = self._least.get(message.sender)
        if found is None:
            if len(self._least) > 2 * len(self._units) + 16:  # also hostile senders are bounded
                self._least.clear()
            found = self._least[message.sender] = WindowedMinimum(DELAY_WINDOW), WindowedMinimum(DELAY_WINDOW)
        least, own = found
        passed = now - message.sent_at
        least.add(passed, now)
        own.add(self.delay, now)
        return passed - least.least + own.least

    def _echo(self, now: float, delay: float) -> None:
        if not 0.0 <= delay <= MAX_REPORT_DELAY_S:
            return
        self._answered_at, self.delay = now - delay, delay
        if not self.is_connected:
            self.is_connected, self.problem = True, None
            if self._lost_at is not None:
                self._say(f"shared: {self._store} answers again, after {now - self._lost_at:.1f} s")
            self._lost_at = None

    def _lose(self, reason: str) -> None:
        """Count and log a loss, unless the store is lost already; forget what others have reported."""
        self.problem = reason
        if self._lost_at is None:
            self._lost_at = self._now()
            self.counts.lost += 1
            self._say(
                f"shared: {self._store} is lost: {reason}; this unit uses its own knowledge until it answers"
            )
        if self.is_connected:
            self.is_connected = False
            self._units.forget()

    def _ignore(self, reason: str) -> None:
        self.counts.ignored += 1
        if not self._has_said_ignored:
            self._has_said_ignored = True
            self._say(
                f"shared: a report at {self._store} is ignored: {reason}; further ones are only counted"
            )

    def status(self) -> dict[str, Any]:
        """Return the field `shared` of the status."""
        return {
            "store": self._store,
            "connected": self.is_connected,
            "problem": self.problem,
            "delay": round(self.delay, 6) if self.is_connected else None,
            "interval": self.interval,
            "others": self.others,
            "in_flight_elsewhere": self._units.in_flight,
            **asdict(self.counts),
        }


def exchange_of(
    configured: tuple[SharedConfig, Region | None],
    router: Router,
    now: Callable[[], float],
    say: Callable[[str], None],
    supervisor: str | None = None,
    cluster: str = "",
) -> ReportExchange | None:
    """Return the exchange of one cluster, None without a store.

    `configured` is the table [shared] and the home region; `supervisor` is a name that only sibling processes have in
    common.
    """
    config, home_region = configured
    if config.url is None:
        return None
    from balancer.sharing.store import Store  # only here: the import takes a tenth of a second

    sender = SystemRandom().getrandbits(63)
    identity = Identity(unit_of(supervisor, sender), sender, key_of(home_region or ""))
    return ReportExchange(
        OtherUnits(router),
        Store(config, cluster).opened,
        identity,
        now,
        every=config.every,
        store=config.store,
        say=say,
    )


def unit_of(supervisor: str | None, otherwise: int) -> int:
    """Return the key of this unit."""
    return otherwise if supervisor is None else key_of(f"{os.uname().nodename} {supervisor}")
