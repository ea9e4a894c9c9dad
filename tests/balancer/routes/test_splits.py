"""Weighted splits of a route between clusters: shares, keys, changes at run time, and the guard of a canary."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import pytest

from policies import Available, EndpointState, Overloaded, RequestFacts
from tests.support.admin_requests import local, metrics, status
from tests.support.command_line import run_balancer
from tests.support.stage import Stage, pool_of, traffic
from tests.support.wire import Message, ScriptedWorker, Wire, answering, get, playing, response

SPLIT = {"stable": 90, "next": 10}


async def serve_split(stage: Stage, *, answer: bytes = b"", **route: Any) -> list[ScriptedWorker]:
    """Serve /, split between `stable` and `next`, whose answers are their names, or `answer` of next."""
    workers = [await stage.worker(response(b"stable")), await stage.worker(answer or response(b"next"))]
    clusters = {name: pool_of(worker) for name, worker in zip(SPLIT, workers, strict=True)}
    await stage.serve(
        endpoints=[],
        routes=[{"prefix": "/", "split": SPLIT, **route}],
        clusters=clusters,
        outlier_detection={"failures": 0},
    )
    return workers


async def change(stage: Stage, **order: Any) -> Message:
    return await stage.ask(local(b"/-/splits", method=b"PUT", body=json.dumps(order).encode()))


async def split_of(stage: Stage) -> dict[str, Any]:
    [split] = (await status(stage))["splits"]
    return dict(split)


async def requests_of(stage: Stage) -> dict[str, int]:
    return {each["name"]: each["requests"] for each in (await split_of(stage))["clusters"]}


async def test_share_is_exact_under_changes_and_no_request_is_lost(stage: Stage) -> None:
    """Three changes while eight clients send: within one per cent between two changes, and every answer is a 200."""
    await serve_split(stage)
    async with traffic(stage) as (answers, pass_requests):
        for share in (10, 30, 0, 50):
            assert (await change(stage, weights={"stable": 100 - share, "next": share})).status == 200
            before = await requests_of(stage)
            sent = dict.fromkeys(SPLIT, 0)
            while sum(sent.values()) < 400:
                await pass_requests()
                sent = {name: number - before[name] for name, number in (await requests_of(stage)).items()}
            assert sent["next"] / sum(sent.values()) == pytest.approx(share / 100, abs=0.01)
    counts = await requests_of(stage)
    assert counts == {name: sum(answer.body == name.encode() for answer in answers) for name in SPLIT}


async def clusters_by_key(stage: Stage, number: int = 300) -> dict[int, bytes]:
    client = await stage.client()
    found = {
        user: (await client.ask(get(b"/", b"Cookie: a=1; user=u%d" % user))).body for user in range(number)
    }
    await client.close()
    return found


async def test_keys_stay_and_only_those_move_that_must(stage: Stage) -> None:
    """A larger share takes keys, and a smaller one gives back the same; a reload changes nothing."""
    await serve_split(stage, split_key={"by": "cookie", "name": "user"})
    small = await clusters_by_key(stage)
    assert small == await clusters_by_key(stage)
    assert 10 <= [*small.values()].count(b"next") <= 60
    await change(stage, weights={"stable": 70, "next": 30})
    large = await clusters_by_key(stage)
    assert [*large.values()].count(b"next") >= 2 * [*small.values()].count(b"next")
    assert all(large[user] == b"next" for user, cluster in small.items() if cluster == b"next")
    await stage.reload(retries=1)
    assert large == await clusters_by_key(stage)
    await change(stage, weights=SPLIT)
    assert small == await clusters_by_key(stage)


async def test_requests_without_the_key_take_turns(stage: Stage) -> None:
    await serve_split(stage, split_key={"by": "header", "name": "x-user"})
    client = await stage.client()
    for _ in range(100):
        await client.ask(get())
    assert (await requests_of(stage))["next"] == pytest.approx(10, abs=1)


async def test_change_stays_until_the_configured_weights_change(stage: Stage) -> None:
    await serve_split(stage)
    await change(stage, weights={"stable": 1, "next": 1}, reason="all is well")
    await stage.reload(retries=1)
    split = await split_of(stage)
    assert (split["changed"], split["reason"]) == (True, "all is well")
    assert [each["share"] for each in split["clusters"]] == [0.5, 0.5]
    await stage.reload(routes=[{"prefix": "/", "split": {"stable": 3, "next": 1}}])
    split = await split_of(stage)
    assert (split["changed"], split["reason"]) == (False, None)
    assert [each["share"] for each in split["clusters"]] == [0.75, 0.25]
    await stage.reload(routes=[{"prefix": "/", "split": {"next": 1, "stable": 3}}])
    shares = {each["name"]: each["share"] for each in (await split_of(stage))["clusters"]}
    assert shares == {"stable": 0.75, "next": 0.25}
    client = await stage.client()
    assert [(await client.ask(get())).body for _ in range(40)].count(b"next") == pytest.approx(10, abs=1)
    await stage.reload(routes=[{"prefix": "/", "cluster": "stable"}])
    assert "splits" not in await status(stage)
    assert (await stage.ask(get())).body == b"stable"


@pytest.mark.parametrize(
    ("order", "code", "words"),
    [
        ({"weights": {"stable": 1}}, 422, "weights: must name two clusters or more, got 1"),
        ({"weights": {"stable": 0, "next": 0}}, 422, "weights: one of the weights must be more than 0"),
        ({"weights": {"stable": 1, "next": -1}}, 422, "weights.next: "),
        ({"weights": {"stable": 1, "beta": 1}}, 404, "of a split: stable, next (*://*/*)"),
        ({"weights": SPLIT, "route": "/x"}, 404, "route: must be one that is split: stable, next (*://*/*)"),
        ({}, 422, "weights: is required"),
    ],
)
async def test_refused_changes(stage: Stage, order: dict[str, Any], code: int, words: str) -> None:
    await serve_split(stage)
    answer = await change(stage, **order)
    assert (answer.status, words in json.loads(answer.body)["error"]) == (code, True), answer.body
    assert [each["weight"] for each in (await split_of(stage))["clusters"]] == [90, 10]


async def send(stage: Stage, number: int, request: bytes = b"") -> None:
    """Send requests between two looks of the guard."""
    client = await stage.client()
    stage.jump(1.1)
    stage.control_plane.splits.sweep(stage.clock.at)
    for _ in range(number):
        await client.ask(request or get())
    stage.jump(1.1)
    stage.control_plane.splits.sweep(stage.clock.at)
    await client.close()


async def test_failing_canary_gets_no_more_requests(stage: Stage, capsys: pytest.CaptureFixture[str]) -> None:
    """Log and status say why; a command brings it back."""
    await serve_split(stage, answer=response(status=b"500 Oops"), canary="next")
    await send(stage, 40)
    assert (await split_of(stage))["reason"] is None, "four failures may be chance"
    await send(stage, 60)
    split = await split_of(stage)
    why = "100.00% of its requests failed, and 0.00% of the others"
    assert split["reason"] == f"canary next: {why}"
    assert [each["share"] for each in split["clusters"]] == [1.0, 0.0]
    assert f"balancer: split *://*/*: no more requests to canary next: {why}\n" in capsys.readouterr().err
    assert {(await stage.ask(get())).status for _ in range(20)} == {200}
    shown = await run_balancer("split", "--url", f"http://{stage.running.address}")
    assert shown.output.splitlines()[1].strip() == split["reason"]
    await change(stage, weights=SPLIT)
    assert (await split_of(stage))["reason"] is None


async def test_only_requests_of_the_split_count(stage: Stage) -> None:
    """Failures of a mirror's copies and of another route's requests neither stop a good canary nor hide a bad one."""
    failing = [b"/bad", b"/copied"]

    def answer(request: Message) -> bytes:
        return response(status=b"500 Oops" if request.line.split()[1] in failing else b"200 OK")

    workers = {"stable": await stage.worker(response()), "next": await stage.worker(answering(answer))}
    await stage.serve(
        endpoints=[],
        routes=[
            {"path": "/bad", "cluster": "next"},
            {"path": "/copied", "cluster": "stable", "mirror": {"cluster": "next", "share": 1.0}},
            {"prefix": "/", "split": SPLIT, "canary": "next"},
        ],
        clusters={name: pool_of(worker) for name, worker in workers.items()},
        outlier_detection={"failures": 0},
    )
    for path in (b"/bad", b"/copied", b"/"):
        await send(stage, 100, get(path))
    await stage.eventually(lambda: len(workers["next"].requests) >= 209)
    assert not (await split_of(stage))["changed"]
    failing[:] = [b"/"]
    for path in (b"/bad", b"/copied", b"/"):
        await send(stage, 100, get(path))
    assert "% of its requests failed, and 0.00% of the others" in (await split_of(stage))["reason"]


async def test_reload_without_a_change_keeps_the_counts_of_the_guard(stage: Stage) -> None:
    await serve_split(stage, answer=response(status=b"500 Oops"), canary="next")
    await send(stage, 40)
    await stage.reload()
    await send(stage, 20)
    assert "of its requests failed" in (await split_of(stage))["reason"]


async def test_canary_that_is_busy_is_guarded(stage: Stage) -> None:
    """Its clients get the 503, although that is no failure for the health of its endpoints."""
    await serve_split(stage, answer=response(status=b"503 Busy"), canary="next")
    clusters = stage.settings.model_dump(exclude_unset=True)["clusters"]
    busy = {name: cluster | {"retry": {"busy": [503]}} for name, cluster in clusters.items()}
    await stage.reload(clusters=busy)
    await send(stage, 100)
    assert "100.00% of its requests failed" in (await split_of(stage))["reason"]


def have_come(workers: list[ScriptedWorker], number: int) -> bool:
    return sum(len(worker.requests) for worker in workers) == number


async def test_canary_whose_clients_leave_is_guarded(stage: Stage) -> None:
    """It hangs, and they have less patience than the balancer."""
    stable = await stage.worker(response())
    hanging = await stage.worker(playing(Wire.request, Wire.closed))
    workers = [stable, hanging]
    await stage.serve(
        endpoints=[],
        routes=[{"prefix": "/", "split": SPLIT, "canary": "next"}],
        clusters={"stable": pool_of(stable), "next": pool_of(hanging)},
    )
    await send(stage, 0)
    for number in range(100):
        client = await stage.sending(get())
        hung = len(hanging.requests)
        await stage.eventually(partial(have_come, workers, number + 1))
        if len(hanging.requests) == hung:
            await client.response()
        client.reset()
    await stage.eventually(lambda: not any(one.router.in_flight for one in stage.running.clusters))
    stage.jump(1.1)
    stage.control_plane.splits.sweep(stage.clock.at)
    assert "of its clients left" in (await split_of(stage))["reason"]


async def test_good_canary_and_one_without_a_guard_keep_their_share(stage: Stage) -> None:
    await serve_split(stage, canary="next")
    await send(stage, 200)
    assert not (await split_of(stage))["changed"]
    await stage.reload(
        routes=[{"prefix": "/", "split": SPLIT}],
        clusters=stage.settings.model_dump(exclude_unset=True)["clusters"]
        | {"next": pool_of(stage.dead_port())},
    )
    await send(stage, 100)
    assert not (await split_of(stage))["changed"]


async def test_canary_without_endpoints_is_guarded(stage: Stage) -> None:
    """No attempt is made there, which is worse than a failed one."""
    await serve_split(stage, canary="next")
    await stage.ask(local(b"/-/endpoints/a0?cluster=next", method=b"PATCH", body=b'{"state": "drain"}'))
    await send(stage, 100)
    assert "100.00% of its requests failed" in (await split_of(stage))["reason"]


async def test_canary_that_rejects_requests_is_guarded(stage: Stage) -> None:
    """Its policy takes it for overloaded."""
    await serve_split(stage, canary="next")
    next(one for one in stage.running.clusters if one.name == "next").router.set_policy(Rejecting())
    await send(stage, 100)
    assert "100.00% of its requests failed" in (await split_of(stage))["reason"]


class Rejecting:
    def pick(self, facts: RequestFacts, available: Available, now: float) -> EndpointState:
        raise Overloaded


async def test_other_keys_of_a_split_route_apply(stage: Stage) -> None:
    """Rewriting, a rate limit and a mirror."""
    workers = [await stage.worker(response(name.encode())) for name in ("stable", "next", "copy")]
    route = {
        "prefix": "/v1",
        "split": {"stable": 1, "next": 1},
        "strip_prefix": True,
        "rate_limit": "few",
        "mirror": {"cluster": "copy", "share": 1.0},
    }
    names = ("stable", "next", "copy")
    await stage.serve(
        endpoints=[],
        routes=[route],
        rate_limits=[{"name": "few", "requests": 4, "period": 60}],
        clusters={name: pool_of(worker) for name, worker in zip(names, workers, strict=True)},
    )
    client = await stage.client()
    answers = [await client.ask(get(b"/v1/x")) for _ in range(5)]
    assert [answer.status for answer in answers] == [200, 200, 200, 200, 429]
    assert {answer.body for answer in answers[:4]} == {b"next", b"stable"}
    await stage.eventually(lambda: len(workers[2].requests) == 4)
    lines = {request.line for worker in workers for request in worker.requests}
    assert lines == {b"GET /x HTTP/1.1"}


async def test_metrics_and_terminal(stage: Stage) -> None:
    await serve_split(stage, split_key={"by": "client"}, canary="next")
    await change(stage, weights={"stable": 0, "next": 2})
    await stage.ask(get())
    text = await metrics(stage)
    assert 'steelyard_split_share{route="*://*/*",to="next"} 1.0\n' in text
    assert 'steelyard_split_requests_total{route="*://*/*",to="next"} 1.0\n' in text
    url = f"http://{stage.running.address}"
    line = (
        "split *://*/*: stable 0% (0 requests), next 100% (1 requests); by client; canary next; "
        "changed since the configuration was read"
    )
    assert line in (await run_balancer("status", "--url", url)).output.splitlines()
    changed = await run_balancer("split", "--url", url, "--route", "*://*/*", "stable=3", "next=1")
    assert changed.output.startswith("split *://*/*: stable 75% (0 requests), next 25% (1 requests)")
    unknown = await run_balancer("split", "--url", url, "--route", "/x")
    assert (unknown.exit_code, "--route: no route '/x' is split" in unknown.output) == (2, True)
    for wrong in ("stable:3", "stable=1_0"):
        assert "CLUSTER=WEIGHT" in (await run_balancer("split", "--url", url, wrong)).output
    refused = await run_balancer("split", "--url", url, "stable=3", "beta=1")
    assert "stable, next (*://*/*)" in refused.output
