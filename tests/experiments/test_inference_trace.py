"""Recorded requests for inference: three formats, quantised instants, and what is wrong with a file."""

from __future__ import annotations

import gzip
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from experiments.errors import BadInputError
from experiments.generator.arrivals import first_instants
from experiments.recorded.inference_trace import InferenceTrace, is_trace, read_trace
from experiments.scenario.load import Load

HEAD = "TIMESTAMP,ContextTokens,GeneratedTokens"


def mooncake(at: float, tokens: int, *ids: int, output: int = 5) -> dict[str, Any]:
    return {"timestamp": at, "input_length": tokens, "output_length": output, "hash_ids": ids}


def written(tmp_path: Path, *lines: object, name: str = "trace.jsonl") -> str:
    file = tmp_path / name
    file.write_text("".join(f"{one if isinstance(one, str) else json.dumps(one)}\n" for one in lines))
    return str(file)


def trace(tmp_path: Path, *lines: object, name: str = "trace.jsonl") -> InferenceTrace:
    return read_trace(written(tmp_path, *lines, name=name))


def test_a_line_of_mooncake_has_its_whole_blocks(tmp_path: Path) -> None:
    """Seconds count from the first; equal ids are equal hashes, and use all of 64 bits; the last block is not whole."""
    found = trace(tmp_path, mooncake(500, 1100, 0, 1, 2, output=7), mooncake(2500, 1536, 0, 1, 3))
    assert found.instants.tolist() == [0.0, 2.0]
    prompts = found.prompts
    assert (prompts.tokens, prompts.output, prompts.block_tokens) == ([1100, 1536], [7, 5], 512)
    assert [len(blocks) for blocks in prompts.blocks] == [2, 3]
    assert prompts.blocks[0] == prompts.blocks[1][:2]
    assert len({*prompts.blocks[1]}) == 3
    assert max(prompts.blocks[1]) > 2**60


def test_rows_are_in_order_of_time(tmp_path: Path) -> None:
    """Those of one instant in the order of the file."""
    found = trace(tmp_path, mooncake(9, 3), mooncake(4, 1), mooncake(9, 4), mooncake(4, 2))
    assert found.prompts.tokens == [1, 2, 3, 4]


def test_a_compressed_trace_is_the_same(tmp_path: Path) -> None:
    plain = written(tmp_path, mooncake(0, 600, 1, 2), mooncake(10, 700, 1, 3))
    packed = tmp_path / "trace.jsonl.gz"
    packed.write_bytes(gzip.compress(Path(plain).read_bytes()))
    assert asdict(read_trace(str(packed)).prompts) == asdict(read_trace(plain).prompts)


def test_azure_has_no_prefixes(tmp_path: Path) -> None:
    found = trace(
        tmp_path,
        HEAD,
        "2023-11-16 18:17:03.9799600,4808,10",
        "2023-11-16 18:17:04.0319600,3180,8",
        name="a.csv",
    )
    assert found.instants.tolist() == pytest.approx([0.0, 0.052])
    assert (found.prompts.tokens, found.prompts.output) == ([4808, 3180], [10, 8])
    assert found.prompts.blocks == [[], []]


def test_a_table_of_azure_may_be_quoted_and_begin_with_a_mark(tmp_path: Path) -> None:
    """As other programs export it: in quotes, with a byte order mark."""
    head = "\ufeff" + ",".join(f'"{name}"' for name in HEAD.split(","))
    file = written(tmp_path, head, '"2024-05-10 00:00:00","100","10"', "2024-05-10 00:00:01,101,10")
    assert is_trace(file)
    assert read_trace(file).prompts.tokens == [100, 101]


def chat(at: object, *contents: str, **body: Any) -> dict[str, Any]:
    """Line of a batch in OpenAI's format, with a time."""
    messages = [{"role": "user", "content": content} for content in contents]
    asked = {"model": "m", "messages": messages, "max_tokens": 90, **body}
    return {"custom_id": "1", "method": "POST", "url": "/v1/chat/completions", "timestamp": at, "body": asked}


