"""Reads the prompt of a request from its body, once for all attempts. A body without one is forwarded all the same.

What is read is the JSON as it came: two bodies that differ in spaces are two prompts, and text is not checked for valid
UTF-8, which is the worker's task. A list of token ids is a prompt like any other, whose tokens are counted.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Any, Final

from balancer.inference.answer_reader import STATE_END, AnswerReader, find_content
from balancer.inference.token_counts import TokenCounts
from balancer.upstream.request import RequestBody
from policies.prompts import BLOCK_BYTES, BYTES_PER_TOKEN, Prompt
from policies.routing.assignment import Assignment
from policies.routing.router import Router

NOT_KEPT: Final = "not_kept"
"""The body is longer than `buffering.request`, or beyond `buffering.total`: it is streamed."""

ENCODED: Final = "encoded"
"""The body has a Content-Encoding."""

NOT_JSON: Final = "not_json"
"""The body is not a JSON object: truncated, of another type, or in no known encoding."""

WRONG_TYPE: Final = "wrong_type"
"""A key has a value of another type than OpenAI's API defines."""

TOO_DEEP: Final = "too_deep"
"""The JSON is nested too deeply to be read."""

NO_PROMPT: Final = "no_prompt"
"""There are neither `messages` nor a `prompt`."""

REASONS: Final = (NOT_KEPT, ENCODED, NOT_JSON, WRONG_TYPE, TOO_DEEP, NO_PROMPT)

NAME_LIMIT: Final = 256
"""Characters of a model's and a session's name that are kept: policies count by model."""

_OF_TOKENS: Final = re.compile(rb"\[\s*(?:\[\s*)?\d").match
LIST: Final = b"["
OBJECT: Final = b"{"
TEXT: Final = b'"'
ABSENT: Final = (b"", b"n")
"""Beginnings of the JSON of a key that is not there, or null."""

BLOCK: Final = BLOCK_BYTES
PER_TOKEN: Final = BYTES_PER_TOKEN


class PromptReader:
    """Reads prompts for one cluster. `unread` counts bodies without one by reason, `counts` what was read."""

    needs_blocks = True  # a policy does; others leave their answers to be counted

    def __init__(self) -> None:
        from balancer.inference import completion_body as body  # an extra, which other clusters do not need

        self._decode = body.decode
        self._digest = body.digest
        self._value_of = body.value_of
        self._values = body.values
        self._absent = body.ABSENT
        self._decode_error = body.DecodeError
        self._validation_error = body.ValidationError
        self.counts = TokenCounts()
        self.unread: Counter[str] = Counter()

    def prompt_of(self, body: RequestBody | None, head: bytes, session: str | None) -> Prompt | None:
        """Return the prompt of a request, None if its body is none or has none. `session` is what its fields name."""
        if body is None:
            return None
        if body.trailers is None or body.is_spent:
            self.unread[NOT_KEPT] += 1
            return None
        data = body.whole()
        try:
            prompt = self._prompt(self._decode(data), session)
        except RecursionError:
            reason = TOO_DEEP
        except self._validation_error:
            reason = WRONG_TYPE
        except (self._decode_error, UnicodeDecodeError):
            reason = ENCODED if None in [found[1] for found in find_content(head)] else NOT_JSON
        else:
            if prompt is not None:
                self.counts.prompts += 1
                return prompt
            reason = NO_PROMPT
        self.unread[reason] += 1
        return None

    def answer_reader(
        self, router: Router, assignment: Assignment, asked_at: float, target: bytes
    ) -> AnswerReader | None:
        """Return the reader of the answer to an attempt at a request with a prompt, which came at `asked_at`. Without
        one, its end is read where it must be stated."""
        prompt = assignment.facts.prompt
        states_end = target.partition(b"?")[0].endswith(STATE_END)
        if prompt is None and not states_end:
            return None
        return AnswerReader(router, assignment, prompt, self.counts, asked_at, states_end, self._value_of)

    def _prompt(self, found: Any, session: str | None) -> Prompt | None:
        """Return the prompt of a decoded body. Raises what `decode` raises for a value of the wrong type."""
        values = self._values(found)  # one call instead of ten look-ups
        named, messages, prompt, tools, system, is_streamed, most, most_completion, session_id, user = values
        model = named or ""
        text = bytes(messages)
        first = text[:1]
        if first in ABSENT:
            text = bytes(prompt)
            first = text[:1]
            if first in ABSENT:
                return None
        elif first != LIST:
            raise self._validation_error("messages must be a list")
        if first != LIST and first != TEXT:
            raise self._validation_error("prompt must be a text or a list")
        tokens, block_tokens = float(len(text)) / PER_TOKEN, BLOCK / PER_TOKEN
        if first == LIST and text[1:2] != OBJECT and _OF_TOKENS(text) is not None:
            tokens = text.count(b",") + 1.0
            block_tokens = BLOCK * tokens / len(text)
        # They come before the messages in what a model reads; `system` is Anthropic's.
        if tools is not self._absent or system is not self._absent:
            before = b"".join(each for each in (bytes(tools), bytes(system)) if each[:1] in (LIST, TEXT))
            tokens += float(len(before)) / PER_TOKEN
            text = before + text
        return Prompt(
            tokens,
            self._blocks(text, model) if self.needs_blocks else (),
            block_tokens,
            model[:NAME_LIMIT],
            (session or session_id or user or "")[:NAME_LIMIT],
            max(0, most_completion or most or 0),
            is_streamed is True,
        )

    def _blocks(self, text: bytes, model: str) -> list[int]:
        """Return the chained hashes of the whole blocks of a text; models have nothing in common."""
        digest, found, end = self._digest, list[int](), BLOCK
        last: Any = digest(model.encode(), 0)  # not int: compiled, it would be converted twice for each block
        while end <= len(text):
            last = digest(text[end - BLOCK : end], last)
            found.append(last)
            end += BLOCK
        return found
