"""Service demand and entry balancer of each request, drawn in batches by request number.

The draws depend on the request number and the seed only, never on what a policy does. Policies compared under one seed
therefore serve the same requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from experiments.run_data import Floats
from workers.service import Exponential, Fixed, Lognormal, Mixed, Profile, Uniform

BATCH: Final = 4096
"""Requests per batch: few calls, and lists that fit in the processor's cache."""

MASK: Final = 4095
"""`number & MASK` is a request's index in its batch."""

STREAM = 0xDE3A4D
"""Separates the demand stream from every other stream derived from the same block seed."""

PLACES = 0x91ACE5

Batch = list[list[float]]
"""Service times of a batch of requests in seconds: by profile, and by the request's index in the batch."""


def batch(profile: Profile, rng: np.random.Generator, size: int) -> Floats:
    """Draw `size` service times in seconds, shape (size,)."""
    match profile:
        case Fixed(mean):
            return np.full(size, mean)
        case Uniform(low, high):
            return rng.uniform(low, high, size)
        case Exponential(mean):
            return rng.exponential(mean, size)
        case Lognormal(mean, sigma):
            return np.asarray(mean * np.exp(rng.normal(0.0, sigma, size) - sigma**2 / 2))
        case Mixed(short, long, share):
            return np.where(rng.random(size) < share, long, short)


class Demand:
    """Service times by profile and request number; entry balancers by request number, where there are several.

    Batches are drawn in ascending order. A batch that is replaced stays valid for requests that keep a reference to it.
    """

    def __init__(self, profiles: Sequence[Profile], entrances: int, seed: int) -> None:
        self._profiles = tuple(profiles)
        self._entrances = entrances
        self._streams = [np.random.default_rng([STREAM, seed, index]) for index in range(len(profiles))]
        self._places = np.random.default_rng([PLACES, seed])
        self.until = 0
        self.seconds: Batch = [[] for _ in profiles]
        self.entrance: list[int] = []

    def begin(self) -> None:
        """Start a new run at request 0."""
        self.until = 0

    def renew(self) -> None:
        """Draw service times and entry balancers of the next `BATCH` requests."""
        self.until += BATCH
        pairs = zip(self._profiles, self._streams, strict=True)
        self.seconds = [batch(profile, stream, BATCH).tolist() for profile, stream in pairs]
        if self._entrances > 1:
            self.entrance = self._places.integers(0, self._entrances, BATCH).tolist()