def test_a_request_log_shares_prefixes_of_messages(tmp_path: Path) -> None:
    """In blocks of 512 bytes; another first message, other tools or another model share none."""
    lines = [
        chat(0, "a" * 2100),
        chat(1, "a" * 2100, "and then?" * 100),
        chat(2, "b" * 2100),
        chat(3, "a" * 2100, tools=[{"type": "function"}]),
        chat(4, "a" * 2100, model="other"),
    ]
    prompts = trace(tmp_path, *lines).prompts
    assert prompts.block_tokens == 128
    first, second, *others = prompts.blocks
    assert len(first) == 4
    assert first[:3] == second[:3]
    assert all(other[0] != first[0] for other in others)
    assert prompts.tokens[0] == pytest.approx(2100 / 4, abs=15)


@pytest.mark.parametrize(
    ("line", "output"),
    [
        (chat(0, "x"), 90),
        (chat(0, "x", max_tokens=None, max_completion_tokens=80), 80),
        ({**chat(0, "x"), "response": {"body": {"usage": {"completion_tokens": 33}}}}, 33),
        ({"time": 1, "prompt": "x", "max_tokens": 4, "usage": {"completion_tokens": 3}}, 3),
    ],
)
def test_the_answer_of_a_request_log(tmp_path: Path, line: dict[str, Any], output: int) -> None:
    """Has the tokens of `usage`, else those that the request allows."""
    assert trace(tmp_path, line).prompts.output == [output]


def test_the_prompt_of_a_request_log_has_the_tokens_that_its_answer_states(tmp_path: Path) -> None:
    """An image is many bytes and few tokens; blocks are not more than the tokens have."""
    lines = [stated(900, "x" * 40_000), stated(0, "x" * 40_000)]
    prompts = trace(tmp_path, *lines).prompts
    assert (prompts.tokens[0], len(prompts.blocks[0])) == (900, 7)
    assert prompts.tokens[1] == pytest.approx(10_000, abs=15)  # zero is none stated


def test_a_log_of_messages_of_anthropic(tmp_path: Path) -> None:
    """Their prompt begins with `system`, and of their input `usage` has three parts."""
    usage = {
        "input_tokens": 100,
        "cache_read_input_tokens": 900,
        "cache_creation_input_tokens": 0,
        "output_tokens": 9,
    }
    lines = [
        {**chat(at, f"hello {at}", system=text * 4000), "response": {"body": {"usage": usage}}}
        for at, text in enumerate("aab")
    ]
    prompts = trace(tmp_path, *lines).prompts
    assert (prompts.tokens, prompts.output) == ([1000] * 3, [9] * 3)
    first, second, third = prompts.blocks
    assert len(first) == 7
    assert first == second
    assert first[0] != third[0]


def stated(tokens: int, *contents: str) -> dict[str, Any]:
    """Line whose answer states the tokens of its prompt."""
    return {**chat(0, *contents), "response": {"body": {"usage": {"prompt_tokens": tokens}}}}


def shares(lines: InferenceTrace) -> list[float]:
    """Share of each prompt's tokens that begin as the first one's."""
    first, *others = lines.prompts.blocks
    common = [sum(a == b for a, b in zip(first, blocks, strict=False)) for blocks in others]
    return [128 * one / tokens for one, tokens in zip(common, lines.prompts.tokens[1:], strict=True)]


@pytest.mark.parametrize("tokens", [5_000, 10_000, 20_000])
def test_the_shared_part_of_prompts_is_that_of_their_text(tmp_path: Path, tokens: int) -> None:
    """However many bytes a token has: prompts that share the first half of their text share half of their tokens."""
    found = trace(tmp_path, *(stated(tokens, "s" * 20_000, letter * 20_000) for letter in "abc"))
    assert shares(found) == pytest.approx([0.5, 0.5], abs=0.02)
    assert all(0 <= tokens - 128 * len(blocks) < 350 for blocks in found.prompts.blocks)


