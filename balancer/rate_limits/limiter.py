"""Rate limits on the path of a request: whether it is admitted, or how long its client must wait."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil
from typing import TYPE_CHECKING, Final

from balancer.errors import RateLimited
from balancer.rate_limits.request_source import RequestSource, Trusts
from balancer.rate_limits.shared_buckets import Bucket, Buckets
from policies.overload.token_bucket import ALMOST, TokenBucket

if TYPE_CHECKING:
    from balancer.config.rate_limits import RateLimitConfig
    from balancer.http1.client import Client
    from balancer.http1.request_head import KeyOf, Request

ROUNDING: Final = 1e-7
"""Seconds by which a computed wait may exceed a whole number without meaning the next one."""


class RateLimit:
    """A rate limit with its buckets.

    `passed` counts admitted requests, `denied` those refused, and `no_room` those of them for whose bucket there was no
    place.
    """

    def __init__(self, config: RateLimitConfig, buckets: Buckets, trusts: Trusts) -> None:
        self.config = config
        self.source = RequestSource(config.by, config.header, trusts)
        self.passed = self.denied = self.no_room = 0
        self._buckets = buckets
        self._bucket = TokenBucket(config.tokens, config.requests / config.period)
        self._prefix = config.identity
        self._last: Bucket | None = None
        self._has_room = True

    def take(self, source: bytes, now: float) -> float:
        """Take a token of the bucket of `source`. Returns the seconds until there is one, 0 if it was taken."""
        self._last = None
        self._has_room = True
        bucket, rule, buckets = self._bucket_of(source), self._bucket, self._buckets
        since = rule.since(bucket.since, bucket.taken, now)
        tokens = rule.tokens(since, bucket.taken, now)
        if tokens < ALMOST:
            return rule.wait(tokens)
        wait = buckets.take(bucket, since, rule.full_at(since, bucket.taken + 1.0), now)
        if wait > 0.0:
            self._has_room = False
            return wait
        self.passed += 1
        self._last = bucket
        return 0.0

    def give_back(self) -> None:
        """Give back what the last `take` has taken."""
        if self._last is not None:
            self._buckets.give_back(self._last)
            self.passed -= 1
            self._last = None

    def _bucket_of(self, source: bytes) -> Bucket:
        """Read the bucket of a source; processes share the seed of `hash`, because they are forked."""
        return self._buckets.read(hash(self._prefix + source) or 1)

    def refusal(self, wait: float) -> RateLimited:
        """Return the error for a client that has to wait after the last `take`, and count it."""
        self.denied += 1
        if not self._has_room:
            self.no_room += 1
        config, seconds = self.config, max(1, ceil(wait - ROUNDING))
        policy = f'RateLimit-Policy: "{config.name}";q={config.requests};w={config.period}'
        return RateLimited(config.name, seconds, f'{policy}\r\nRateLimit: "{config.name}";r=0;t={seconds}')


class Limiter:
    """The limits that apply to the same requests; a request is admitted if all of them admit it.

    `key_of` is the request key of the pool that gets the requests.
    """

    def __init__(
        self, limits: tuple[RateLimit, ...], now: Callable[[], float], key_of: KeyOf | None = None
    ) -> None:
        self.limits = limits
        self._now = now
        self._key_of = key_of

    def refusal(self, request: Request, client: Client) -> RateLimited | None:
        """Return None and count the request, or the error for it if it is refused, which then takes no token.

        Of several limits that refuse, the error is that of the longest wait.
        """
        now = self._now()  # before the buckets are read: see policies/overload/token_bucket.py
        longest = 0.0
        refusing: RateLimit | None = None
        for limit in self.limits:
            wait = limit.take(limit.source.of(request, client, self._key_of), now)
            if wait > longest:
                longest, refusing = wait, limit
        if refusing is None:
            return None
        for limit in self.limits:
            limit.give_back()
        return refusing.refusal(longest)
