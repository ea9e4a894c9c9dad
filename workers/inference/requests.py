"""Bodies of OpenAI's chat and completions API, the tokens and blocks of their prompts, and the answers to them.

No text is tokenized: BYTES_PER_TOKEN bytes of a prompt are a token. A block's hash is chained with that of the block
before it, so equal hashes mean equal prefixes.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from hashlib import blake2b
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from workers.inference.sequence import Sequence

BYTES_PER_TOKEN = 4

WORDS = ("an", "engine", "reads", "a", "prompt", "once", "then", "writes", "one", "token", "per", "step")
"""Token i of an answer is one of these: the first depends on the prompt, the others follow."""


class StreamOptions(BaseModel):
    include_usage: bool | None = None


class Body(BaseModel):
    """Fields that both APIs share; others are ignored. `ignore_eos` is vLLM's: answer with exactly `max_tokens`."""

    model_config = ConfigDict(strict=True)

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: int | None = Field(default=None, ge=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    ignore_eos: bool | None = None
    n: int | None = Field(default=None, ge=1, le=1)

    @property
    def most(self) -> int | None:
        """Most tokens of the answer, None where the request does not say."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    def prompt_bytes(self) -> bytes:
        """The prompt as the engine reads it."""
        raise NotImplementedError


class Message(BaseModel):
    role: str
    content: str | list[dict[str, Any]] | None = None


class ChatBody(Body):
    """Body of /v1/chat/completions."""

    messages: list[Message] = Field(min_length=1)
    tools: list[Any] | None = None

    def prompt_bytes(self) -> bytes:
        lines = [json.dumps(self.tools)] if self.tools else []
        for message in self.messages:
            parts = (
                message.content if isinstance(message.content, list) else [{"text": message.content or ""}]
            )
            texts = [
                part["text"] if isinstance(part.get("text"), str) else json.dumps(part) for part in parts
            ]
            lines.append(f"<{message.role}>{''.join(texts)}")
        return "\n".join(lines).encode()


def only_prompt(said: Any) -> Any:
    """The prompt of a list of one, as some clients always send. Raises `ValueError` for a batch."""
    if not isinstance(said, list) or not said or not isinstance(said[0], str | list):
        return said
    if len(said) > 1:
        raise ValueError("several prompts in one request (a batch) are not supported")
    return said[0]


class CompletionBody(Body):
    """Body of /v1/completions: one prompt, as text or as token ids, perhaps in a list of one."""

    prompt: Annotated[str | list[int], BeforeValidator(only_prompt)]

    def prompt_bytes(self) -> bytes:
        if isinstance(self.prompt, str):
            return self.prompt.encode()
        return b"".join((token & 0xFFFFFFFF).to_bytes(BYTES_PER_TOKEN, "big") for token in self.prompt)


def tokens_of(prompt: bytes) -> int:
    """Tokens of a prompt, at least one."""
    return max(1, -(-len(prompt) // BYTES_PER_TOKEN))


def blocks_of(prompt: bytes, block_tokens: int) -> list[int]:
    """Chained hashes of the whole blocks of a prompt."""
    size = block_tokens * BYTES_PER_TOKEN
    blocks, before = [], b""
    for start in range(0, len(prompt) - size + 1, size):
        before = blake2b(before + prompt[start : start + size], digest_size=8).digest()
        blocks.append(int.from_bytes(before, "big"))
    return blocks


class Answer:
    """Response to one request, whole or in chunks."""

    def __init__(self, body: Body, model: str, request_id: str, sequence: Sequence, first_word: int) -> None:
        self._is_chat = isinstance(body, ChatBody)
        self._sequence = sequence
        self._first_word = first_word
        self._finish_reason = "length" if sequence.output == body.most else "stop"
        self._shows_usage = bool(body.stream_options and body.stream_options.include_usage)
        self._head: dict[str, Any] = {
            "id": f"{'chatcmpl' if self._is_chat else 'cmpl'}-{request_id}",
            "object": "chat.completion" if self._is_chat else "text_completion",
            "created": int(datetime.now(UTC).timestamp()),
            "model": model,
        }
        chunk = dict(self._head)
        if self._is_chat:
            chunk["object"] += ".chunk"
        if self._shows_usage:
            chunk["usage"] = None
        self._chunk = json.dumps(chunk)[:-1]

    def whole(self) -> bytes:
        """The answer in one piece."""
        text = "".join(map(self._word, range(self._sequence.output)))
        said = {"message": {"role": "assistant", "content": text}} if self._is_chat else {"text": text}
        choice = {"index": 0, **said, "logprobs": None, "finish_reason": self._finish_reason}
        return json.dumps({**self._head, "choices": [choice], "usage": self._usage()}).encode()

    def events(self, first: int, end: int) -> bytes:
        """Server-sent events of the tokens from `first` to before `end`."""
        last = self._sequence.output - 1
        return b"".join(
            self._event(i, f'"{self._finish_reason}"' if i == last else "null") for i in range(first, end)
        )

    def closing(self) -> bytes:
        """Server-sent events after the last token."""
        usage = ""
        if self._shows_usage:
            whole = {**json.loads(self._chunk + "}"), "choices": [], "usage": self._usage()}
            usage = f"data: {json.dumps(whole)}\n\n"
        return f"{usage}data: [DONE]\n\n".encode()

    def _event(self, i: int, finish_reason: str) -> bytes:
        said = f'"text": "{self._word(i)}"'
        if self._is_chat:
            role = '"role": "assistant", ' if i == 0 else ""
            said = f'"delta": {{{role}"content": "{self._word(i)}"}}'
        choice = f'{{"index": 0, {said}, "logprobs": null, "finish_reason": {finish_reason}}}'
        return f'data: {self._chunk}, "choices": [{choice}]}}\n\n'.encode()

    def _word(self, i: int) -> str:
        return (" " if i else "") + WORDS[(self._first_word + i) % len(WORDS)]

    def _usage(self) -> dict[str, Any]:
        sequence = self._sequence
        return {
            "prompt_tokens": sequence.tokens,
            "completion_tokens": sequence.output,
            "total_tokens": sequence.tokens + sequence.output,
            "prompt_tokens_details": {"cached_tokens": sequence.cached},
        }
