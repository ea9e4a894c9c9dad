"""Broken connections (resets) of an endpoint, and how many of the requests on them were retried.

Where requests are retried, a broken connection costs a client the time until then and the retry, a fraction of what a
failure costs that is passed on. The default policy prices it so: an endpoint that breaks some connections keeps traffic
that would wait elsewhere.
"""

from __future__ import annotations

from typing import Final

PASSED_ON: Final = 5
"""Consecutive failures from which an endpoint is taken to break every connection."""

RECENT_WEIGHT: Final = 0.5
"""Weight of the last failure in the share of resets among an endpoint's failures."""

LAST_WEIGHT: Final = 0.2
"""Weight of the last reset in the mean time until one."""

HISTORY_WEIGHT: Final = 0.95
"""Factor by which earlier resets count less after each, in the share that is retried."""


class EndpointResets:
    """Resets of one endpoint.

    `share` (0..1) is their share of its recent failures, `seconds` the mean time until one, `in_a_row` its consecutive
    failures. `is_open`: its last reset was not yet retried.
    """

    __slots__ = ("in_a_row", "is_open", "seconds", "share")

    def __init__(self) -> None:
        self.share = self.seconds = 0.0
        self.in_a_row = 0
        self.is_open = False

    def fail(self) -> None:
        """Count another failure than a reset."""
        self.in_a_row += 1
        self.share *= 1.0 - RECENT_WEIGHT

    def reset(self, seconds: float) -> None:
        """Count a reset `seconds` after the request was sent."""
        self.in_a_row += 1
        self.share += RECENT_WEIGHT * (1.0 - self.share)
        self.seconds += LAST_WEIGHT * (seconds - self.seconds)
        self.is_open = True


class RetriedResets:
    """Share of the resets of all endpoints that are retried, at first none."""

    __slots__ = ("_resets", "_retried")

    def __init__(self) -> None:
        self._resets, self._retried = 1.0, 0.0

    def count_reset(self) -> None:
        """Count a reset."""
        self._resets = HISTORY_WEIGHT * self._resets + 1.0
        self._retried *= HISTORY_WEIGHT

    def count_retry(self) -> None:
        """Count the retry of one that was counted."""
        self._retried += 1.0

    def price(self, resets: EndpointResets, failure: float, retry: float) -> float:
        """Return the seconds that a failure of the endpoint costs.

        `failure` is the price of one that is passed on, `retry` that of a retry, both in seconds."""
        saved = failure - retry
        if saved <= 0.0 or resets.in_a_row >= PASSED_ON:
            return failure
        return failure - saved * resets.share * self._retried / self._resets
