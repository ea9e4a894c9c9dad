"""Prompts of requests as a policy that reads them gets them, and bodies that have none."""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from balancer.__main__ import main
from balancer.config.schema.policy_spec import plain
from balancer.inference import prompt_reader
from balancer.inference.prompt_reader import PromptReader
from balancer.process.member import prompt_memory
from policies.prompts import BLOCK_BYTES, Prompt
from tests.support.command_line import complaint, run_in_process
from tests.support.prompts import READER, asks, chat, inference, reader_of
from tests.support.wireless import Wireless, sends

LONG = "lorem ipsum dolor sit amet " * 200


def read(body: bytes, fields: bytes = b"", **options: Any) -> Prompt:
    """What the policy gets of a request, whose worker gets it as it came."""
    with inference(**options) as stage:
        sends(stage, stage.client(), asks(body, fields))
        assert stage.workers[0].received.endswith(b"\r\n\r\n" + body)
        (prompt,) = reader_of(stage).prompts
        assert prompt is not None
        return prompt


def common(first: bytes, second: bytes) -> int:
    """How many blocks the prompts of two bodies have in common, from the first one on."""
    blocks, others = read(first).blocks, read(second).blocks
    pairs = list(zip(blocks, others, strict=False))
    same = [one == other for one, other in pairs]
    number = same.index(False) if False in same else len(same)
    assert not any(same[number:])
    return number


def test_facts() -> None:
    body = chat(LONG, stream=True, max_tokens=7, user="ann")
    prompt = read(body)
    text = json.dumps(json.loads(body)["messages"])
    assert (prompt.model, prompt.session, prompt.is_streamed, prompt.max_tokens) == ("m", "ann", True, 7)
    assert prompt.tokens == len(text) / 4
    assert len(prompt.blocks) == len(text) // BLOCK_BYTES
    assert prompt.block_tokens == BLOCK_BYTES / 4
    assert all(0 <= block < 1 << 64 for block in prompt.blocks)


def test_facts_that_are_not_there() -> None:
    prompt = read(b'{"prompt":"hi","stream":null,"max_tokens":null,"max_completion_tokens":9,"x":[{}]}')
    assert (prompt.model, prompt.session, prompt.is_streamed, prompt.max_tokens) == ("", "", False, 9)
    assert (prompt.tokens, prompt.blocks) == (1.0, [])


@pytest.mark.parametrize(
    ("fields", "keys", "options", "session"),
    [
        (b"X-Session-ID: f\r\n", {"session_id": "s", "user": "u"}, {}, "f"),
        (b"", {"session_id": "s", "user": "u"}, {}, "s"),
        (b"", {}, {}, ""),
        (b"", {"user": "u"}, {"key": (("by", "path"),)}, "u"),
    ],
)
def test_session(fields: bytes, keys: dict[str, str], options: dict[str, Any], session: str) -> None:
    """The field, then the body; a key that names no session is none. `"user"` within a text is not found."""
    assert read(chat('"user": "x"', **keys), fields, **options).session == session


def test_equal_prefixes_have_equal_blocks() -> None:
    """A conversation that goes on has the blocks of its beginning; a difference changes all blocks behind it."""
    once, more = chat(LONG), chat(LONG, LONG)
    assert common(once, more) == len(read(once).blocks) == 10
    assert common(more, chat(LONG, "x" + LONG)) == 10
    assert common(once, chat("x" + LONG)) == 0


def test_models_and_tools_have_blocks_of_their_own() -> None:
    """Tools come before the messages."""
    tools = [{"type": "function", "function": {"name": "f", "description": LONG}}]
    assert common(chat(LONG), chat(LONG, model="other")) == 0
    assert (
        common(chat(LONG, tools=tools), chat("other", tools=tools)) == len(json.dumps(tools)) // BLOCK_BYTES
    )
    assert common(chat(LONG, tools=tools), chat(LONG)) == 0


def test_system_of_anthropic_comes_before_the_messages() -> None:
    """A text or a list, behind the tools."""
    tools = [{"name": "f", "description": LONG}]
    for system in (LONG, [{"type": "text", "text": LONG}]):
        both = chat("one", system=system, tools=tools)
        assert common(both, chat("two", system=system, tools=tools)) == len(read(both).blocks)
        assert common(both, chat("one", tools=tools)) == len(json.dumps(tools)) // BLOCK_BYTES
        assert read(both).tokens - read(chat("one")).tokens == len(json.dumps(tools) + json.dumps(system)) / 4


