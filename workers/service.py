"""Service times of a worker, its cold start, and its load report.

Pure: no I/O, no clock and no global randomness; a simulator uses it as well.

`now` and `rng` are arguments. All times are in seconds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from random import Random
from typing import Self

from workers.durations import parse_duration, parse_span
from workers.slots import Slots

ALLOWED_PROFILES = (
    "fixed:20ms, uniform:19-21ms (or 19-21ms), exponential:20ms, lognormal:20ms,0.5, mixed:1ms,100ms,0.1"
)


@dataclass(frozen=True, slots=True)
class Fixed:
    """Constant service time: the D of M/D/1."""

    mean: float

    def draw(self, rng: Random) -> float:
        return self.mean

    def scaled(self, factor: float) -> Self:
        return replace(self, mean=self.mean * factor)


@dataclass(frozen=True, slots=True)
class Uniform:
    """Service time uniformly distributed from `low` to `high`."""

    low: float
    high: float

    @property
    def mean(self) -> float:
        return (self.low + self.high) / 2

    def draw(self, rng: Random) -> float:
        return rng.uniform(self.low, self.high)

    def scaled(self, factor: float) -> Self:
        return replace(self, low=self.low * factor, high=self.high * factor)


@dataclass(frozen=True, slots=True)
class Exponential:
    """Exponential (memoryless) service time: the second M of M/M/1."""

    mean: float

    def draw(self, rng: Random) -> float:
        return rng.expovariate(1 / self.mean) if self.mean else 0.0

    def scaled(self, factor: float) -> Self:
        return replace(self, mean=self.mean * factor)


@dataclass(frozen=True, slots=True)
class Lognormal:
    """Lognormal (heavy-tailed) service time.

    `mean` is the mean, not the median; `sigma` the deviation of the logarithm.

    By its mean, so that profiles of equal mean offer equal load: median = mean·e^(−σ²/2), C² = e^(σ²) − 1.
    """

    mean: float
    sigma: float

    def draw(self, rng: Random) -> float:
        return self.mean * math.exp(rng.gauss(0.0, self.sigma) - self.sigma**2 / 2)

    def scaled(self, factor: float) -> Self:
        return replace(self, mean=self.mean * factor)


@dataclass(frozen=True, slots=True)
class Mixed:
    """Cheap and expensive requests: `long` seconds for a `share` of the requests, `short` seconds for the others."""

    short: float
    long: float
    share: float

    @property
    def mean(self) -> float:
        return self.short + (self.long - self.short) * self.share

    def draw(self, rng: Random) -> float:
        return self.long if rng.random() < self.share else self.short

    def scaled(self, factor: float) -> Self:
        return replace(self, short=self.short * factor, long=self.long * factor)


Profile = Fixed | Uniform | Exponential | Lognormal | Mixed
"""Distribution from which service times are drawn: its `mean` in seconds, `draw` for one in seconds, and `scaled` for
the distribution of all service times multiplied by a factor."""


def parse_profile(text: str) -> Profile:
    """Parse `lognormal:20ms,0.5` → Lognormal(0.02, 0.5). Raises ValueError with the allowed forms."""
    kind, colon, values = text.strip().partition(":")
    if not colon:
        kind, values = "uniform", text
    try:
        return _profile(kind, values)
    except ValueError as error:
        raise ValueError(f"{error}; a service profile is one of: {ALLOWED_PROFILES}") from None


def _profile(kind: str, values: str) -> Profile:
    match kind:
        case "fixed":
            return Fixed(parse_duration(values))
        case "uniform":
            return Uniform(*parse_span(values))
        case "exponential":
            return Exponential(parse_duration(values))
        case "lognormal":
            mean, _, sigma = values.partition(",")
            return Lognormal(parse_duration(mean), _parse_number("sigma", sigma, 10))
        case "mixed":
            short, _, rest = values.partition(",")
            long, _, share = rest.partition(",")
            return Mixed(parse_duration(short), parse_duration(long), _parse_number("share", share, 1))
    raise ValueError(f"unknown profile {kind!r}")


def _parse_number(name: str, text: str, most: int) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 <= number <= most:
        raise ValueError(f"{name} {text!r} is not a number from 0 to {most}")
    return number


class ColdStart:
    """Cold start after idleness, as on free hosting platforms: a process that sleeps after `sleep_after` idle seconds
    and takes `wake_time` seconds to wake.

    Requests that arrive while it wakes all wait for the same time. `sleep_after=inf` never sleeps.
    """

    def __init__(self, sleep_after: float, wake_time: float, now: float, starts_asleep: bool = False) -> None:
        self.sleep_after = sleep_after
        self.wake_time = wake_time
        self._awake_at = now
        self._active_at = -math.inf if starts_asleep else now

    def is_asleep(self, now: float) -> bool:
        """Whether a request that arrives at `now` would have to wake the worker."""
        return self._active_at == -math.inf or now - self._active_at > self.sleep_after

    def awake_at(self, now: float) -> float:
        """Note a request at `now`; return the time from which it can be served."""
        if self.is_asleep(now):
            self._awake_at = now + self.wake_time
        self.note_activity(max(now, self._awake_at))
        return self._awake_at

    def note_activity(self, now: float) -> None:
        self._active_at = max(self._active_at, now)


AVERAGED_OVER = 1.0  # seconds; gRPC's and Envoy's load reports are per second too


class LoadReport:
    """Load report in the headers of every response: counts requests and reads the slots. `now` in seconds, from the
    same clock as the slots'.

    | header | |
    |---|---|
    | `X-Worker-Name`, `X-Worker-Region` | the worker and its region |
    | `X-Worker-In-Flight` | requests queued or in service when the response was made, itself not counted |
    | `X-Worker-Service-Time` | service time of this request in seconds, without its wait in the queue; 0 if refused |
    | `X-Worker-Utilization` | share of slot time in use, 0 to 1, averaged over about the last second |
    """

    def __init__(self, name: str, region: str, slots: Slots, now: float) -> None:
        self._identity = {"X-Worker-Name": name, "X-Worker-Region": region}
        self._slots = slots
        self._utilization = 0.0
        self._read_at = now
        self._busy_seconds = 0.0
        self.in_flight = 0

    def utilization(self, now: float) -> float:
        """Return the exponentially weighted share of slot time in use, exact for any spacing of the readings."""
        elapsed = now - self._read_at
        if elapsed > 0:
            busy_seconds = self._slots.busy_seconds(now)
            share = (busy_seconds - self._busy_seconds) / (elapsed * self._slots.count)
            self._utilization += (1 - math.exp(-elapsed / AVERAGED_OVER)) * (share - self._utilization)
            self._read_at, self._busy_seconds = now, busy_seconds
        return self._utilization

    def standing(self, now: float) -> dict[str, str]:
        """Return the report for a health check: `X-Worker-In-Flight` counts all requests, as it is not one."""
        return {
            **self._identity,
            "X-Worker-In-Flight": str(self.in_flight),
            "X-Worker-Utilization": f"{self.utilization(now):.4f}",
        }

    def headers(self, now: float, service_time: float = 0.0) -> dict[str, str]:
        """Return the report for the response to a counted request."""
        return self.standing(now) | {
            "X-Worker-In-Flight": str(self.in_flight - 1),
            "X-Worker-Service-Time": f"{service_time:.6f}",
        }
