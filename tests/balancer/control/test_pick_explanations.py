"""Explanations of picks: by command for a time, or per request for trusted clients."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import pytest

from balancer.control.admin.status_command import lines_of
from tests.support.admin_requests import local, metrics, put_policy, status
from tests.support.stage import Stage
from tests.support.wire import answering_after, get, response

EXPLAIN = b"/-/explain"


async def explained(stage: Stage) -> dict[str, Any]:
    report: dict[str, Any] = json.loads((await stage.ask(local(EXPLAIN))).body)
    return report


async def serve_two_workers(stage: Stage, **settings: Any) -> None:
    workers = [await stage.worker(response()) for _ in range(2)]
    await stage.serve(*workers, **{"policy": "least-in-flight", **settings})


async def test_recorded_picks(stage: Stage) -> None:
    await serve_two_workers(stage)
    began = await stage.ask(local(EXPLAIN, method=b"POST", body=b'{"seconds": 30, "keep": 2}'))
    assert (began.status, json.loads(began.body)["seconds_left"]) == (201, 30)
    for _ in range(3):
        await stage.ask(get(b"/secret"))
    stage.clock.at += 1
    report = await explained(stage)
    assert (report["on"], report["picks"], len(report["recent"])) == (True, 3, 2)
    newest = report["recent"][0]
    assert (newest["age"], newest["offered"], newest["picked"] in ("w0", "w1")) == (1, 2, True)
    assert {each["id"] for step in newest["steps"] for each in step["candidates"]} == {"w0", "w1"}
    assert sum(report["reasons"].values()) >= 3
    assert "secret" not in json.dumps(report)


async def test_parts_of_costs_are_shown(stage: Stage) -> None:
    """In the explanation, the status, the lines of `balancer status` and the response of a request that asks."""
    await serve_two_workers(stage, policy="steelyard", explain={"header": "X-Explain", "trust": "all"})
    assert (await status(stage))["explaining"]["last"] is None
    assert "last explained pick" not in lines_of(await status(stage))
    await stage.ask(local(EXPLAIN, method=b"POST", body=b'{"seconds": 30}'))
    line = (await stage.ask(get(b"/", b"X-Explain: 1"))).value(b"X-Picked") or b""
    newest = (await explained(stage))["recent"][0]
    candidates = newest["steps"][0]["candidates"]
    assert all(sum(each["parts"].values()) == pytest.approx(each["score"], abs=1e-8) for each in candidates)
    assert all({"service", "occupancy"} <= set(each["parts"]) for each in candidates)
    assert re.match(rb"costs\(w\d: [^;]* occupancy[^;]* = [\d.]+ ms; w\d: ", line)
    document = await status(stage)
    last = document["explaining"]["last"]
    assert re.match(r"costs:\n  w\d: .* occupancy.* = [\d.]+ ms\n  w\d: ", last)
    assert last.endswith(newest["comparison"])
    assert newest["comparison"].encode() in line
    shown = lines_of(document)
    at = shown.index("last explained pick")
    assert [each[2:] for each in shown[at + 1 :]][: last.count("\n") + 1] == last.splitlines()


async def test_recording_ends_after_its_time(stage: Stage) -> None:
    """The recorded picks can still be read."""
    await serve_two_workers(stage)
    await stage.ask(local(EXPLAIN, method=b"POST", body=b'{"seconds": 30}'))
    await stage.ask(get())
    stage.advance(30)
    stage.control_plane.explanations.tick(stage.clock.at)
    assert stage.cluster.router.trace is None
    await stage.ask(get())
    report = await explained(stage)
    assert (report["on"], report["picks"]) == (False, 1)


async def test_recording_ends_by_command(stage: Stage) -> None:
    await serve_two_workers(stage)
    await stage.ask(local(EXPLAIN, method=b"POST"))
    assert json.loads((await stage.ask(local(EXPLAIN, method=b"DELETE"))).body)["on"] is False
    assert stage.cluster.router.trace is None


@pytest.mark.parametrize(
    "body", [b'{"seconds": 0}', b'{"seconds": 1e9}', b'{"keep": 0}', b'{"for": 3}', b"[]"]
)
async def test_invalid_command(stage: Stage, body: bytes) -> None:
    await serve_two_workers(stage)
    assert (await stage.ask(local(EXPLAIN, method=b"POST", body=body))).status == 422
    assert stage.cluster.router.trace is None


async def test_changed_policy_is_explained(stage: Stage) -> None:
    await serve_two_workers(stage)
    await stage.ask(local(EXPLAIN, method=b"POST"))
    await stage.ask(put_policy("round-robin"))
    await stage.ask(get())
    assert (await explained(stage))["recent"][0]["steps"]


async def test_explanation_in_the_response(stage: Stage) -> None:
    await serve_two_workers(stage, explain={"header": "X-Explain"}, trusted_proxies=["127.0.0.1"])
    report = await stage.ask(get(b"/", b"x-explain: 1"))
    line = (report.value(b"X-Picked") or b"").decode()
    assert line.endswith(("-> w0", "-> w1"))
    assert "w0" in line
    assert "w1" in line
    assert (await stage.ask(get())).value(b"X-Picked") is None
    assert stage.cluster.router.trace is None  # others are not explained


async def test_untrusted_client_gets_no_explanation(stage: Stage) -> None:
    await serve_two_workers(stage, explain={"header": "X-Explain"})
    assert (await stage.ask(get(b"/", b"X-Explain: 1"))).value(b"X-Picked") is None
    await stage.reload(explain={"header": "X-Explain", "trust": "all", "response_header": "X-Why"})
    assert (await stage.ask(get(b"/", b"X-Explain: 1"))).value(b"X-Why") is not None


async def test_explanation_in_streamed_and_retried_responses(stage: Stage) -> None:
    """In the head of a streamed response, and of one from a retry."""
    chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n"
    refusing = await stage.worker(response(status=b"503 Busy"))
    fine = await stage.worker(chunked)
    await stage.serve(refusing, fine, explain={"header": "X-Explain", "trust": "all"})
    report = [await stage.ask(get(b"/", b"X-Explain: 1")) for _ in range(2)]
    assert [answer.status for answer in report] == [200, 200]
    assert all((answer.value(b"X-Picked") or b"").endswith(b"-> w1") for answer in report)


async def test_explanation_of_a_queued_request(stage: Stage) -> None:
    """The pick is explained although the request was queued first."""
    go = asyncio.Event()
    worker = await stage.serve_worker(
        answering_after(go), max_in_flight=1, explain={"header": "X-Explain", "trust": "all"}
    )
    first = await stage.asking(worker, get())
    client = await stage.sending(get(b"/", b"X-Explain: 1"))
    await stage.eventually(lambda: len(stage.cluster.queue))
    assert stage.cluster.router.trace is None
    go.set()
    assert (await first.response()).status == 200
    assert (await client.response()).value(b"X-Picked") is not None


async def test_metrics_of_reasons(stage: Stage) -> None:
    await serve_two_workers(stage, explain={"enabled": True})
    for _ in range(3):
        await stage.ask(get())
    text = await metrics(stage)
    rows = [line for line in text.splitlines() if line.startswith("steelyard_pick_reasons_total{")]
    assert sum(float(line.rpartition(" ")[2]) for line in rows) >= 3
    await stage.reload(explain={})
    assert stage.cluster.router.trace is None