def test_spaces_make_another_prompt() -> None:
    body = chat(LONG)
    compact = json.dumps(json.loads(body), separators=(",", ":")).encode()
    assert common(body, compact) == 0


def test_token_ids_are_counted() -> None:
    """And lists of one length are different prompts."""
    first, second = ([*range(start, start + 1000)] for start in (1000, 2000))
    bodies = [json.dumps({"prompt": ids}).encode() for ids in (first, second)]
    prompt = read(bodies[0])
    assert prompt.tokens == 1000
    assert prompt.block_tokens == pytest.approx(BLOCK_BYTES / len(json.dumps(first)) * 1000)
    assert common(*bodies) == 0


def test_content_parts() -> None:
    parts = [{"type": "text", "text": LONG}, {"type": "image_url", "image_url": {"url": "data:,x"}}]
    body = json.dumps({"messages": [{"role": "user", "content": parts}]}).encode()
    assert len(read(body).blocks) == 10


def test_model_that_is_null_is_none() -> None:
    assert (read(b'{"prompt":"x","model":null}').model, read(b'{"prompt":"x"}').model) == ("", "")


def test_last_of_two_equal_keys_counts() -> None:
    assert read(b'{"model":"a","prompt":"x","model":"b","prompt":"longer"}').tokens == len('"longer"') / 4


def test_invalid_utf8_in_a_text_is_left_to_the_worker() -> None:
    assert read(b'{"prompt":"\xff\xfe"}').tokens == 1.0


DEEP = 100_000

BAD: dict[str, tuple[bytes, bytes, str]] = {
    "truncated": (chat(LONG)[:-1], b"", prompt_reader.NOT_JSON),
    "empty list": (b"[]", b"", prompt_reader.WRONG_TYPE),
    "no JSON": (b"--boundary\r\n", b"", prompt_reader.NOT_JSON),
    "gzip": (gzip.compress(chat(LONG)), b"Content-Encoding: gzip\r\n", prompt_reader.ENCODED),
    "gzip, not stated": (gzip.compress(chat(LONG)), b"", prompt_reader.NOT_JSON),
    "invalid UTF-8 in a name": (b'{"model":"\xff","prompt":"x"}', b"", prompt_reader.NOT_JSON),
    "half of a surrogate pair": (b'{"prompt":"\\ud800"}', b"", prompt_reader.NOT_JSON),
    "messages are a text": (b'{"messages":"x"}', b"", prompt_reader.WRONG_TYPE),
    "prompt is a number": (b'{"prompt":1}', b"", prompt_reader.WRONG_TYPE),
    "stream is a text": (b'{"prompt":"x","stream":"yes"}', b"", prompt_reader.WRONG_TYPE),
    "model is a list": (b'{"prompt":"x","model":["m"]}', b"", prompt_reader.WRONG_TYPE),
    "deep": (b'{"messages":%b%b}' % (b"[" * DEEP, b"]" * DEEP), b"", prompt_reader.TOO_DEEP),
    "deep elsewhere": (b'{"prompt":"x","y":%b%b}' % (b"[" * DEEP, b"]" * DEEP), b"", prompt_reader.TOO_DEEP),
    "neither": (b'{"model":"m","input":"x","messages":null}', b"", prompt_reader.NO_PROMPT),
}


