"""Random streams that grow from the seed of a block, one for each thing that is drawn.

Rule of this file: whoever draws more of one thing moves no number of another. So entries of a block see the same
arrivals and the same faults, whatever their policies draw, measured or simulated.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

Stream = Literal["arrivals", "faults"]

NUMBERS: dict[Stream, int] = {"arrivals": 0xA2214A15, "faults": 0xFA0175}
"""Sets the streams apart; arbitrary, and never changed, because old runs are repeated by their seeds."""


def stream(name: Stream, seed: int) -> np.random.Generator:
    """The stream of that name, for draws by the thousand."""
    return np.random.default_rng([NUMBERS[name], seed])
