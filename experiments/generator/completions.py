"""Load generator for inference: chat completions of OpenAI's API, whose answers are streams of server-sent events.

The text of a prompt is made of its blocks: prompts that begin with the same blocks begin with the same bytes. So
engines and policies find in it what a simulated run gives them. The first byte of an answer is its first token, as
`workers inference` sends it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final
from urllib.parse import quote

import numpy as np

from experiments.generator.client import GeneratorConnection
from experiments.generator.connections import Connections
from experiments.generator.generator import SPARE_CONNECTIONS, Generator, InFlightRequest
from experiments.generator.ledger import Ledger
from experiments.recorded.inference_trace import Prompts
from experiments.run_data import Floats, Kind, Place, Samples
from policies.prompts import BYTES_PER_TOKEN

ROLE: Final = "<user>"
"""What engines read before the text of a message, as a part of the prompt."""

WORD: Final = 16
"""Bytes of a hash in hexadecimal, of which the text of its block is made."""

TAIL: Final = 4096
"""Bytes of the end of an answer in which `usage` is."""

LAST_EVENT: Final = b"data: [DONE]"


class CompletionConnection(GeneratorConnection):
    """Connection that passes on the bodies of responses."""

    __slots__ = ()

    def on_body(self, data: bytes) -> None:
        receiver = self._receiver
        if isinstance(receiver, CompletionRequest) and not self._is_complete:
            receiver.body_came(data)


class CompletionConnections(Connections):
    """Pool of such connections."""

    http1 = CompletionConnection


class CompletionRequest(InFlightRequest):
    """One request in flight. It times out while it has no token; a stream without its last event has failed."""

    __slots__ = ("_tail",)

    _generator: CompletionGenerator

    def __init__(self, generator: Generator, number: int) -> None:
        super().__init__(generator, number)
        self._tail = b""

    def body_came(self, data: bytes) -> None:
        if not self._tail and self.kind is Kind.OK:
            self._generator.ledger.first_byte_at[self.number] = time.monotonic()
        self._tail = (self._tail + data)[-TAIL:]

    def answer_ended(self) -> None:
        if self.kind is Kind.OK and not self._generator.is_late(self.number):
            usage = usage_in(self._tail)
            if usage is None:
                self.kind = Kind.RESET
            else:
                self._generator.ledger.used(self.number, usage)
        super().answer_ended()

    def time_out(self) -> None:
        if not self._tail:
            super().time_out()


class TokenLedger(Ledger):
    """Ledger with the tokens of each request: of its prompt, and of an answer that has ended as it should."""

    def __init__(self, places: Sequence[Place], started_at: float, prompts: Prompts) -> None:
        super().__init__(places, started_at)
        self._tokens = np.zeros((3, len(prompts.tokens)), dtype=np.int64)
        self._tokens[0] = prompts.tokens

    def used(self, number: int, usage: dict[str, Any]) -> None:
        """Record the `usage` of an answer."""
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        self._tokens[:, number] = usage["prompt_tokens"], cached, usage["completion_tokens"]

    def samples(self) -> Samples:
        """The columns as arrays, with those of tokens."""
        prompt, cached, output = self._tokens[:, : len(self)]
        samples = super().samples()
        return replace(samples, prompt_tokens=prompt, cached_tokens=cached, output_tokens=output)


class CompletionGenerator(Generator):
    """Sends `prompts` at `instants`, open loop."""

    flight = CompletionRequest
    ledger: TokenLedger

    def __init__(
        self,
        address: tuple[str, int],
        name: str,
        places: Sequence[Place],
        instants: Floats,
        timeout: float,
        prompts: Prompts,
    ) -> None:
        pool = CompletionConnections(*address, SPARE_CONNECTIONS)
        super().__init__(address, name, places, instants, len(instants), timeout, connections=pool)
        self.ledger = TokenLedger(places, self.ledger.started_at, prompts)
        self._prompts = prompts
        self._address = f"{address[0]}:{address[1]}"
        self._name = name

    def is_late(self, number: int) -> bool:
        """Whether the first token of an answer came after the timeout."""
        return self.ledger.first_byte_at[number] > self.ledger.scheduled_at[number] + self._timeout

    def head(self, number: int) -> bytes:
        """Bytes of a request, its body included. The session is quoted, as any text may be its name."""
        body = body_of(self._prompts, number)
        session = self._prompts.sessions[number]
        lines = (
            "POST /v1/chat/completions HTTP/1.1",
            f"Host: {self._address}",
            "Content-Type: application/json",
            f"Content-Length: {len(body)}",
            f"X-Request-ID: {self._name}-{number}",
            *([f"X-Session-ID: {quote(session)}"] if session else ()),
        )
        return "\r\n".join((*lines, "", "")).encode() + body


def body_of(prompts: Prompts, number: int) -> bytes:
    """Body of a request for exactly as many tokens as its answer has. What is no whole block is its own."""
    blocks, per_token = prompts.blocks[number], int(BYTES_PER_TOKEN)
    text = "".join(f"{block:016x}" * (prompts.block_tokens * per_token // WORD) for block in blocks)
    rest = prompts.tokens[number] * per_token - len(text)
    text += (f"{number:016x}" * (rest // WORD + 1))[:rest]
    asked = {
        "messages": [{"role": "user", "content": text[len(ROLE) :]}],
        "max_tokens": prompts.output[number],
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    return json.dumps(asked).encode()


def usage_in(end: bytes) -> dict[str, Any] | None:
    """The `usage` of a stream from its end; None if its last event is missing."""
    events = end.rstrip().split(b"\n\n")
    if len(events) < 2 or events[-1] != LAST_EVENT:
        return None
    usage: dict[str, Any] = json.loads(events[-2].removeprefix(b"data: "))["usage"]
    return usage
