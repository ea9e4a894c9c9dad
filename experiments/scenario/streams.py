"""Random streams derived from the seed of a block, one for each kind of draw.

Drawing more from one stream does not change another. Entries of a block therefore see the same arrivals and the same
faults, whatever their policies draw, measured or simulated.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

Stream = Literal["arrivals", "faults", "requests", "entrances"]

NUMBERS: dict[Stream, int] = {
    "arrivals": 0xA2214A15,
    "faults": 0xFA0175,
    "requests": 0x2E9E575,
    "entrances": 0xE27245CE,
}
"""Separates the streams; arbitrary constants, never changed, because old runs are repeated by their seeds."""


def stream(name: Stream, seed: int) -> np.random.Generator:
    """NumPy generator of the stream with that name."""
    return np.random.default_rng([NUMBERS[name], seed])
