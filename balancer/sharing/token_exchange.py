"""Rate limits over several units: each tells the others in batches, through a store, how many tokens it has taken.

A request never waits for the store. What others have taken since their last batch is not known, so `n` units may admit
`n` bursts at once; the buckets then lack what was admitted too much, and in the long run all units together admit what
the limit states. While the store is lost each unit applies its limits alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from hashlib import blake2b
from itertools import islice
from math import inf
from random import SystemRandom
from struct import Struct
from typing import Final

from balancer.config.schema.sections import SharedConfig
from balancer.errors import StoreLost
from balancer.rate_limits.configured import RateLimits
from balancer.sharing.exchange import Opened, ReportChannel, StoreTask, unit_of, until_one_ends

BATCH_S: Final = 0.1
"""Seconds between two batches."""

ANSWER_S: Final = 1.0
"""Seconds within which the store must take a batch, and send it back."""

MOST_BUCKETS: Final = 4096
"""Buckets in one batch; others wait for the next."""

OF_TOKENS: Final = "-rate-limits"
"""Channel of what rate limits have admitted, beside those of clusters, whose names begin with a letter or a digit."""

VERSION: Final = 1
HEAD: Final = Struct("<B3sIq")
"""Version, mark of the process, number of buckets, key of the unit."""

BUCKET: Final = Struct("<qI")
"""Key of the bucket, tokens taken."""


def secret_of(url: str) -> bytes:
    """Return what the keys of buckets are hashed with: the same in all units of a store, and not known to others if
    the store has a password."""
    return blake2b(url.encode(), digest_size=32).digest()


class TokenExchange(StoreTask):
    """Publishes what `limits` have taken, as the unit of that key, and takes what other units tell if `applies`: one
    process of a unit does, whose siblings share its buckets. `problem` is why the store is lost, until a batch is back.
    """

    def __init__(
        self,
        limits: RateLimits,
        opened: Opened,
        unit: int,
        now: Callable[[], float],
        say: Callable[[str], None],
        *,
        applies: bool,
    ) -> None:
        super().__init__(opened, now)
        self._limits = limits
        self._unit = unit
        self._say = say
        self._applies = applies
        self._mark = self._rng.randbytes(3)
        self.problem: str | None = None

    def sweep(self) -> None:
        """Connect, once a limit is shared; called by the sweep."""
        if self._task is None and self._limits.are_shared:
            self.start()

    async def _converse(self, channel: ReportChannel) -> None:
        """Publish until the store fails. Raises `StoreLost`."""
        self._limits.taken.is_told = True
        try:
            await until_one_ends(self._publish(channel), channel.ended())
        except TimeoutError:
            raise StoreLost(f"no answer within {ANSWER_S:g} s") from None
        finally:
            self._limits.taken.is_told = False

    async def _publish(self, channel: ReportChannel) -> None:
        """Publish what has been taken, and expect it back: else nothing of others would come either."""
        unheard_since = inf
        while True:
            await asyncio.sleep(BATCH_S)
            if self._answered_at >= unheard_since:
                unheard_since = inf
            if self._now() - unheard_since > ANSWER_S:
                raise TimeoutError
            batch = self._batch()
            if batch:
                unheard_since = min(unheard_since, self._now())
                async with asyncio.timeout(ANSWER_S):
                    await channel.publish(batch)

    def _batch(self) -> bytes:
        """Return the tokens taken since the last batch; b"" without any, unless the store is lost."""
        taken = self._limits.taken.by_key
        if not taken and self.problem is None:
            return b""
        keys = list(islice(taken, MOST_BUCKETS))
        buckets = [BUCKET.pack(key, taken.pop(key)) for key in keys]
        return b"".join((HEAD.pack(VERSION, self._mark, len(buckets), self._unit), *buckets))

    def hear(self, data: object, now: float) -> None:
        """Take what another unit tells."""
        if not isinstance(data, bytes) or len(data) < HEAD.size:
            return
        version, mark, number, unit = HEAD.unpack_from(data)
        if unit == self._unit:
            if mark == self._mark:
                self._answer(now)
        elif self._applies and version == VERSION and len(data) == HEAD.size + number * BUCKET.size:
            for key, tokens in BUCKET.iter_unpack(memoryview(data)[HEAD.size :]):
                self._limits.take_elsewhere(key, tokens, now)

    def _answer(self, now: float) -> None:
        self._answered_at = now
        if self.problem is not None:
            self.problem = None
            self._say("rate limits: the store answers again")

    def _lose(self, reason: str) -> None:
        taken = self._limits.taken
        taken.is_told = False
        taken.by_key.clear()
        if self.problem is None:
            self._say(
                f"rate limits: the store is lost: {reason}; this unit applies them alone until it answers"
            )
        self.problem = reason


def token_exchange_of(
    config: SharedConfig,
    limits: RateLimits,
    now: Callable[[], float],
    say: Callable[[str], None],
    supervisor: str | None,
    *,
    applies: bool,
) -> TokenExchange | None:
    """Return the exchange of what rate limits have admitted, None without a store; see `exchange_of`."""
    if config.url is None:
        return None
    from balancer.sharing.store import Store

    limits.taken.secret = secret_of(config.url.get_secret_value())
    unit = unit_of(supervisor, SystemRandom().getrandbits(63))
    return TokenExchange(limits, Store(config, OF_TOKENS).opened, unit, now, say, applies=applies)
