"""Rate limits on the path of a request: whether it is admitted, or how long its client must wait."""

from __future__ import annotations

from collections.abc import Callable
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


class RateLimit:
    """A rate limit with its buckets.

    `passed` counts admitted requests, `denied` those refused, and `given_away` buckets that lost their place to a new
    one of this limit before they were full.
    """

    def __init__(self, config: RateLimitConfig, buckets: Buckets, trusts: Trusts) -> None:
        self.config = config
        self.source = RequestSource(config.by, config.header, trusts)
        self.passed = self.denied = self.given_away = 0
        self._buckets = buckets
        self._rule = TokenBucket(config.tokens, config.requests / config.period)
        self._prefix = config.identity
        self._owner = owner_of(hash(config.identity))
        self._found: BucketState | None = None

    def wait(self, source: bytes, now: float) -> float:
        """Read the bucket of `source`. Returns the seconds until it holds a token, 0 if it does; nothing changes.

        Processes share the seed of `hash`, because they are forked.
        """
        rule = self._rule
        self._found = bucket = self._buckets.read(key_of_bucket(self._owner, hash(self._prefix + source)))
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
