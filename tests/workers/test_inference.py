"""The emulated inference server over HTTP, in virtual time: a step takes 100 ms, and 1 ms more per prompt token."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial
from io import BytesIO
from typing import Any

import pytest
from aiohttp import ClientResponse, ClientSession

from tests.workers.virtual_time import EXACTLY
from workers.inference.app import InferenceApp
from workers.inference.settings import EngineModel, InferenceSettings
from workers.server import Worker
from workers.settings import Settings

CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "x" * 393}]}  # and "<user>\n": 100 tokens
StartEngine = Callable[..., Awaitable[Worker]]


@pytest.fixture
async def start() -> AsyncIterator[StartEngine]:
    async with AsyncExitStack() as stack:

        async def start_engine(
            tokens: int = 4, busy_status: int = 503, http: str = "1.1", **model: Any
        ) -> Worker:
            engine = EngineModel(**{"prefill": 1000.0, "base": 0.1, "per_sequence": 0.0, **model})
            served = InferenceSettings(engine=engine, tokens=(tokens, tokens), busy_status=busy_status)
            worker = Worker(Settings(name="e0", http=http), partial(InferenceApp, served))
            return await stack.enter_async_context(worker)

        yield start_engine


@pytest.fixture
async def session(start: StartEngine) -> AsyncIterator[ClientSession]:
    async with ClientSession() as session:
        yield session


async def metrics(session: ClientSession, url: str) -> dict[str, float]:
    """Values by name, without the prefix and labels."""
    async with session.get(f"{url}/metrics") as response:
        lines = (await response.text()).splitlines()
    rows = [line.rpartition(" ") for line in lines if line.startswith("vllm:")]
    return {name.partition("{")[0].removeprefix("vllm:"): float(value) for name, _, value in rows}


async def set_faults(session: ClientSession, worker: Worker, **faults: Any) -> None:
    async with session.put(f"{worker.url}/-/faults", json=faults) as response:
        assert response.status == 200


async def chunks(response: ClientResponse) -> list[tuple[float, str]]:
    """Data of the server-sent events, and when each arrived."""
    found = []
    while line := await response.content.readline():
        if line != b"\n":
            found.append((time.monotonic(), line.decode().removeprefix("data: ").strip()))
    return found


async def test_answer_has_text_and_usage(start: StartEngine, session: ClientSession) -> None:
    url = (await start()).url
    for cached in (0, 96):  # whole blocks of 16 tokens
        begun = time.monotonic()
        async with session.post(f"{url}/v1/chat/completions", json={**CHAT, "max_tokens": 2}) as response:
            answer = await response.json()
        assert time.monotonic() - begun == pytest.approx(0.3 - cached / 1000, abs=EXACTLY)
        assert answer["choices"][0]["message"] == {"role": "assistant", "content": "step an"}
        assert (answer["object"], answer["choices"][0]["finish_reason"]) == ("chat.completion", "length")
        assert answer["usage"] == {
            "prompt_tokens": 100,
            "completion_tokens": 2,
            "total_tokens": 102,
            "prompt_tokens_details": {"cached_tokens": cached},
        }
    found = await metrics(session, url)
    assert (found["prefix_cache_queries_total"], found["prefix_cache_hits_total"]) == (200, 96)


@pytest.mark.parametrize(
    ("path", "body", "kind"),
    [
        ("chat/completions", CHAT, "chat.completion.chunk"),
        ("completions", {"prompt": "x" * 400}, "text_completion"),
        ("completions", {"prompt": list(range(100))}, "text_completion"),
        ("completions", {"prompt": ["x" * 400]}, "text_completion"),
        ("completions", {"prompt": [list(range(100))]}, "text_completion"),
    ],
)
async def test_tokens_are_streamed_with_each_step(
    start: StartEngine, session: ClientSession, path: str, body: dict[str, Any], kind: str
) -> None:
    begun, url = time.monotonic(), (await start()).url
    options = {"stream": True, "stream_options": {"include_usage": True}}
    async with session.post(f"{url}/v1/{path}", json={**body, **options}) as response:
        assert response.content_type == "text/event-stream"
        assert time.monotonic() == begun  # the head does not wait for a token
        found = await chunks(response)
    assert [at - begun for at, _ in found] == pytest.approx([0.2, 0.3, 0.4, 0.5, 0.5, 0.5], abs=EXACTLY)
    assert found[-1][1] == "[DONE]"
    *tokens, usage = [json.loads(data) for _, data in found[:-1]]
    assert {one["object"] for one in (*tokens, usage)} == {kind}
    assert [one["choices"][0]["finish_reason"] for one in tokens] == [None, None, None, "stop"]
    assert (usage["choices"], usage["usage"]["completion_tokens"]) == ([], 4)


async def test_usage_is_streamed_only_on_request(start: StartEngine, session: ClientSession) -> None:
    url = (await start()).url
    async with session.post(f"{url}/v1/chat/completions", json={**CHAT, "stream": True}) as response:
        found = await chunks(response)
    assert len(found) == 5
    assert not any("usage" in data for _, data in found)


@pytest.mark.parametrize(
    ("most", "tokens"), [({"max_tokens": 9}, 4), ({"max_tokens": 9, "ignore_eos": True}, 9)]
)
async def test_length_of_an_answer(
    start: StartEngine, session: ClientSession, most: dict[str, Any], tokens: int
) -> None:
    url = (await start()).url
    async with session.post(f"{url}/v1/chat/completions", json={**CHAT, **most}) as response:
        assert (await response.json())["usage"]["completion_tokens"] == tokens


@pytest.mark.parametrize("is_streamed", [True, False])
async def test_client_that_closes_frees_its_sequence(
    start: StartEngine, session: ClientSession, is_streamed: bool
) -> None:
    worker = await start(tokens=1000)
    body = {**CHAT, "stream": is_streamed}
    asking = asyncio.create_task(session.post(f"{worker.url}/v1/chat/completions", json=body))
    await asyncio.sleep(1)
    found = await metrics(session, worker.url)
    assert (found["num_requests_running"], found["kv_cache_usage_perc"] > 0) == (1, True)
    asking.result().close() if is_streamed else asking.cancel()
    await asyncio.sleep(0.001)
    found = await metrics(session, worker.url)
    assert (found["num_requests_running"], found["kv_cache_usage_perc"]) == (0, 0.0)


@pytest.mark.parametrize("status", [429, 503])
async def test_full_server_refuses_with_retry_after(
    start: StartEngine, session: ClientSession, status: int
) -> None:
    worker = await start(max_batch=1, max_waiting=1, busy_status=status)
    url = f"{worker.url}/v1/chat/completions"
    asking = [asyncio.create_task(session.post(url, json=CHAT)) for _ in range(2)]
    await asyncio.sleep(0.05)
    assert (await metrics(session, worker.url))["num_requests_waiting"] == 1
    async with session.post(url, json=CHAT) as response:
        assert (response.status, response.headers["Retry-After"]) == (status, "1")
        assert (await response.json())["error"]["message"] == "the waiting queue is full"
    assert [(await one).status for one in asking] == [200, 200]


@pytest.mark.parametrize(
    ("path", "body", "status", "named"),
    [
        ("chat/completions", b"{", 400, "body: Invalid JSON"),
        ("chat/completions", b"[" * 10_000, 400, "body: Invalid JSON: recursion limit"),
        (
            "chat/completions",
            b'{"messages": [{"role": "user", "content": "\xff"}]}',
            400,
            "body: Invalid JSON",
        ),
        ("chat/completions", b'{"prompt": "a"}', 400, "messages: Field required"),
        ("chat/completions", b'{"messages": []}', 400, "messages: "),
        ("completions", b'{"prompt": ["a", "b"]}', 400, "prompt: Value error, several prompts"),
        ("completions", b'{"prompt": [[1], [2]]}', 400, "(a batch) are not supported"),
        ("completions", b'{"prompt": [{}]}', 400, "prompt."),
        ("completions", b'{"prompt": "a", "max_tokens": 0}', 400, "max_tokens: "),
        ("completions", b'{"prompt": "a", "n": 2}', 400, "n: "),
        ("completions", b'{"prompt": "a", "stream": "yes"}', 400, "stream: "),
        ("completions", b'{"prompt": "' + b"a" * 4000 + b'"}', 400, "together at most 1000"),
        ("completions", b'{"prompt": "a", "model": "other"}', 404, "'other' does not exist"),
        ("completions", b" " * (32 << 20) + b" ", 413, "Too Large"),
        ("embeddings", b"{}", 404, "Not Found"),
    ],
)
async def test_bad_request_is_an_error_in_openai_format(
    start: StartEngine, session: ClientSession, path: str, body: bytes, status: int, named: str
) -> None:
    url = (await start(block_tokens=10, kv_blocks=100)).url
    async with session.post(f"{url}/v1/{path}", data=BytesIO(body)) as response:
        answer = await response.json()
    assert (response.status, answer["error"]["code"]) == (status, status)
    assert named in answer["error"]["message"]


async def test_body_that_is_not_in_its_encoding_is_refused(
    start: StartEngine, session: ClientSession
) -> None:
    url = (await start()).url
    fields = {"Content-Encoding": "gzip"}
    async with session.post(f"{url}/v1/chat/completions", data=b"{}", headers=fields) as response:
        assert (response.status, (await response.json())["error"]["code"]) == (400, 400)


async def test_cut_answer_is_incomplete(start: StartEngine, session: ClientSession) -> None:
    worker = await start()
    await set_faults(session, worker, cut=True)
    reader, writer = await asyncio.open_connection("127.0.0.1", int(worker.url.rpartition(":")[2]))
    body = json.dumps({**CHAT, "stream": True}).encode()
    writer.write(
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: e\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    )
    received = await reader.read()
    assert (received.count(b"data: "), received.endswith(b"0\r\n\r\n")) == (2, False)
    assert (await metrics(session, worker.url))["num_requests_running"] == 0
    writer.close()


async def test_faults_of_other_workers(start: StartEngine, session: ClientSession) -> None:
    """Slow steps, and an error; there is no garbage collection."""
    worker = await start(tokens=1)
    cases: list[tuple[float, int, dict[str, Any]]] = [
        (0.6, 200, {"slow": 3.0}),
        (0.0, 502, {"fail": True, "fail_status": 502}),
    ]
    for seconds, status, faults in cases:
        await set_faults(session, worker, **faults)
        begun = time.monotonic()
        async with session.post(f"{worker.url}/v1/chat/completions", json=CHAT) as response:
            assert response.status == status
        assert time.monotonic() - begun == pytest.approx(seconds, abs=EXACTLY)
    async with session.put(f"{worker.url}/-/faults", json={"pause": 1.0}) as response:
        assert (response.status, (await response.json())["detail"][0]["field"]) == (422, "pause")


async def test_models_and_health(start: StartEngine, session: ClientSession) -> None:
    worker = await start()
    async with session.get(f"{worker.url}/v1/models") as response:
        (listed,) = (await response.json())["data"]
    assert listed["id"] == "emulated"
    for name, status in [("emulated", 200), ("an/other", 404)]:
        async with session.get(f"{worker.url}/v1/models/{name}") as response:
            answer = await response.json()
        assert response.status == status
        assert answer == listed or "'an/other' does not exist" in answer["error"]["message"]
    for is_unhealthy, status in [(False, 200), (True, 503)]:
        await set_faults(session, worker, unhealthy=is_unhealthy)
        async with session.get(f"{worker.url}/health") as response:
            assert response.status == status
