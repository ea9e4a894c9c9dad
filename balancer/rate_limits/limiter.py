"""Rate limits on the path of a request: whether it is admitted, or how long its client must wait."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b
from math import ceil
from typing import Final

from balancer.config.schema.rate_limits import RateLimitConfig
from balancer.errors import RateLimited
from balancer.http.h1.client import Client
from balancer.http.h1.request_head import KeyOf, Request
from balancer.rate_limits.request_source import RequestSource, Trusts
from balancer.rate_limits.shared_buckets import Buckets, BucketState, key_of_bucket, owner_of
from policies.overload.token_bucket import ALMOST_ONE_TOKEN, TokenBucket

ROUNDING: Final = 1e-7
"""Seconds by which a computed wait may exceed a whole number without meaning the next one, or 0 without meaning one.

Times of four months of uptime are exact to 2e-9."""


CREDIBLE_S: Final = 10.0
"""Seconds of refill, beside a full bucket, that another unit may have taken at once; more is not credible."""


class TakenTokens:
    """Tokens that this process has taken since the last batch for other units, by bucket, while `is_told`.

    `secret` is what the keys of buckets that units share are hashed with, b"" if they share none.
    """

    __slots__ = ("by_key", "is_told", "secret")

    def __init__(self, secret: bytes = b"") -> None:
        self.secret = secret
        self.by_key: dict[int, int] = {}
        self.is_told = False

    def hash(self, data: bytes) -> int:
        """Return the hash of `data`, the same in all units of a store."""
        return int.from_bytes(blake2b(data, digest_size=8, key=self.secret).digest(), "little")


class RateLimit:
    """A rate limit with its buckets.

    `passed` counts admitted requests, `denied` those refused, and `given_away` buckets that lost their place to a new
    one of this limit before they were full. `elsewhere` counts tokens that other units have taken.
    """

    def __init__(self, config: RateLimitConfig, buckets: Buckets, trusts: Trusts, taken: TakenTokens) -> None:
        self.config = config
        self.source = RequestSource(config.by, config.header, trusts)
        self.passed = self.denied = self.given_away = self.elsewhere = 0
        self._buckets = buckets
        self._rule = TokenBucket(config.tokens, config.requests / config.period)
        self._prefix = config.identity
        self._taken = taken if config.shared and taken.secret else None
        self.owner = owner_of(self._hash(b""))
        self._found: BucketState | None = None

    def _hash(self, source: bytes) -> int:
        taken, data = self._taken, self._prefix + source
        return hash(data) if taken is None else taken.hash(data)

    def wait(self, source: bytes, now: float) -> float:
        """Read the bucket of `source`. Returns the seconds until it holds a token, 0 if it does; nothing changes.

        Processes share the seed of `hash`, because they are forked; units do not.
        """
        rule = self._rule
        self._found = bucket = self._buckets.read(key_of_bucket(self.owner, self._hash(source)))
        bucket.since = rule.since(bucket.since, bucket.taken, now)
        tokens = rule.tokens(bucket.since, bucket.taken, now)
        if tokens >= ALMOST_ONE_TOKEN:
            return 0.0
        wait = rule.wait(tokens)
        return wait if wait > ROUNDING else 0.0

    def take(self, now: float) -> None:
        """Take a token of the bucket that `wait` has read, and count the request."""
        bucket = self._found
        assert bucket is not None
        full_at = self._rule.full_at(bucket.since, bucket.taken + 1.0)
        self.given_away += self._buckets.take(bucket, bucket.since, full_at, now)
        self.passed += 1
        taken = self._taken
        if taken is not None and taken.is_told:
            taken.by_key[bucket.key] = taken.by_key.get(bucket.key, 0) + 1

    def take_elsewhere(self, key: int, tokens: int, now: float) -> None:
        """Take tokens that another unit has taken of the bucket with this key."""
        rule = self._rule
        if self._taken is None or not 0 < tokens <= rule.burst + CREDIBLE_S * rule.rate:
            return
        bucket = self._buckets.read(key)
        bucket.since = rule.since(bucket.since, bucket.taken, now)
        full_at = rule.full_at(bucket.since, bucket.taken + tokens)
        self.given_away += self._buckets.take(bucket, bucket.since, full_at, now, float(tokens))
        self.elsewhere += tokens

    def refusal(self, wait: float) -> RateLimited:
        """Return the error for a client that has to wait, and count it."""
        self.denied += 1
        config, seconds = self.config, max(1, ceil(wait - ROUNDING))
        policy = f'RateLimit-Policy: "{config.name}";q={config.requests};w={config.period}'
        return RateLimited(config.name, seconds, f'{policy}\r\nRateLimit: "{config.name}";r=0;t={seconds}')


class Limiter:
    """The limits that apply to the same requests; a request is admitted if all of them admit it.

    `key_of` is the request key of the cluster that gets the requests.
    """

    def __init__(
        self, limits: tuple[RateLimit, ...], now: Callable[[], float], key_of: KeyOf | None = None
    ) -> None:
        self.limits = limits
        self._now = now
        self._key_of = key_of

    def refusal(self, request: Request, client: Client) -> RateLimited | None:
        """Return None and count the request, or the error for it if it is refused, which then changes no bucket.

        All limits are read before a token of any is taken. Of several that refuse, the error is that of the longest
        wait.
        """
        now = self._now()  # before the buckets are read: see policies/overload/token_bucket.py
        longest = 0.0
        refusing: RateLimit | None = None
        for limit in self.limits:
            wait = limit.wait(limit.source.of(request, client, self._key_of), now)
            if wait > longest:
                longest, refusing = wait, limit
        if refusing is not None:
            return refusing.refusal(longest)
        for limit in self.limits:
            limit.take(now)
        return None
