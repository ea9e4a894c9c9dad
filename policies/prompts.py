"""What a request for inference asks, and what its answer says: facts for policies that read prompts.

A token is BYTES_PER_TOKEN bytes where nothing better is known; no text is tokenized. A prompt is known by its blocks:
block i has as its hash that of its bytes chained with the hash of block i - 1, so equal hashes mean equal prefixes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

BYTES_PER_TOKEN: Final = 4.0
"""Bytes of a prompt per token, until the `usage` of a model's answers says otherwise."""

BLOCK_BYTES: Final = 512
"""Bytes of a block: 128 tokens. Engines cache blocks of 16 tokens; a router only needs to tell prefixes apart."""

INPUT_TOKENS: Final = ("cache_read_input_tokens", "cache_creation_input_tokens", "input_tokens")
"""Names whose sum is the prompt in a `usage` of Anthropic's API; the first one is what was cached."""


class Prompt:
    """A request for inference. Made once per request, for all its attempts.

    `model` and `session` are "" where the request names none. `tokens` is the estimated length of the prompt, `blocks`
    the chained hashes (64 bits, unsigned) of its whole blocks from the first on, each of `block_tokens` tokens.
    `max_tokens` is the most tokens of the answer that the request allows, 0 where it does not say.

    `cached` and `added` belong to the policy: tokens that it expected to be cached at the endpoint that it picked last,
    and tokens that the request added there to those that wait.
    """

    __slots__ = (
        "added",
        "block_tokens",
        "blocks",
        "cached",
        "is_streamed",
        "max_tokens",
        "model",
        "session",
        "tokens",
    )

    def __init__(
        self,
        tokens: float,
        blocks: Sequence[int] = (),
        block_tokens: float = BLOCK_BYTES / BYTES_PER_TOKEN,
        model: str = "",
        session: str = "",
        max_tokens: int = 0,
        is_streamed: bool = False,
    ) -> None:
        self.tokens = tokens
        self.blocks = list(blocks)
        self.block_tokens = block_tokens
        self.model = model
        self.session = session
        self.max_tokens = max_tokens
        self.is_streamed = is_streamed
        self.cached = self.added = 0.0


class Answer:
    """What came of an answer: `tokens` of it, and what its `usage` states of the prompt, None where it states nothing.

    `first_token_at` and `last_token_at` are instants of the router's clock, None before a token.
    """

    __slots__ = ("cached_tokens", "first_token_at", "last_token_at", "prompt_tokens", "tokens")

    def __init__(self) -> None:
        self.first_token_at: float | None = None
        self.last_token_at: float | None = None
        self.tokens = 0
        self.prompt_tokens: int | None = None
        self.cached_tokens: int | None = None

    @property
    def tpot(self) -> float | None:
        """Seconds per token after the first one; None for fewer than two tokens, or an answer in one piece."""
        first, last = self.first_token_at, self.last_token_at
        if first is None or last is None or self.tokens < 2 or last <= first:
            return None
        return (last - first) / (self.tokens - 1)


class SentTokens(NamedTuple):
    """What one process has sent to an endpoint: `prompts` of `resident` tokens are unfinished, and of them `queue` wait
    for their first token, with `waiting` tokens to compute.

    `capacity` is what the endpoint is assumed to hold, in blocks, `computed_ago` the seconds since its last first token
    for this process, when the report was made.
    """

    waiting: int = 0
    queue: int = 0
    resident: int = 0
    prompts: int = 0
    capacity: float = 0.0
    computed_ago: float = 0.0


NO_TOKENS: Final = SentTokens()

SENT: Final = 0
NOT_ARRIVED: Final = 1
ONLY_THERE: Final = 2
"""Kinds of a `Prefix`: its blocks were sent to the endpoint; they did not get there; no other endpoint has them."""


class Prefix(NamedTuple):
    """Blocks of a prompt that was sent to an endpoint, given by its key in reports."""

    endpoint: int
    kind: int
    blocks: Sequence[int]


class PromptReport(NamedTuple):
    """What a process reports to other units: tokens by the key of the endpoint, and prefixes since the last report."""

    tokens: Mapping[int, SentTokens]
    prefixes: Sequence[Prefix] = ()
