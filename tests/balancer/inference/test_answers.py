"""Answers to prompts: when tokens came, how many, and what `usage` states, streamed and in one piece."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from typing import Any, cast

import pytest

from balancer.inference.token_counts import TokenCounts
from policies.facts import Outcome, OutcomeKind
from policies.prompts import Answer
from tests.support.prompts import (
    CHATS,
    READER,
    USAGE,
    answer_with_usage,
    asked,
    asks,
    chat,
    inference,
    reader_of,
)
from tests.support.wireless import Peer, Wireless, sends

STREAM = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"
)
END = b"0\r\n\r\n"


def counts_of(stage: Wireless) -> TokenCounts:
    assert stage.cluster.prompts is not None
    return stage.cluster.prompts.counts


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def event(document: Any) -> bytes:
    return b"data: %b\n\n" % (document if isinstance(document, bytes) else json.dumps(document).encode())


def delta(**keys: Any) -> bytes:
    """An event of a chat's answer."""
    return event({"id": "x", "choices": [{"index": 0, "delta": keys, "finish_reason": None}]})


ROLE = delta(role="assistant", content="")
STOP = event({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
DONE = event(b"[DONE]")


A, B = delta(content="a"), delta(content="b")
USAGE_EVENT = event({"choices": [], "usage": USAGE})


def with_usage(tokens: int) -> bytes:
    usage = {"prompt_tokens": 50, "completion_tokens": tokens}
    return event({"choices": [{"delta": {"content": "a"}}], "usage": usage})


STREAMS: dict[str, tuple[list[bytes], tuple[int, float, float], int | None]] = {
    "chat with usage": ([ROLE, A, B, B, STOP + USAGE_EVENT + DONE], (3, 2.0, 5.0), 32),
    "chat without usage": ([ROLE, A + B, delta(content="data:"), STOP + DONE], (3, 2.0, 4.0), None),
    "completion": ([event({"choices": [{"text": "a"}]}), DONE], (1, 1.0, 2.0), None),
    "reasoning": ([ROLE, delta(reasoning_content="a"), DONE], (1, 2.0, 3.0), None),
    "name of a tool": ([ROLE, delta(tool_calls=[{"function": {"name": "f"}}])], (1, 2.0, 2.0), None),
    "argument": ([ROLE, delta(tool_calls=[{"function": {"arguments": "{"}}])], (1, 2.0, 2.0), None),
    "CRLF": ([A.replace(b"\n", b"\r\n"), B.replace(b"\n", b"\r\n")], (2, 1.0, 2.0), None),
    "no space": ([A.replace(b"data: ", b"data:"), B], (2, 1.0, 2.0), None),
    "comments": ([b": ping\n\n", A, b": ping\n\n", DONE], (1, 2.0, 4.0), None),
    "usage in two reads": ([A, USAGE_EVENT[:40], USAGE_EVENT[40:] + DONE], (3, 1.0, 3.0), 32),
    "usage in each event": (
        [with_usage(1), with_usage(2), event({"usage": None}) + DONE],
        (2, 1.0, 3.0),
        None,
    ),
    "the second event of an unknown format": ([event({"x": 1}), event({"x": 2})], (1, 2.0, 2.0), None),
    "no event": ([b": ping\n\n"], (0, -1.0, -1.0), None),
}
"""Pieces that come a second apart; tokens, and the seconds to the first and to the last; tokens that were cached."""


@pytest.mark.parametrize("kind", STREAMS)
def test_streams(kind: str) -> None:
    """The role is no token; neither are the reason of the end, `usage` and [DONE]. All pass as they come."""
    pieces, expected, cached = STREAMS[kind]
    with inference() as stage:
        client, worker = asked(stage, chat("hello", stream=True), b"/api/chat")
        sends(stage, worker, STREAM)
        for piece in pieces:
            stage.advance(1.0)
            sends(stage, worker, chunk(piece))
        sends(stage, worker, END)
        assert client.received.endswith(b"".join(map(chunk, pieces)) + END)
        (outcome,) = reader_of(stage).outcomes
        answer = outcome.answer
        assert answer is not None
        assert outcome.prompt is reader_of(stage).prompts[0]
        assert reader_of(stage).first_tokens == [one for one in [answer.first_token_at] if one is not None]
        assert (answer.tokens, *at(outcome)) == expected
        assert answer.cached_tokens == cached


def at(outcome: Outcome) -> tuple[float, float]:
    """Seconds from the request to the first and to the last token, -1 without one."""
    answer = cast(Answer, outcome.answer)
    instants = answer.first_token_at, answer.last_token_at
    first, last = (-1.0 if when is None else round(when - outcome.sent_at, 6) for when in instants)
    return first, last


@pytest.mark.parametrize(
    ("path", "cut", "is_broken"),
    [
        (CHATS, True, True),
        (b"/api/chat", True, True),
        (CHATS, False, True),
        (b"/v1/messages", False, True),
        (b"/api/chat", False, False),
        (CHATS + b"?api-version=2026-06-01", False, True),
    ],
)
def test_stream_that_breaks_off(path: bytes, cut: bool, is_broken: bool) -> None:
    """Ends as the error that it is, with the tokens so far. OpenAI's streams and Anthropic's state their end; others
    end with their body."""
    with inference() as stage:
        client, worker = asked(stage, chat("hello", stream=True), path)
        sends(stage, worker, STREAM, chunk(ROLE), chunk(delta(content="a")), chunk(delta(content="b")))
        if cut:
            worker.vanish()
            stage.turn()
        else:
            sends(stage, worker, END)
        (outcome,) = reader_of(stage).outcomes
        assert outcome.kind is (OutcomeKind.RESET if is_broken else OutcomeKind.OK)
        assert (client.ending == "end") is is_broken
        assert client.received.endswith(END) is not is_broken
        assert cast(Answer, outcome.answer).tokens == 2


@pytest.mark.parametrize(
    ("body", "pieces", "is_whole"),
    [
        (chat("hello", stream=True), [delta(content="It ends with data: [DONE]"), A], False),
        (chat("hello", stream=True), [A, DONE.replace(b" ", b"").replace(b"\n", b"\r\n")], True),
        (chat("hello", stream=True), [A.replace(b"\n", b"\r"), DONE.replace(b"\n", b"\r")], True),
        (chat("hello", stream=True), [A, STOP], True),
        (chat("hello", stream=True), [event({"content": "a", "stop": False}), event({"stop": True})], True),
        (
            chat("hello", stream=True),
            [event({"content": '"stop": true,"finish_reason":"x"', "stop": False})],
            False,
        ),
        (chat("hello", stream=True), [A.replace(b"null", b'""')] * 2, False),
        (chat("hello", stream=True), [A.replace(b"null", b'""'), STOP], True),
        (chat("hello", stream=True), [A, event({"error": {"message": "out of memory"}})], False),
        (chat("hello", stream=True, user=5), [A, B], False),
        (chat("hello", stream=True, user=5), [A, DONE], True),
    ],
)
def test_only_an_event_ends_a_stream(body: bytes, pieces: list[bytes], is_whole: bool) -> None:
    """[DONE], or the reason of the end where an engine sends none, as llama.cpp; and not a text that names it. Whether
    the prompt of the request could be read does not matter."""
    with inference() as stage:
        client, worker = asked(stage, body)
        sends(stage, worker, STREAM, *map(chunk, pieces), END)
        assert client.received.endswith(END) is is_whole
        assert [outcome.kind is OutcomeKind.OK for outcome in reader_of(stage).outcomes] == [is_whole]


@pytest.mark.parametrize("policy", ["least-in-flight", READER])
def test_any_policy_has_answers_read(policy: str) -> None:
    """Their end and their tokens; blocks of the prompt are for policies that read them."""
    with inference(policy=policy) as stage:
        client, worker = asked(stage, chat("hello" * 500, stream=True))
        stage.advance(1.0)
        sends(stage, worker, STREAM, chunk(A), chunk(event({"error": "no memory"})), END)
        assert client.ending == "end"
        assert not client.received.endswith(END)
        reader = stage.cluster.prompts
        assert reader is not None
        assert (reader.counts.ttft.count, reader.counts.output_tokens, reader.needs_blocks) == (
            1,
            1,
            policy == READER,
        )
        [outcomes] = [state.outcomes for state in stage.cluster.router.states]
        assert outcomes[OutcomeKind.RESET] == 1


LINES = STREAM.replace(b"text/event-stream; charset=utf-8", b"application/x-ndjson")


@pytest.mark.parametrize(
    ("path", "head", "pieces", "is_whole"),
    [
        (b"/mcp/messages", STREAM, [event({"jsonrpc": "2.0", "id": 1, "result": {"content": [{"text": "a"}]}})], True),
        (b"/app/messages", STREAM, [event({"type": "message", "text": "a"})] * 2, True),
        (b"/app/completions", STREAM, [b": ping\n\n"], True),
        (CHATS, STREAM, [delta(content="x" * 5000)], False),
        (CHATS, STREAM, [event({"stop": True, "prompt": "x" * 5000, "truncated": False})], True),
        (b"/v1/messages", STREAM, [event({"type": "content_block_delta", "delta": {"text": "a"}})], False),
        (CHATS, LINES, [b'{"message":{"content":"a"},"done":false}\n', b'{"done":true}\n'], True),
        (CHATS, LINES, [b'{"message":{"content":"a"},"done":false}\n'] * 2, False),
        (CHATS, LINES, [b'{"status":"a"}\n'], True),
    ],
)  # fmt: skip
def test_a_stream_is_broken_only_where_it_states_that_it_goes_on(
    path: bytes, head: bytes, pieces: list[bytes], is_whole: bool
) -> None:
    """Paths of other applications end with the same words, and an event may be longer than what is read of the end."""
    with inference() as stage:
        client, worker = asked(stage, chat("hello", stream=True), path)
        sends(stage, worker, head, *map(chunk, pieces), END)
        assert client.received.endswith(END) is is_whole
        assert [outcome.kind is OutcomeKind.OK for outcome in reader_of(stage).outcomes] == [is_whole]


def test_stream_of_json_lines() -> None:
    """Ollama's: the first token is seen when it comes, and the last line has none."""
    lines = [{"message": {"content": text}, "done": text == ""} for text in ("a", "b", "c", "")]
    with inference() as stage:
        _, worker = asked(stage, chat("hello"), b"/api/chat")
        sends(stage, worker, LINES)
        for line in lines:
            stage.advance(1.0)
            sends(stage, worker, chunk(json.dumps(line).encode() + b"\n"))
        sends(stage, worker, END)
        (outcome,) = reader_of(stage).outcomes
        assert (cast(Answer, outcome.answer).tokens, *at(outcome)) == (3, 1.0, 4.0)


def test_messages_of_anthropic() -> None:
    """Their usage has other names; what was cached is no part of the input there."""
    text, usage = {"type": "text_delta", "text": "a"}, {"input_tokens": 18, "cache_read_input_tokens": 32}
    ends = [{"type": "message_delta", "usage": {**usage, "output_tokens": 3}}, {"type": "message_stop"}]
    with inference() as stage:
        client, worker = asked(stage, chat("hello", stream=True), b"/v1/messages")
        pieces = [event({"type": "content_block_delta", "delta": text})] * 3 + [event(end) for end in ends]
        sends(stage, worker, STREAM, *map(chunk, pieces), END)
        assert client.received.endswith(END)
        answer = cast(Answer, reader_of(stage).outcomes[0].answer)
        assert (answer.prompt_tokens, answer.cached_tokens, answer.tokens) == (50, 32, 3)


def test_usage_of_anthropic_in_two_events() -> None:
    """Some engines state the input at the beginning alone, as Anthropic's first streams did."""
    usage = {"input_tokens": 18, "cache_read_input_tokens": 32, "output_tokens": 1}
    begin = event({"type": "message_start", "message": {"content": [], "usage": usage}})
    block = event({"type": "content_block_delta", "delta": {"text": "a"}})
    end = event({"type": "message_delta", "usage": {"output_tokens": 3}}) + event({"type": "message_stop"})
    for pieces in [begin, *[block] * 99, end], [begin, end], [begin + block + end]:
        with inference() as stage:
            _, worker = asked(stage, chat("hello", stream=True), b"/v1/messages")
            sends(stage, worker, STREAM, *map(chunk, pieces), END)
            answer = cast(Answer, reader_of(stage).outcomes[0].answer)
            assert (answer.prompt_tokens, answer.cached_tokens, answer.tokens) == (50, 32, 3)


@pytest.mark.parametrize("text", ["a", "a" * 300])
def test_stream_of_anthropic_that_ends_early(text: str) -> None:
    """What `message_start` states of the input counts, but not its number of output tokens, which is none."""
    usage = {"input_tokens": 18, "cache_read_input_tokens": 32, "output_tokens": 1}
    begin = event({"type": "message_start", "message": {"content": [], "usage": usage}})
    block = event({"type": "content_block_start", "content_block": {"type": "text", "text": ""}})
    deltas = [event({"type": "content_block_delta", "delta": {"text": text}})] * 20
    with inference() as stage:
        client, worker = asked(stage, chat("hello", stream=True), b"/v1/messages")
        sends(stage, worker, STREAM, *map(chunk, [begin, block, *deltas]), END)
        assert not client.received.endswith(END)
        answer = cast(Answer, reader_of(stage).outcomes[0].answer)
        assert (answer.prompt_tokens, answer.cached_tokens, answer.tokens) == (50, 32, 21)


def test_stream_of_known_length_that_lacks_its_end() -> None:
    """Its bytes are all there, so that only a reset shows that the answer is not."""
    with inference() as stage:
        client, worker = asked(stage, chat("hello", stream=True), CHATS)
        head = STREAM.replace(b"Transfer-Encoding: chunked", b"Content-Length: %d" % len(A + B))
        sends(stage, worker, head + A, B)
        assert [outcome.kind for outcome in reader_of(stage).outcomes] == [OutcomeKind.RESET]
        assert client.ending == "reset"
        assert B not in client.received


def test_stream_that_comes_in_one_read_and_lacks_its_end() -> None:
    """Nothing was sent, so that the client gets an error instead."""
    with inference() as stage:
        client, worker = asked(stage, chat("hello", stream=True), CHATS)
        head = STREAM.replace(b"Transfer-Encoding: chunked", b"Content-Length: %d" % len(A + B))
        sends(stage, worker, head + A + B)
        assert [(one.kind, one.status) for one in reader_of(stage).outcomes] == [(OutcomeKind.RESET, None)]
        assert client.received.startswith(b"HTTP/1.1 502")
        assert A not in client.received


def unstreamed(
    stage: Wireless, body: bytes, *, status: bytes = b"200 OK", fields: bytes = b"", cut: int = 0
) -> Outcome:
    """The outcome of an answer in one piece, or in two, a second later."""
    client, worker = asked(stage, chat("hello"))
    stage.advance(1.0)
    answer = b"HTTP/1.1 %b\r\n%bContent-Length: %d\r\n\r\n%b" % (status, fields, len(body), body)
    sends(stage, worker, *([answer[:-cut], answer[-cut:]] if cut else [answer]))
    assert client.received.endswith(body)
    (outcome,) = reader_of(stage).outcomes
    return outcome


@pytest.mark.parametrize("cut", [0, 60])
@pytest.mark.parametrize("more", [{}, {"prompt_logprobs": None, "note": "x" * 1000}])
def test_unstreamed(cut: int, more: dict[str, Any]) -> None:
    """Its first token is not seen before its end. A text may say what it likes."""
    text = '"usage": {"prompt_tokens": 7} ' + "x" * 10_000
    body = json.dumps({"choices": [{"message": {"content": text}}], "usage": USAGE, **more}).encode()
    with inference() as stage:
        outcome = unstreamed(stage, body, cut=cut)
        answer = cast(Answer, outcome.answer)
        assert (answer.prompt_tokens, answer.cached_tokens, answer.tokens) == (50, 32, 3)
        assert at(outcome) == (1.0, 1.0)
        assert len(reader_of(stage).first_tokens) == 1


ODD_USAGE = [
    b'{"usage": {"prompt_tokens": 1}, "then": {"usage" : {"prompt_tokens":5, "completion_tokens": 6}}}',
    b'{"usage":{"x": "}{", "prompt_tokens": 5, "y": {"z": "{}}"}, "completion_tokens": 6}, "usage": null}',
    b'{"usage": {"prompt_tokens": 5, "completion_tokens": 6, "of": "\\"usage\\"", "in": ["usage"]}, "usage":',
    b'{"usage":{%b"prompt_tokens":5,"completion_tokens":6}}'
    % b"".join(b'"%d":{},' % number for number in range(20)),
    b'{"usage": {"prompt_tokens": 5, "completion_tokens": 6, "x": NaN, "y": [{"a": {}}, {}]}} {}',
    b'{"usage": {"completion_tokens": 6, "x": "\xff", "prompt_tokens": 4, "prompt_tokens": 5}}',
]


@pytest.mark.parametrize("body", ODD_USAGE)
def test_the_last_usage_is_read_whatever_is_in_it_and_behind_it(body: bytes) -> None:
    with inference() as stage:
        answer = cast(Answer, unstreamed(stage, body).answer)
        assert (answer.prompt_tokens, answer.tokens) == (5, 6)


BAD_USAGE = [
    b'{"usage":',
    b'{"usage": {"prompt_tokens": 5',
    b'{"usage": {"prompt_tokens": -5, "completion_tokens": "3", "prompt_tokens_details": []}}',
    b'{"usage": {"prompt_tokens": 1e3, "completion_tokens": true, "prompt_tokens_details": {"cached_tokens": null}}}',
    b'{"usage": {"prompt_tokens": %b}}' % (b"9" * 4000),
    b'{"usage": {"x": %b' % (b"[" * 4000),
    b'{"usage": [1]}',
    b'{"usage": {"a": "\xff"}}',
]


@pytest.mark.parametrize("body", BAD_USAGE)
def test_usage_that_states_nothing(body: bytes) -> None:
    with inference() as stage:
        answer = cast(Answer, unstreamed(stage, body).answer)
        assert (answer.prompt_tokens, answer.cached_tokens, answer.tokens) == (None, None, 0)


@pytest.mark.parametrize(
    ("status", "fields", "counted"),
    [(b"400 Bad Request", b"", 0), (b"200 OK", b"Content-Encoding: gzip\r\n", 1)],
)
def test_answers_that_are_not_read(status: bytes, fields: bytes, counted: int) -> None:
    body = json.dumps({"usage": USAGE}).encode()
    with inference() as stage:
        answer = cast(Answer, unstreamed(stage, body, status=status, fields=fields).answer)
        assert (answer.first_token_at, answer.prompt_tokens, answer.tokens) == (None, None, 0)
        assert len(reader_of(stage).first_tokens) == counted
        assert counts_of(stage).unread == counted


def test_first_byte_of_an_encoded_stream_is_its_first_token_for_the_policy() -> None:
    """Otherwise it would take the prompt to wait until the stream has ended. No token is counted."""
    with inference() as stage:
        _, worker = asked(stage, chat("hello", stream=True))
        begun = stage.cluster.now()
        sends(stage, worker, STREAM.replace(b"\r\n\r\n", b"\r\nContent-Encoding: gzip\r\n\r\n"))
        for piece in gzip.compress(A + DONE)[:10], gzip.compress(A + DONE)[10:]:
            stage.advance(1.0)
            sends(stage, worker, chunk(piece))
        assert [at - begun for at in reader_of(stage).first_tokens] == pytest.approx([1.0])
        sends(stage, worker, END)
        assert (counts_of(stage).unread, counts_of(stage).ttft.count, counts_of(stage).output_tokens) == (
            1,
            0,
            0,
        )
        assert reader_of(stage).outcomes[0].kind is OutcomeKind.OK


def test_little_is_kept_of_a_long_answer() -> None:
    with inference() as stage:
        _, worker = asked(stage, chat("hello", stream=True))
        sends(stage, worker, STREAM, *[chunk(delta(content="x" * 50)) for _ in range(300)])
        (handler,) = [one._answering for one in stage.downstreams]  # type: ignore[attr-defined]
        assert sum(map(len, handler.last_attempt.answer._tail)) < 5000


def test_client_that_leaves_ends_the_answer() -> None:
    with inference() as stage:
        client, worker = asked(stage, chat("hello", stream=True))
        sends(stage, worker, STREAM, chunk(ROLE), chunk(delta(content="a")))
        client.end()
        stage.turn()
        (outcome,) = reader_of(stage).outcomes
        assert outcome.kind is OutcomeKind.ABANDONED
        assert cast(Answer, outcome.answer).tokens == 1
        assert not worker.is_open


MESSAGE_STOP = event({"type": "message_delta", "usage": {"output_tokens": 2}}) + event(
    {"type": "message_stop"}
)


@pytest.mark.parametrize("ends", [Peer.end, Peer.vanish])
@pytest.mark.parametrize(
    ("head", "last", "is_whole"),
    [
        (STREAM, STOP + USAGE_EVENT + DONE, True),
        (STREAM, DONE.replace(b"\n", b"\r\n"), True),
        (STREAM, MESSAGE_STOP, True),
        (STREAM, event({"stop": True}), True),
        (LINES, b'{"done":true}\n', True),
        (STREAM, STOP, False),
        (STREAM, delta(content="data: [DONE]"), False),
        (STREAM.replace(b"text/event-stream", b"application/json"), b'{"done":true}', False),
        (STREAM.replace(b"\r\n\r\n", b"\r\nContent-Encoding: x\r\n\r\n"), DONE, False),
    ],
)
def test_client_that_leaves_behind_the_last_event_has_its_answer(
    ends: Callable[[Peer], None], head: bytes, last: bytes, is_whole: bool
) -> None:
    """OpenAI's client closes as soon as it has [DONE]: the end of the body comes later. Behind a `finish_reason`
    further choices may come."""
    with inference() as stage:
        client, worker = asked(stage, chat("hello", stream=True))
        sends(stage, worker, head, chunk(A), chunk(B), chunk(last))
        ends(client)
        stage.turn()
        (outcome,) = reader_of(stage).outcomes
        assert outcome.kind is (OutcomeKind.OK if is_whole else OutcomeKind.ABANDONED)
        counts = stage.cluster.counts
        assert (counts.abandoned, counts.responses[200]) == (0 if is_whole else 1, 1)
        assert not worker.is_open
        if last.startswith(STOP + USAGE_EVENT):
            answer = cast(Answer, outcome.answer)
            assert (answer.prompt_tokens, answer.cached_tokens, answer.tokens) == (50, 32, 3)
            assert (counts_of(stage).prompt_tokens, counts_of(stage).output_tokens) == (50, 3)


def test_edited_attempts_are_read_too() -> None:
    """Fields that are set make attempts of another class."""
    with inference(headers=(("response", (("set", (("X-By", "us"),)),)),)) as stage:
        client, worker = asked(stage, chat("hello"))
        sends(stage, worker, answer_with_usage())
        assert b"X-By: us" in client.received
        assert cast(Answer, reader_of(stage).outcomes[0].answer).tokens == 3


def test_counts() -> None:
    """A request that a worker refuses has no answer; time to first token is that of the request, not of the attempt."""
    with inference(2) as stage:
        client = stage.client()
        sends(stage, client, asks(chat("hello", stream=True)))
        stage.advance(2.0)
        sends(stage, stage.workers[0], b"HTTP/1.1 429 Busy\r\nContent-Length: 0\r\n\r\n")
        stage.advance(1.0)
        worker = stage.workers[1]
        sends(stage, worker, STREAM, chunk(delta(content="a")))
        stage.advance(0.5)
        sends(stage, worker, chunk(delta(content="b")), chunk(event({"usage": USAGE}) + DONE), END)
        counts = counts_of(stage)
        assert [counts.prompts, counts.prompt_tokens, counts.output_tokens] == [1, 50, 3]
        assert [counts.ttft.count, counts.ttft.total] == pytest.approx([1, 3.0])
        assert [counts.tpot.count, counts.tpot.total] == pytest.approx([1, 0.25])