@pytest.mark.parametrize("kind", BAD)
def test_body_without_a_prompt_is_forwarded_as_it_came(kind: str) -> None:
    """It is routed by the policy without a prompt, and counted by the reason."""
    body, fields, reason = BAD[kind]
    with inference() as stage:
        client = stage.client()
        sends(stage, client, asks(body, fields))
        (worker,) = stage.workers
        assert worker.received.endswith(b"\r\n\r\n" + body)
        assert reader_of(stage).prompts == [None]
        assert stage.cluster.prompts is not None
        assert dict(stage.cluster.prompts.unread) == {reason: 1}
        sends(stage, worker, b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        assert client.received.endswith(b"ok")
        assert reader_of(stage).outcomes[0].answer is None


def test_every_reason_is_tested() -> None:
    assert {reason for *_, reason in BAD.values()} | {prompt_reader.NOT_KEPT} == {*prompt_reader.REASONS}


@pytest.mark.parametrize("announced", [True, False])
def test_body_that_is_too_long_is_streamed(announced: bool) -> None:
    body = chat("x" * 3000)
    with inference(buffering=(("request", 2000),)) as stage:
        request = asks(body)
        if not announced:
            length = b"Content-Length: %d\r\n\r\n" % len(body)
            chunk = b"Transfer-Encoding: chunked\r\n\r\n%x\r\n" % len(body)
            request = request.replace(length, chunk)
        sends(stage, stage.client(), request[:-100], request[-100:])
        assert request[-100:] in stage.workers[0].received
        assert reader_of(stage).prompts == [None]
        assert stage.cluster.prompts is not None
        assert dict(stage.cluster.prompts.unread) == {prompt_reader.NOT_KEPT: 1}


def test_body_in_pieces_is_read_when_it_is_whole() -> None:
    body = chat(LONG)
    with inference() as stage:
        request = asks(body)
        sends(stage, stage.client(), *(request[at : at + 700] for at in range(0, len(request), 700)))
        (prompt,) = reader_of(stage).prompts
        assert prompt is not None
        assert prompt.blocks == read(body).blocks
        assert stage.workers[0].received.endswith(b"\r\n\r\n" + body)


def test_further_attempts_have_the_same_prompt() -> None:
    """It is read once, also where the request waits in the queue before."""
    with inference(2, limits=(("in_flight", 1),)) as stage:
        sends(stage, stage.client(), asks(chat("first")))
        sends(stage, stage.client(), asks(chat("second")))
        sends(stage, stage.workers[0], b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        sends(stage, stage.workers[0], b"HTTP/1.1 429 Busy\r\nContent-Length: 0\r\n\r\n")
        policy = reader_of(stage)
        _, second, again = policy.prompts
        assert second is again
        assert policy.assigned_to == ["w0", "w0", "w1"]
        assert stage.cluster.prompts is not None
        assert stage.cluster.prompts.counts.prompts == 2


# --- what other clusters pay


def test_reading_begins_and_ends_with_the_policy() -> None:
    """A policy at run time; wrapped ones are found."""
    with Wireless(sticky=(("header", "X-User"),), policy=READER) as stage:
        first = stage.cluster.prompts
        assert isinstance(first, PromptReader)
        plane = stage.control_plane
        plane.apply_policy(plane.policy.model_validate("round-robin"))
        assert stage.cluster.prompts is None
        plane.apply_policy(plane.policy.model_validate(READER))
        assert stage.cluster.prompts is first


def test_processes_share_the_memory_of_the_prefix_index() -> None:
    """That of each cluster for inference, with policies that are set later too."""
    with inference(
        clusters=(("next", (("kind", "http"), ("endpoints", ((("id", "n"), ("address", "http://n:1")),)))),)
    ) as stage:
        plane = stage.control_plane
        assert [*prompt_memory(plane.config.settings)] == [""]
        memory = memoryview(b"")
        plane.share_prompts(memory)
        first = reader_of(stage)
        plane.apply_policy(plane.policy.model_validate(READER))
        assert first is not reader_of(stage)
        assert first.memory is reader_of(stage).memory is memory
        beside = {"name": READER, "canary": {"name": "random", "share": 0.5}, "shadow": ["round-robin"]}
        plane.apply_policy(plane.policy.model_validate(beside))
        live: Any = plain(stage.cluster.router.policy)[0]
        assert live.memory is memory


def test_check_warns_where_bodies_are_not_kept() -> None:
    words = ("check", "--worker", "r=http://127.0.0.1:9", "--policy", READER)
    (line,) = [
        one for one in run_in_process(main, "balancer", *words).stdout.splitlines() if "warning" in one
    ]
    assert line.startswith("warning: policy: Reader reads prompts, of which it gets few")


def test_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "xxhash", None)
    line = complaint(main, "balancer", "check", "--worker", "r=http://127.0.0.1:9", "--policy", READER)
    assert line == (
        "balancer: --policy: policy: 'Reader' reads prompts and needs msgspec and xxhash, which are not installed: "
        "pip install '.[inference]' in the checkout\n"
    )


def test_check_warns_where_no_answers_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kind works without the extra, under a policy that needs no prompts."""
    file = tmp_path / "b.toml"
    place = 'id = "a"\nregion = "r"\naddress = "http://127.0.0.1:9"'
    file.write_text(
        f'listen = "127.0.0.1:0"\nkind = "inference"\npolicy = "random"\n[[endpoints]]\n{place}\n'
    )
    line = (
        "warning: kind: without msgspec and xxhash ends of streams are not checked, and no tokens are counted"
    )
    for is_missing in (False, True):
        if is_missing:
            monkeypatch.setitem(sys.modules, "xxhash", None)
        assert (line in run_in_process(main, "balancer", "check", str(file)).stdout) is is_missing
        with inference(policy="random") as stage:
            assert (stage.cluster.prompts is None) is is_missing
