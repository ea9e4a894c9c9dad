"""Reads the answer to a prompt while it passes: when its tokens came, how many, and what its `usage` states.

Nothing is copied but the last bytes, where `usage` is, once the answer has ended. In a stream of server-sent events an
event is a token, in one of JSON lines a line; its text is not parsed. An answer with a status other than 200 is not
read, nor one with a Content-Encoding, whose first byte is taken for the first token where that concerns routing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, Final

from balancer.errors import ConnectionBroken
from balancer.http.h1.response_head import Response
from balancer.inference.token_counts import TokenCounts
from policies.prompts import INPUT_TOKENS, Answer, Prompt
from policies.routing.assignment import Assignment
from policies.routing.router import Router

TAIL: Final = 4096
"""Bytes of the end of an answer in which `usage` is looked for: it comes last, or before a few more keys."""

MOST_TOKENS: Final = 1 << 40
"""Bound on what `usage` may state."""

EVENT: Final = b"\ndata:"
FIRST_EVENT: Final = b"data:"
JSON_LINES: Final = b"application/x-ndjson"
LINE: Final = b"\n{"
"""Beginning of an event behind others in such a stream."""

_has_done: Final = re.compile(rb"\ndata: ?\[DONE\]").search
"""Finds the last event of a stream. In a text a line's end is escaped."""

_find_states: Final = re.compile(
    rb'("finish_reason" ?: ?"(?!")|"(?:stop|done)" ?: ?true|"type" ?: ?"message_stop"|[\r\n]data: ?\[DONE\])'
    rb'|"(?:choices" ?: ?\[\{|finish_reason" ?: ?(?:null|"")|(?:stop|done)" ?: ?false'
    rb'|type" ?: ?"(?:content_block|message)_)'
).findall
"""Finds the marks of the last event of a stream, as some engines send no [DONE], or, outside the group, those of one
that continues; slow. Other streams have neither. In a text quotes are escaped."""

NOT_LAST: Final = b'"finish_reason'
"""Beginning of what states an end although events may follow: of other choices, and `usage`."""

STATE_END: Final = (b"/completions", b"/messages")
"""Ends of the paths whose streams state their end: those of OpenAI's API, chats included, and of Anthropic's."""

_has_token: Final = re.compile(
    rb'"(?:content|text|reasoning_content|reasoning|refusal|arguments|name)" ?: ?"(?!")'
).search
"""Finds a text in an event that is not empty: in a delta of a message, its reasoning or a call of a tool, or in a
completion."""

find_content: Final = re.compile(
    rb"\n[cC](?i:ontent-(?:type:[ \t]*(text/event-stream|application/x-ndjson)"
    rb"|encoding:[ \t]*(?!identity[ \t]*\r)[^\r \t]))"
).finditer
"""Finds both fields in one pass; the group is the type of a stream, None for an encoding."""

USAGE: Final = b'"usage"'
OPENING: Final = 0x7B
"""An opening brace, as an integer: a search for a string of one byte raises and catches an exception first."""

LF: Final = 0x0A
COLONS: Final = (b":", b": ", b" :", b" : ")

USAGE_OBJECTS: Final = 8
"""Objects in `usage` up to which its end is looked for by its braces: the usual ones are three."""

_value: Final = json.JSONDecoder().raw_decode


