"""Why requests went where they went: told to who may ask, for as long as was asked for, and otherwise at no cost."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.balancer.conftest import Message, Stage, answering, get, response


async def control(stage: Stage, method: bytes, path: bytes = b"/-/explain", body: bytes = b"") -> Message:
    head = b"%b %b HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: %d\r\n\r\n" % (method, path, len(body))
    return await stage.ask(head + body)


async def explained(stage: Stage) -> dict[str, Any]:
    told: dict[str, Any] = json.loads((await control(stage, b"GET")).body)
    return told


async def two(stage: Stage, **settings: Any) -> None:
    workers = [await stage.worker(response()) for _ in range(2)]
    await stage.serve(*workers, **{"policy": "least-in-flight", **settings})


async def test_it_is_off_unless_asked_for(stage: Stage) -> None:
    await two(stage)
    answer = await stage.ask(get(b"/", b"X-Explain: 1"))
    assert answer.value(b"X-Picked") is None
    assert (stage.proxy.explaining, stage.proxy.router.trace) == (None, None)
    assert (await explained(stage))["recent"] == []


async def test_picks_are_told_with_candidates_and_scores(stage: Stage) -> None:
    await two(stage)
    began = await control(stage, b"POST", body=b'{"seconds": 30, "keep": 2}')
    assert (began.status, json.loads(began.body)["seconds_left"]) == (201, 30)
    for _ in range(3):
        await stage.ask(get(b"/secret"))
    stage.clock.at += 1
    told = await explained(stage)
    assert (told["on"], told["picks"], len(told["recent"])) == (True, 3, 2)
    newest = told["recent"][0]
    assert (newest["age"], newest["offered"], newest["picked"] in ("w0", "w1")) == (1, 2, True)
    assert {each["id"] for step in newest["steps"] for each in step["candidates"]} == {"w0", "w1"}
    assert sum(told["reasons"].values()) >= 3
    assert "secret" not in json.dumps(told)


async def test_it_ends_by_itself(stage: Stage) -> None:
    """What was kept can still be read."""
    await two(stage)
    await control(stage, b"POST", body=b'{"seconds": 30}')
    await stage.ask(get())
    stage.advance(30)
    stage.control_plane.explanations.tick(stage.clock.at)
    assert stage.proxy.router.trace is None
    await stage.ask(get())
    told = await explained(stage)
    assert (told["on"], told["picks"]) == (False, 1)


async def test_it_ends_by_command(stage: Stage) -> None:
    await two(stage)
    await control(stage, b"POST")
    assert json.loads((await control(stage, b"DELETE")).body)["on"] is False
    assert stage.proxy.router.trace is None


@pytest.mark.parametrize(
    "body", [b'{"seconds": 0}', b'{"seconds": 1e9}', b'{"keep": 0}', b'{"for": 3}', b"[]"]
)
async def test_a_bad_order_changes_nothing(stage: Stage, body: bytes) -> None:
    await two(stage)
    assert (await control(stage, b"POST", body=body)).status == 422
    assert stage.proxy.router.trace is None


async def test_another_policy_is_explained_too(stage: Stage) -> None:
    await two(stage)
    await control(stage, b"POST")
    await control(stage, b"PUT", b"/-/policy", b'"round-robin"')
    await stage.ask(get())
    assert (await explained(stage))["recent"][0]["steps"]


async def test_a_request_that_asks_is_told(stage: Stage) -> None:
    await two(stage, explain={"header": "X-Explain"}, trusted_proxies=["127.0.0.1"])
    told = await stage.ask(get(b"/", b"x-explain: 1"))
    line = (told.value(b"X-Picked") or b"").decode()
    assert line.endswith(("-> w0", "-> w1"))
    assert "w0" in line
    assert "w1" in line
    assert (await stage.ask(get())).value(b"X-Picked") is None
    assert stage.proxy.router.trace is None  # others are not explained


async def test_who_is_not_trusted_is_told_nothing(stage: Stage) -> None:
    await two(stage, explain={"header": "X-Explain"})
    assert (await stage.ask(get(b"/", b"X-Explain: 1"))).value(b"X-Picked") is None
    await stage.reload(explain={"header": "X-Explain", "trust": "all", "response_header": "X-Why"})
    assert (await stage.ask(get(b"/", b"X-Explain: 1"))).value(b"X-Why") is not None


async def test_a_response_in_pieces_says_it_once(stage: Stage) -> None:
    """The head of a response that is streamed, and of one that another endpoint had to give."""
    chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n"
    refusing = await stage.worker(response(status=b"503 Busy"))
    fine = await stage.worker(chunked)
    await stage.serve(refusing, fine, explain={"header": "X-Explain", "trust": "all"})
    told = [await stage.ask(get(b"/", b"X-Explain: 1")) for _ in range(2)]
    assert [answer.status for answer in told] == [200, 200]
    assert all((answer.value(b"X-Picked") or b"").endswith(b"-> w1") for answer in told)


async def test_who_had_to_wait_is_told_too(stage: Stage) -> None:
    """Nobody had room at first: explaining is off again by then."""
    slow = await stage.worker(answering(response()))
    await stage.serve(slow, max_in_flight=1, explain={"header": "X-Explain", "trust": "all"})
    stage.state().in_flight += 1  # somebody is there
    stage.proxy.router._refresh(stage.state())
    client = await stage.client()
    await client.send(get(b"/", b"X-Explain: 1"))
    await stage.eventually(lambda: len(stage.proxy.queue))
    assert stage.proxy.router.trace is None
    stage.state().in_flight -= 1
    stage.proxy.router._refresh(stage.state())
    assert (await client.response()).value(b"X-Picked") is not None


async def test_reasons_are_counted_in_the_metrics(stage: Stage) -> None:
    await two(stage, explain={"enabled": True})
    for _ in range(3):
        await stage.ask(get())
    metrics = (await control(stage, b"GET", b"/-/metrics")).body.decode()
    rows = [line for line in metrics.splitlines() if line.startswith("steelyard_pick_reasons_total{")]
    assert sum(float(line.rpartition(" ")[2]) for line in rows) >= 3
    await stage.reload(explain={})
    assert stage.proxy.router.trace is None
