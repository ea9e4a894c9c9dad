"""Load generator for inference: what engines and policies find in its prompts, and which answers it takes for whole."""

from __future__ import annotations

import asyncio
import json

import numpy as np
import pytest

from balancer.inference.completion_body import decode
from balancer.inference.prompt_reader import PromptReader
from experiments.generator.completions import CompletionGenerator, body_of
from experiments.inference.prompts import synthetic
from experiments.recorded.inference_trace import LOG_BLOCK, Prompts
from experiments.run_data import Kind, Place, Samples
from experiments.scenario.inference import MIXES
from tests.support.wire import ScriptedWorker, Wire
from workers.inference.requests import ChatBody, blocks_of, tokens_of


def common(these: list[int], those: list[int]) -> int:
    """Blocks that two prompts have in common at their beginnings."""
    return next(
        (i for i, (a, b) in enumerate(zip(these, those, strict=False)) if a != b), len(these[: len(those)])
    )


def test_engines_and_policies_find_the_blocks_of_a_simulated_run() -> None:
    """As many tokens, and every two prompts have as much in common, however long they are."""
    prompts = synthetic(MIXES["agents"], 150, 1)
    bodies = [body_of(prompts, number) for number in range(150)]
    texts = [ChatBody.model_validate_json(body).prompt_bytes() for body in bodies]
    assert [tokens_of(text) for text in texts] == prompts.tokens
    engine = [blocks_of(text, LOG_BLOCK) for text in texts]
    reader = PromptReader()
    router = [list(reader._prompt(decode(body), None).blocks) for body in bodies]  # type: ignore[union-attr]
    pairs = [(i, j) for i in range(150) for j in range(i)]
    expected = [common(prompts.blocks[i], prompts.blocks[j]) for i, j in pairs]
    assert max(expected) > min(expected) == 0
    for found in (engine, router):
        assert [common(found[i], found[j]) for i, j in pairs] == expected


USAGE = {"prompt_tokens": 40, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 16}}
TOKENS = [b'data: {"choices": [{"delta": {"content": "a"}}], "usage": null}\n\n'] * 3
CLOSING = [f'data: {{"choices": [], "usage": {json.dumps(USAGE)}}}\n\n'.encode(), b"data: [DONE]\n\n"]
HEAD = b"HTTP/1.1 200 OK\r\nX-Worker-Name: here-0\r\nTransfer-Encoding: chunked\r\n\r\n"
BUSY = b"HTTP/1.1 503 Busy\r\nContent-Length: 8\r\n\r\n" + CLOSING[1][:8]


def chunked(events: list[bytes]) -> bytes:
    return b"".join(b"%x\r\n%b\r\n" % (len(event), event) for event in events)


async def samples_of(pieces: list[bytes], timeout: float = 10.0) -> Samples:
    """The row of one request that gets these pieces, 0.1 s between two of them, and the end of the connection."""

    async def answer(wire: Wire) -> None:
        await wire.head()
        for piece in pieces:
            await wire.send(piece)
            await asyncio.sleep(0.1)

    async with ScriptedWorker(answer) as server:
        prompts = Prompts([40], [3], [[]], ["a session"], LOG_BLOCK)
        places = [Place(worker="here-0", region="here")]
        address = ("127.0.0.1", server.port)
        generator = CompletionGenerator(address, "name", places, np.array([0.0]), timeout, prompts)
        return (await generator.run(0)).samples()


async def test_a_whole_answer_has_its_first_token_and_its_usage() -> None:
    found = await samples_of([HEAD, chunked(TOKENS[:1]), chunked(TOKENS[1:] + CLOSING) + b"0\r\n\r\n"])
    assert (found.kind[0], found.status[0], found.worker[0]) == (Kind.OK, 200, 0)
    assert (found.prompt_tokens[0], found.cached_tokens[0], found.output_tokens[0]) == (40, 16, 3)
    assert found.sent_at[0] + 0.1 <= found.first_byte_at[0] <= found.ended_at[0] - 0.1


@pytest.mark.parametrize(
    ("pieces", "kind"),
    [
        ([HEAD + chunked(TOKENS) + b"0\r\n\r\n"], Kind.RESET),  # a stream that ends without its last event
        ([HEAD + chunked(TOKENS[:2])], Kind.RESET),  # the connection closes in the middle
        ([HEAD], Kind.RESET),
        ([], Kind.RESET),
        ([BUSY], Kind.ERROR_STATUS),
    ],
)
async def test_an_answer_that_is_not_whole_has_failed(pieces: list[bytes], kind: Kind) -> None:
    """And has no tokens: it counts as slow as the deadline."""
    found = await samples_of(pieces)
    assert found.kind[0] == kind
    assert (found.output_tokens[0], found.cached_tokens[0]) == (0, 0)


async def test_the_limit_is_on_the_first_token(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = [HEAD + chunked(TOKENS[:1]), *(chunked([token]) for token in TOKENS[1:] * 3)]
    slow.append(chunked(CLOSING) + b"0\r\n\r\n")
    assert (await samples_of(slow, timeout=0.4)).kind[0] == Kind.OK
    assert (await samples_of([HEAD, b"", b"", b"", b"", b"", b"", b""], timeout=0.4)).kind[0] == Kind.TIMEOUT
    monkeypatch.setattr("experiments.generator.generator.SWEEP", 60.0)
    found = await samples_of([HEAD, b"", chunked(TOKENS + CLOSING) + b"0\r\n\r\n"], timeout=0.1)
    assert (found.kind[0], found.output_tokens[0]) == (Kind.TIMEOUT, 0)