def test_a_shared_prefix_has_the_same_tokens_in_all_prompts(tmp_path: Path) -> None:
    """Also where the rest of a prompt has few bytes per token, or is an image. It is the usual prompts' tokens."""
    image, digits, usual = (
        stated(5_900, "s" * 20_000, "i" * 400_000),
        stated(15_000, "s" * 20_000, "7" * 20_000),
        6_000,
    )
    lines = [stated(usual, "s" * 20_000, letter * 4_000) for letter in "abc"]
    found = trace(tmp_path, lines[0], image, digits, *lines[1:])
    assert shares(found) == pytest.approx([5_000 / 5_900, 5_000 / 15_000, *[5 / 6] * 2], abs=0.02)


@pytest.mark.parametrize("separator", ["\u2028", "\u2029", "\x85"])
def test_lines_end_with_a_line_feed_only(tmp_path: Path, separator: str) -> None:
    """JSON may have other separators of lines in its texts."""
    line = json.dumps(chat(0, f"a{separator}b"), ensure_ascii=False)
    assert len(trace(tmp_path, line, line + "\r").instants) == 2


@pytest.mark.parametrize(
    "refused",
    [
        {"timestamp": 1, "body": {"messages": "x"}, "response": {"status_code": 429, "body": {"error": {}}}},
        {"time": 1, "prompt": "x", "status": 503},
        {"time": 1, "prompt": "x", "error": {"message": "overloaded"}, "response": None},
        {"time": 1, "url": "/v1/embeddings", "body": {"model": "m", "input": ["x"]}},
        {"id": "no time either", "input": "x"},
    ],
)
def test_a_request_of_a_log_without_an_answer_is_left_out_and_counted(
    tmp_path: Path, refused: dict[str, Any]
) -> None:
    found = trace(tmp_path, refused, chat(2, "x"), chat(3, "x", status=200))
    assert (found.failed, found.instants.tolist()) == (1, [0.0, 1.0])


@pytest.mark.parametrize(
    "times",
    [(10, 12.5), (1700000000000, 1700000002500), ("2026-01-01T00:00:00Z", "2026-01-01T01:00:02.5+01:00")],
)
def test_times_of_a_request_log(tmp_path: Path, times: tuple[object, object]) -> None:
    """Are seconds, milliseconds since 1970, or ISO 8601 with a zone."""
    assert trace(tmp_path, *(chat(at, "x") for at in times)).instants.tolist() == [0.0, 2.5]


def test_a_session_is_named_by_the_body(tmp_path: Path) -> None:
    """And not found by searching the text of a prompt."""
    prompts = trace(tmp_path, chat(0, "x", user="ann"), chat(1, '"user": "bob"')).prompts
    assert prompts.sessions == ["ann", ""]


def instants_of(file: str, seed: int, duration: float = 100.0) -> np.ndarray[Any, Any]:
    return first_instants(Load(mode="open", arrivals="replay", file=file, duration=duration), seed, 1.0)


def test_quantised_instants_are_spread(tmp_path: Path) -> None:
    """Evenly over the step, in the order of the file, by the seed."""
    file = written(tmp_path, *(mooncake(3000 * step, 1) for step in range(20) for _ in range(50)))
    found = instants_of(file, seed=1)
    assert np.array_equal(np.floor(found / 3), np.repeat(np.arange(20), 50))
    assert np.mean(found % 3) == pytest.approx(1.5, abs=0.1)
    assert np.array_equal(found, instants_of(file, seed=1))
    assert not np.array_equal(found, instants_of(file, seed=2))
    assert len(instants_of(file, seed=1, duration=30.0)) == 500


