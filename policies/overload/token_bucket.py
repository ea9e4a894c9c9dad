"""Arithmetic of a token bucket from which several processes take tokens without a lock. Pure: no clock, no memory.

A bucket holds at most `burst` tokens and gains `rate` per second. Its state are two numbers that only grow: `taken`,
the tokens taken so far, and `since`, the time at which it would have been empty if none had been taken. It holds

    rate · (now - since) - taken

tokens. A full bucket gains nothing, so `since` moves on with the time as long as it is full.

Each process counts what it takes itself and publishes its own `since`. The bucket of all has the sum of the counts, as
no token is counted twice, and the latest `since`, as every one that was published states that the bucket was full at
some time. A process that decides takes the time first, reads the others, and publishes then. What it can miss are
tokens that others have decided on and not published yet: one for each other process. So in every interval of `t`
seconds, `n` processes give out at most `burst` + `rate` · `t` + `n` - 1 tokens, and while all are asked for, at most
`n` fewer. A token that was missed is in the counts afterwards: errors do not add up.
"""

from __future__ import annotations

from typing import Final

ALMOST_ONE_TOKEN: Final = 1.0 - 1e-6
"""Tokens that count as one: a wait that was computed to be long enough must not miss by a rounding error."""


class TokenBucket:
    """Capacity and refill rate of a token bucket; times are in seconds of any one clock."""

    def __init__(self, burst: float, rate: float) -> None:
        self.burst = burst
        self.rate = rate

    def since(self, since: float, taken: float, now: float) -> float:
        """Return `since` as of `now`: later than before if the bucket has been full."""
        return max(since, now - (self.burst + taken) / self.rate)

    def tokens(self, since: float, taken: float, now: float) -> float:
        """Return the tokens in the bucket; less than 0 after processes have taken the same one at the same time."""
        return self.rate * (now - since) - taken

    def full_at(self, since: float, taken: float) -> float:
        """Return the time at which the bucket is full, if nothing more is taken."""
        return since + (self.burst + taken) / self.rate

    def wait(self, tokens: float, needed: float = 1.0) -> float:
        """Return the seconds until a bucket with `tokens` holds `needed`."""
        return (needed - tokens) / self.rate