class AnswerReader:
    """Reads the answer to one attempt. `facts` is what is known of it so far."""

    error: ConnectionBroken | None = None  # of a stream that has ended without its last event

    def __init__(
        self,
        router: Router,
        assignment: Assignment,
        prompt: Prompt | None,
        counts: TokenCounts,
        asked_at: float,
        states_end: bool,
        value_of: Callable[[bytes], Any],
    ) -> None:
        """Without a prompt, only the end of a stream is read. `asked_at` is when the request came. `states_end`: its
        stream states that it is whole. `value_of` is that of `completion_body.py`."""
        self.facts = Answer()
        self._router = router
        self._assignment = assignment
        self._prompt = prompt
        self._counts = counts
        self._asked_at = asked_at
        self._states_end = states_end
        self._value_of = value_of
        self._is_read = self._is_stream = self._is_unseen = False
        self._event, self._first = EVENT, FIRST_EVENT
        self._events = 0  # before the first token
        self._tail: list[bytes] = []
        self._kept = 0  # bytes in it
        self._start = b""  # of a stream: what was kept when its first token came

    def begin(self, response: Response) -> None:
        """Take the head of the answer, which may be one of before."""
        content = response.content
        if content is None:
            content = response.content = [found[1] for found in find_content(response.block)]
        self._is_read = response.status == 200 and None not in content
        if response.status == 200 and not self._is_read:
            self._counts.unread += 1
            self._is_unseen = True
        self._is_stream = len(content) > 0
        if JSON_LINES in content:
            self._event, self._first = LINE, LINE[1:]

    def came(self, data: bytes, now: float) -> None:
        """Take bytes of the body."""
        if not self._is_read:
            if self._is_unseen:
                self._is_unseen = False
                self._router.first_token(self._assignment, now)
            return
        tail, facts = self._tail, self.facts
        tail.append(data)
        self._kept += len(data)
        while self._kept - len(tail[0]) >= TAIL:
            self._kept -= len(tail.pop(0))
        if not self._is_stream or self._prompt is None:
            return
        event = self._event
        several = LF in data[:-5]  # mostly one comes alone, and a count is slow
        events = (data.count(event) if several else 0) + data.startswith(self._first)
        if facts.first_token_at is None:
            found = _has_token(data)
            if found is not None:
                events = 1 + data.count(event, found.end())
            elif self._events + events < 2:  # the first may only name the role
                self._events += events
                return
            else:
                events += self._events - 1
            self._first_token(now)
            self._start = tail[0]
        if events:
            facts.tokens += events
            facts.last_token_at = now

    def whole(self, response: Response, body: bytes, now: float) -> None:
        """Take an answer that has come in one piece."""
        self.begin(response)
        self.came(body, now)
        self.end(now)

    def end(self, now: float) -> None:
        """Take the end of the body."""
        if not self._is_read:
            return
        facts, tail = self.facts, self._last()
        if self._is_stream and self._states_end and _has_done(b"\n" + tail) is None:
            states = _find_states(tail)
            if states and not any(states):
                self.error = ConnectionBroken("the stream has ended without [DONE]")
        if self._prompt is None:
            return
        if not self._is_stream:  # nothing shows when its first token was there
            self._first_token(now)
            facts.last_token_at = now
        elif facts.first_token_at is not None:
            facts.tokens = max(1, facts.tokens - _events_without_token(tail, self._event))
        usage = _usage_in(tail, self._value_of)
        tokens = _number(usage, "completion_tokens")
        if tokens is not None:
            facts.tokens = tokens
        else:
            start = _usage_in(self._start.partition(b"content_block")[0], self._value_of)
            if "output_tokens" in usage or "output_tokens" in start:  # Anthropic's
                if usage != start:  # which states no count of the output
                    facts.tokens = _number(usage, "output_tokens") or facts.tokens
                # What was cached is not among the tokens of the input.
                parts = [_number(start | usage, name) for name in INPUT_TOKENS]
                facts.prompt_tokens, facts.cached_tokens = sum(each or 0 for each in parts) or None, parts[0]
                return
        facts.prompt_tokens = _number(usage, "prompt_tokens")
        facts.cached_tokens = _number(usage.get("prompt_tokens_details"), "cached_tokens")

    def ends_early(self, now: float) -> bool:
        """Return whether the last event of a stream has come, as behind which some clients close; then take it for the
        end of the body."""
        states = _find_states(self._last()) if self._is_stream else []
        is_over = any(state and not state.startswith(NOT_LAST) for state in states)
        if is_over:
            self.end(now)
        return is_over

    def _last(self) -> bytes:
        """Return the last bytes that have come."""
        pieces = self._tail
        return (pieces[0] if len(pieces) == 1 else b"".join(pieces))[-TAIL:]

    def settled(self) -> Answer | None:
        """Count the answer, whole or not, if it has begun; return what is known of it, None without a prompt."""
        if self._prompt is None:
            return None
        if self.facts.first_token_at is not None:
            self._counts.add(self._prompt, self.facts)
        return self.facts

    def _first_token(self, now: float) -> None:
        self.facts.first_token_at = now
        self._counts.ttft.record(now - self._asked_at)
        self._router.first_token(self._assignment, now)


def _events_without_token(tail: bytes, start: bytes) -> int:
    """Return how many events at the end of a stream have no token: the reason of its end, `usage`, and [DONE]."""
    found = 0
    for event in reversed((b"\n" + tail).split(start)[1:]):
        if _has_token(event) is not None:
            break
        found += 1
    return found


def _usage_in(tail: bytes, value_of: Callable[[bytes], Any]) -> dict[str, Any]:
    """Return the last `usage` in the end of an answer, empty without one. In a text its quotes are escaped."""
    at, brace, colon, rest = len(tail), b"", b"", b""
    while not brace or colon not in COLONS:
        before, found, _ = tail[:at].rpartition(USAGE)
        if not found:
            return {}
        at = len(before)
        colon, brace, rest = tail[at + len(USAGE) :].partition(b"{")
    end = objects = 0
    for closed, piece in enumerate(rest.split(b"}", USAGE_OBJECTS)):
        end += len(piece) + 1
        objects += OPENING in piece
        if objects == closed:
            usage = value_of(b"{" + rest[:end])
            if isinstance(usage, dict):
                return usage
            break
    try:
        usage, _ = _value("{" + rest.decode("latin-1"))
    except (ValueError, RecursionError):
        return {}
    return usage if isinstance(usage, dict) else {}


def _number(values: object, name: str) -> int | None:
    """Return a count of tokens from `usage`, None where it states none that can be one."""
    value = values.get(name) if isinstance(values, dict) else None
    return value if type(value) is int and 0 <= value <= MOST_TOKENS else None
