"""What goes through an engine: sequences and their events."""

from __future__ import annotations

from collections.abc import Iterable
from math import nan
from typing import Final

from workers.inference.cache import Block

FIRST_TOKEN: Final = 1
FINISHED: Final = 2

ABSENT: Final = 0
WAITING: Final = 1
PREFILLING: Final = 2
DECODING: Final = 3


class Sequence:
    """A request at the engine: `tokens` of its prompt, whose whole blocks have the chained hashes `blocks`, and
    `output` tokens to generate. `tag` is the caller's.

    `cached` tokens of the prompt were found in the cache when it was first admitted. `generated` is as of the last
    event; `generated_by` of the engine is as of now. Instants are nan until they are known.
    """

    def __init__(self, blocks: Iterable[int], tokens: int, output: int, tag: object = None) -> None:
        self.blocks = blocks
        self.tokens = tokens
        self.output = output
        self.tag = tag
        self.cached = 0
        self.generated = 0
        self.first_token_at = nan
        self.finished_at = nan
        self.stage: int = ABSENT
        self.order = 0  # of admission; 0 before the first
        self.computed = 0  # tokens whose keys and values are computed, while prefilling
        self.since = 0  # the step with which it began to decode, when it had `generated` tokens
        self.held: list[Block] = []


class Event:
    """FIRST_TOKEN or FINISHED of a sequence, and when."""

    def __init__(self, kind: int, sequence: Sequence, at: float) -> None:
        self.kind = kind
        self.sequence = sequence
        self.at = at
