"""The rate limits in force in one process, with their levels and counts kept over reloads."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache

from balancer.config.schema.rate_limits import RateLimitConfig
from balancer.http.h1.request_head import KeyOf
from balancer.rate_limits.limiter import Limiter, RateLimit, TakenTokens
from balancer.rate_limits.request_source import Trusts
from balancer.rate_limits.shared_buckets import HASH_BITS, Buckets, SharedBuckets


class RateLimits:
    """All rate limits. The memory for buckets is made when the first limit needs it, unless it is shared.

    `taken` has the tokens that are published to other units.
    """

    def __init__(self, now: Callable[[], float], trusts: Trusts) -> None:
        self.by_name: dict[str, RateLimit] = {}
        self._now = now
        self._trusts = trusts
        self._buckets: Buckets | None = None
        self._by_owner: dict[int, RateLimit] = {}
        self.taken = TakenTokens()

    def share(self, shared: SharedBuckets, index: int) -> None:
        """Use the memory that sibling processes share, as process `index`, from the next `apply` on."""
        self._buckets = Buckets(shared, index)

    def apply(self, configs: Iterable[RateLimitConfig]) -> None:
        """Apply a configuration. An unchanged limit keeps its counts and its buckets; one of which only
        `everywhere` has changed keeps its buckets, which are found by its other keys."""
        before, self.by_name = self.by_name, {}
        trusts = lru_cache(maxsize=4096)(self._trusts)
        for config in configs:
            limit = before.get(config.name)
            if limit is None or limit.config != config:
                if self._buckets is None:
                    self._buckets = Buckets(SharedBuckets())
                limit = RateLimit(config, self._buckets, trusts, self.taken)
            limit.source.trusts = trusts
            self.by_name[config.name] = limit
        self._by_owner = {limit.owner: limit for limit in self.by_name.values()}

    def take_elsewhere(self, key: int, tokens: int, now: float) -> None:
        """Take tokens that another unit has taken of the bucket with this key, if this unit has its limit."""
        limit = self._by_owner.get(key >> HASH_BITS)
        if limit is not None:
            limit.take_elsewhere(key, tokens, now)

    @property
    def are_shared(self) -> bool:
        """Whether units share one of the limits."""
        return any(limit.config.shared for limit in self.by_name.values())

    def limiter(self, name: str | None, key_of: KeyOf | None) -> Limiter | None:
        """Return the limiter for requests under the limit `name` and all that apply everywhere; None without any."""
        limits = tuple(
            limit for limit in self.by_name.values() if limit.config.everywhere or limit.config.name == name
        )
        return Limiter(limits, self._now, key_of) if limits else None