def test_exact_instants_stay(tmp_path: Path) -> None:
    file = written(tmp_path, *(mooncake(at, 1) for at in (0, 40, 277, 277, 471)))
    assert instants_of(file, seed=1).tolist() == [0.0, 0.04, 0.277, 0.277, 0.471]


GOOD = json.dumps(mooncake(0, 10)).encode()
LONG = b"9" * 4000
MISTAKES: list[tuple[dict[str, Any], str]] = [
    (mooncake(0, 10) | {"timestamp": "now"}, "timestamp: must be a number of milliseconds, got 'now'"),
    (mooncake(0, 10) | {"timestamp": float("nan")}, "timestamp: must be a number of milliseconds"),
    (mooncake(0, 10) | {"timestamp": None}, "timestamp: must be a number of milliseconds, got nothing"),
    (mooncake(0, -1), "input_length: must be a whole number up to 10000000, got '-1'"),
    (mooncake(0, 10) | {"input_length": 1.5}, "input_length: must be a whole number"),
    (mooncake(0, 10) | {"output_length": True}, "output_length: must be a whole number"),
    (mooncake(0, 1024, 1), "hash_ids: must be 2 whole numbers, one for each 512 tokens"),
    (mooncake(0, 10) | {"hash_ids": ["a"]}, "hash_ids: must be 0 whole numbers"),
]
OF_LOGS: list[tuple[dict[str, Any], str]] = [
    ({"body": {"messages": "x"}}, "must have a time: timestamp, time, created_at, created"),
    ({"time": 0, "body": {"messages": []}}, "must have messages or a prompt, in `body` or beside the time"),
    ({"time": 0, "body": 7}, "must have messages or a prompt"),
    (chat(0, "x", max_tokens=None), "must have usage.completion_tokens of the response, or max_tokens"),
    (chat("soon", "x"), "timestamp: must be seconds or a time in ISO 8601, got 'soon'"),
    (chat(1e300, "x"), "timestamp: must be seconds"),
    (chat(0, "x", max_tokens="many"), "max_tokens: must be a whole number"),
]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        *((GOOD + b"\n\n" + json.dumps(line).encode(), f", line 3: {said}") for line, said in MISTAKES),
        *((GOOD + b"\n" + line, ", line 2: must be a JSON object") for line in (b"{", b"[" * 100_000, b"7")),
        (GOOD.replace(b"10", LONG), ", line 1: input_length: must be a whole"),
        *((json.dumps(line).encode(), f", line 1: {said}") for line, said in OF_LOGS),
        (f"{HEAD}\n".encode(), " holds no request"),
        (b'{"time": 1, "prompt": "x", "status": 503}', " holds no request that was answered"),
        (
            b'{"time": 0, "body": {}}',
            " holds no request that was answered, with messages or a prompt in `body`",
        ),
        (f"{HEAD}\n2023-11-16 18:17:03,5\n".encode(), f", line 2: must have three columns, {HEAD}"),
        (
            f"{HEAD}\nnow,5,5\n".encode(),
            ", line 2: TIMESTAMP: must be seconds or a time in ISO 8601, got 'now'",
        ),
        (f"{HEAD}\n{'5' * 200_000},5,5\n".encode(), ", line 2: field larger than field limit"),
        (b"", f": must be JSON lines, or CSV with the columns {HEAD}"),
        (b"a,b\n1,2\n", ": must be JSON lines, or CSV"),
        (b'{"timestamp": "\xff"}\n', " cannot be read: not text"),
        (gzip.compress(b"{}", mtime=0)[:12], " cannot be read: damaged"),
    ],
)
def test_what_is_wrong_is_one_line_that_names_the_place(tmp_path: Path, content: bytes, message: str) -> None:
    file = tmp_path / "trace"
    file.write_bytes(content)
    with pytest.raises(BadInputError) as caught:
        read_trace(str(file))
    assert str(caught.value).startswith(f"load.file: {file}{message}")
    assert "\n" not in str(caught.value)
