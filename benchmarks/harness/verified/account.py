"""Columns of a verified load: what became of every request, as its client saw it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np

from benchmarks.harness.verified.messages import Ending
from experiments.run_data import Flags, Floats, Ints
from experiments.stats.measures import percentile

TIMEOUT = 10.0
"""Seconds from the due time after which a request has failed."""

NO_WORKER = -1


@dataclass(frozen=True, slots=True)
class Account:
    """One row per request; instants in seconds from the zero, nan if there is none. Warm-up rows are negative."""

    due: Floats
    sent: Floats
    ended: Floats
    has_waited: Flags
    is_post: Flags
    ending: Ints
    worker: Ints
    strays: Ints
    """Single number: responses that arrived without a request."""

    @property
    def latency(self) -> Floats:
        """Seconds from the due time; at least the timeout for a failure."""
        taken = np.nan_to_num(self.ended - self.due, nan=TIMEOUT)
        return np.where(self.ending == Ending.OK, taken, np.maximum(taken, TIMEOUT))

    def lag_of(self, among: Flags) -> float:
        """p99 of the generator's own lag in seconds, for the requests in `among`."""
        found_free = np.isfinite(self.sent) & ~self.has_waited
        return percentile((self.sent - self.due)[among & found_free], 99)

    @property
    def crossed(self) -> int:
        """Number of responses to another request, with wrong bytes, or without a request."""
        wrong = np.isin(self.ending, (Ending.CROSSED, Ending.CORRUPT))
        return int(wrong.sum()) + int(self.strays[0])

    def failures(self, among: Flags) -> dict[str, int]:
        """Failed requests by kind of ending, the most frequent first."""
        counts = Counter(Ending(ending).words for ending in self.ending[among & (self.ending != Ending.OK)])
        return dict(counts.most_common())

    def save(self, file: Path) -> None:
        columns = {field.name: getattr(self, field.name) for field in fields(self)}
        with file.open("wb") as target:
            np.savez_compressed(target, allow_pickle=False, **columns)

    @classmethod
    def load(cls, file: Path) -> Account:
        with np.load(file, allow_pickle=False) as archive:
            return cls(**{field.name: archive[field.name] for field in fields(cls)})
