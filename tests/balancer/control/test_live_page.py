"""The live page without a browser: the document, the stream and its limits, access."""

from __future__ import annotations

import asyncio
import json
import re
from base64 import b64encode
from hashlib import sha256
from typing import Any

import pytest

from balancer.control.admin.page import sampler
from balancer.control.admin.page.document import page
from balancer.control.admin.page.routes import PageRoutes
from balancer.control.admin.page.window import WINDOW, Window
from balancer.process.server import Server
from policies import registry
from tests.support.admin_requests import TOKEN, local, status
from tests.support.live_stream import opened, snapshot_of
from tests.support.programs import TWO_PROCESSES, Start, workers
from tests.support.stage import Stage
from tests.support.wire import PATIENCE, ScriptedWorker, get, response

AUTHORIZED = b"Authorization: Bearer " + TOKEN.encode()
ADMIN = {"listen": "127.0.0.1:0", "token": TOKEN}


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """A snapshot every few milliseconds."""
    monkeypatch.setattr(sampler, "PERIOD", 0.005)
    monkeypatch.setattr(sampler, "SHARE", 1.0)


# --- the document


def page_of(server: Server) -> PageRoutes:
    """The routes of the page of a server, which has its handlers from now on."""
    if server._admin._handlers is None:
        server._admin._handlers = server._admin._new_handlers()
    return server._admin._handlers._page


def test_document_is_small_and_loads_nothing() -> None:
    """At most 100 kB, no address of another host that is loaded, and a policy that forbids it."""
    body, fields = page()
    assert len(body) <= 100_000
    html = body.decode()
    namespace = "http://www.w3.org/2000/svg"
    links = {found for found in re.findall(r"https?://[^\s'\"<>)`]+", html) if found != namespace}
    assert links == {"https://github.com/leeoniya/uPlot"}, "only the comment that names the library"
    assert not re.search(r"<(script|img|iframe|link)[^>]* (src|href)=\"(?!data:)", html)
    assert "@import" not in html
    assert "url(" not in html
    assert "Leon Sorokin" in html, "the licence asks for the notice in all copies"
    policy = fields["Content-Security-Policy"]
    assert "unsafe" not in policy
    assert policy.startswith("default-src 'none'; ")
    for tag in ("script", "style"):
        (inline,) = re.findall(rf"<{tag}>(.*?)</{tag}>", html, re.DOTALL)
        digest = b64encode(sha256(inline.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}';" in policy


# --- access


async def test_page_and_stream_without_a_token(stage: Stage) -> None:
    """On `admin.listen` for this machine alone; on the traffic port 404."""
    await stage.serve(await stage.worker(response()), admin={"listen": "127.0.0.1:0"})
    for path in (b"/-/", b"/-/stream", b"/-/policies"):
        assert (await (await stage.client()).ask(local(path))).status == 404
        for field in (
            b"X-Forwarded-For: 192.0.2.1",
            b"Origin: http://evil.example",
            b"Sec-Fetch-Site: cross-site",
        ):
            assert (await (await stage.listen_client()).ask(local(path, field))).status == 404
        rebound = local(path, host=b"Host: evil.example")
        assert (await (await stage.listen_client()).ask(rebound)).status == 404
    answer = await (await stage.listen_client()).ask(local(b"/-/"))
    assert (answer.status, answer.body) == (200, page()[0])
    assert answer.value(b"Content-Security-Policy") == page()[1]["Content-Security-Policy"].encode()
    assert (await (await stage.admin_client()).ask(local(b"/-/"))).status == 200
    events = await opened(await stage.listen_client())
    assert (await anext(events))[0] == "history"


async def test_page_with_a_token(stage: Stage) -> None:
    """Only `admin.listen` serves the document without the token, and nothing else."""
    await stage.serve(await stage.worker(response()), admin=ADMIN)
    assert (await (await stage.listen_client()).ask(local(b"/-/"))).status == 200
    with_body = local(b"/-/", body=b"{}")
    post = local(b"/-/", method=b"POST")
    for request in (with_body, post, local(b"/-/stream"), local(b"/-/policies"), local(b"/-/status")):
        assert (await (await stage.listen_client()).ask(request)).status == 404
    for wire in (await stage.client(), await stage.admin_client()):
        assert (await wire.ask(local(b"/-/"))).status == 404
    for wire in (await stage.client(), await stage.admin_client(), await stage.listen_client()):
        assert (await snapshot_of(await opened(wire, AUTHORIZED)))["policy"]["name"] == "round-robin"


async def test_sample_is_for_sibling_processes_only(stage: Stage) -> None:
    await stage.serve(await stage.worker(response()))
    assert (await stage.ask(local(b"/-/sample"))).status == 404


# --- snapshots


@pytest.mark.usefixtures("fast")
async def test_snapshot_equals_the_status(stage: Stage) -> None:
    """Every key that both have is the same, except for times that pass."""
    await stage.serve(await stage.worker(response()), stage.dead_port(), home_region="r")
    client = await stage.client()
    for _ in range(7):
        assert (await client.ask(get())).status == 200
    stage.control_plane.explanations.start(60, 10)
    assert (await client.ask(get())).status == 200
    await stage.eventually(lambda: not stage.cluster.process.in_flight)
    snapshot = await snapshot_of(await opened(await stage.admin_client()))
    report = await status(stage)
    assert snapshot["requests"] == 8
    both = (set(snapshot) & set(report)) - {"endpoints", "uptime"}
    assert len(both) > 18
    assert snapshot["tunnels"].items() <= report.pop("tunnels").items()
    both.remove("tunnels")
    assert {key: snapshot[key] for key in both} == {key: report[key] for key in both}
    for mine, theirs in zip(snapshot["endpoints"], report["endpoints"], strict=True):
        connections = theirs.pop("connections")
        assert mine.pop("connections").items() <= connections.items()
        del mine["recent"]
        assert mine == {key: theirs[key] for key in mine}
    assert snapshot["picks"][0]["picked"] == "w0"
    assert snapshot["picks"][0]["text"] == report["explaining"]["last"] == "in-turn(w0)"


@pytest.mark.usefixtures("fast")
async def test_rates_and_quantiles_of_the_window(stage: Stage) -> None:
    """Differences of two readings: requests, shares, failures, and latency of these requests alone."""
    await stage.serve(await stage.worker(response()), await stage.worker(response(status=b"500 No")))
    client = await stage.client()
    await client.ask(get())
    events = await opened(await stage.admin_client())
    first = await snapshot_of(events)
    assert (
        first["recent"]["rate"] is first["recent"]["p99"] is first["endpoints"][0]["recent"]["rate"] is None
    )
    stage.jump(2.0)
    stage.state().histogram.record(0.2)
    for _ in range(10):
        await client.ask(get())
    async with asyncio.timeout(20):
        while (found := await snapshot_of(events))["requests"] != 11 or found["in_flight"]:
            pass
    assert found["seconds"] == 2.0
    assert (found["recent"]["rate"], found["recent"]["failed"]) == (5.0, 2.5)
    good, bad = (each["recent"] for each in found["endpoints"])
    assert (good["rate"], good["share"], good["failed"], bad["failed"]) == (2.5, 0.5, 0.0, 2.5)
    assert good["p99"] == pytest.approx(0.2, rel=0.05)
    assert bad["p99"] is None
    assert found["regions"] == [
        {
            "name": "r",
            "endpoints": 2,
            "in_flight": 0,
            "recent": {**found["regions"][0]["recent"], "share": 1.0},
        }
    ]


def sample(at: float, pid: int, requests: int, ok: int, address: str = "w0") -> dict[str, Any]:
    outcomes = dict.fromkeys(("error_status", "refused", "timeout", "reset", "abandoned", "tunnelled"), 0)
    endpoint = {
        "id": address, "region": "r", "in_flight": 0, "outcomes": outcomes | {"ok": ok},
        "condition": "ready", "condition_text": "ready", "limit": None,
    }  # fmt: skip
    return {
        "at": at, "pid": pid, "requests": requests, "errors": {}, "retried": 0, "picks": [],
        "readiness": "serving", "panic": {"everywhere": False, "regions": []},
        "endpoints": [endpoint | {"buckets": [ok, 0, 0]}],
    }  # fmt: skip


def test_missing_process_makes_no_rate() -> None:
    """The counts of a process that does not answer, or answers again, are not requests of that second."""
    window = Window()
    window.snapshot([sample(0.0, 1, 100, 100), sample(0.0, 2, 1000, 1000)])
    assert window.snapshot([sample(1.0, 1, 110, 110)])["recent"]["rate"] is None
    found = window.snapshot([sample(2.0, 1, 120, 120), sample(2.0, 2, 1020, 1020)])
    assert found["recent"]["rate"] is found["endpoints"][0]["recent"]["rate"] is None
    found = window.snapshot([sample(3.0, 1, 130, 130), sample(3.0, 2, 1030, 1030)])
    assert (found["recent"]["rate"], found["recent"]["samples"], found["processes"]) == (20.0, 20, 2)


def test_window_slides_and_history_is_bounded() -> None:
    window = Window()
    for second in range(400):
        found = window.snapshot([sample(float(second), 1, 10 * second, 10 * second)])
    assert found["seconds"] == WINDOW
    assert (found["recent"]["rate"], found["recent"]["samples"]) == (10.0, 100)
    assert len(window.points) == 300
    assert window.points[-1]["rate"] == 10.0
    later = window.snapshot([sample(1000.0, 1, 9000, 9000)])
    assert later["recent"]["rate"] is None, "no snapshots in between"
    again = window.snapshot([sample(1001.0, 1, 9001, 3, "new")])
    assert again["endpoints"][0]["recent"]["rate"] is None, "an endpoint that was added has no rate yet"


# --- viewers


@pytest.mark.usefixtures("fast")
async def test_nothing_is_sampled_without_viewers(stage: Stage) -> None:
    """The sampler ends with the last viewer and begins again with the next; all viewers share its snapshots."""
    server = await stage.serve(await stage.worker(response()))
    found = page_of(server).sampler(server.control_plane)
    assert found._task is None
    for _ in range(2):
        clients = [await stage.admin_client() for _ in range(3)]
        for client in clients:
            await snapshot_of(await opened(client))
        assert found.viewers == 3
        for client in clients:
            await client.close()
        await stage.eventually(lambda: found.viewers == 0 and found._task is not None and found._task.done())
    made = found.made
    await stage.turn()
    assert found.made == made


@pytest.mark.usefixtures("fast")
async def test_stream_of_a_named_pool(stage: Stage) -> None:
    """Its endpoints and policy; the snapshots of all pools name the pools."""
    main, api = await stage.worker(response()), await stage.worker(response())
    pool = {"policy": "random", "endpoints": [{"id": "a0", "address": f"http://127.0.0.1:{api.port}"}]}
    await stage.serve(main, routes=[{"prefix": "/api", "cluster": "api"}], clusters={"api": pool})
    for target, endpoint, policy in (
        (b"/-/stream", "w0", "round-robin"),
        (b"/-/stream?cluster=default", "w0", "round-robin"),
        (b"/-/stream?cluster=api", "a0", "random"),
    ):
        snapshot = await snapshot_of(await opened(await stage.admin_client(), target=target))
        assert snapshot["named"] == ["default", "api"]
        assert [each["id"] for each in snapshot["endpoints"]] == [endpoint]
        assert snapshot["policy"]["name"] == policy
        assert snapshot["health"]["summary"] == "serving: 1 endpoint (1 ready)"
    assert (await stage.ask(local(b"/-/stream?cluster=next"))).status == 404
    assert len(page_of(stage.running)._samplers) == 2


@pytest.mark.usefixtures("fast")
async def test_stream_of_a_removed_pool_ends(stage: Stage) -> None:
    """Also if there is another pool of that name later; nothing of the removed one is kept."""
    main, pool = (
        await stage.worker(response()),
        {"endpoints": [{"id": "a0", "address": "http://127.0.0.1:1"}]},
    )
    server = await stage.serve(main, clusters={"api": pool})
    samplers = page_of(server)._samplers
    events = await opened(await stage.admin_client(), target=b"/-/stream?cluster=api")
    await snapshot_of(events)
    await stage.reload(clusters={})
    async with asyncio.timeout(PATIENCE):
        async for _ in events:
            pass
    server.named_clusters.sweep(stage.clock.at)
    await stage.eventually(lambda: not samplers)
    await stage.reload(clusters={"api": pool})
    await snapshot_of(await opened(await stage.admin_client(), target=b"/-/stream?cluster=api"))


@pytest.mark.usefixtures("fast")
async def test_viewer_limit(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampler, "VIEWER_LIMIT", 2)
    await stage.serve(await stage.worker(response()))
    clients = [await stage.admin_client() for _ in range(2)]
    for client in clients:
        await snapshot_of(await opened(client))
    refused = await stage.ask(local(b"/-/stream"))
    assert (refused.status, "viewers" in json.loads(refused.body)["error"]) == (503, True)
    await clients[0].close()
    served = page_of(stage.running).sampler(stage.control_plane)
    await stage.eventually(lambda: served.viewers == 1)
    await snapshot_of(await opened(await stage.admin_client()))


@pytest.mark.usefixtures("fast")
async def test_slow_viewer_is_bounded_and_dropped(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Snapshots are skipped, not queued, for one that does not read; after the limit it is disconnected."""
    monkeypatch.setattr(sampler, "STALL_LIMIT", 0.2)
    server = await stage.serve(await stage.worker(response()))
    served = page_of(server)
    client = await stage.admin_client()
    await snapshot_of(await opened(client))
    client.stop_reading()
    largest = 0

    def is_dropped() -> bool:
        nonlocal largest
        sizes = [transport.get_write_buffer_size() for transport in served.streams.stalled]
        largest = max([largest, *sizes])
        return served.sampler(server.control_plane).viewers == 0

    await stage.eventually(is_dropped)
    assert 0 < largest < 400_000
    client.leave()


@pytest.mark.usefixtures("fast")
async def test_viewers_do_not_hold_up_the_shutdown(stage: Stage) -> None:
    """Also one that has stopped reading."""
    server = await stage.serve(await stage.worker(response()))
    reading, stuck = await stage.admin_client(), await stage.admin_client()
    events = await opened(reading)
    await snapshot_of(events)
    await snapshot_of(await opened(stuck))
    stuck.stop_reading()
    await stage.eventually(lambda: any(t.get_write_buffer_size() for t in page_of(server).streams.stalled))
    async with asyncio.timeout(0.9):  # aiohttp would wait a second for open requests
        assert await server.stop()
    stage.server = None
    assert [name async for name, _ in events].count("history") == 0


async def test_policies_and_options(stage: Stage) -> None:
    await stage.serve(await stage.worker(response()))
    found = {each["name"]: each for each in json.loads((await stage.ask(local(b"/-/policies"))).body)}
    assert list(found) == registry.known()
    assert {"name": "choices", "type": "int", "default": 2} in found["least-in-flight"]["options"]
    assert found["random"]["description"]
    assert {"name": "objective", "type": "str or table", "default": "tail"} in found["steelyard"]["options"]
    assert {"name": "inner", "type": "policy", "default": None} in found["region-aware"]["options"]


# --- several processes


@pytest.mark.second_tier
async def test_stream_covers_all_processes(start: Start, stage: Stage) -> None:
    """Whichever process serves the stream, its counts are those of the whole balancer."""
    worker: ScriptedWorker = await stage.worker(response())
    program = await start(*TWO_PROCESSES, *workers(worker))
    clients = [await program.client() for _ in range(40)]
    for client in clients:
        assert (await client.ask(get())).status == 200
    for _ in range(4):
        wire = await program.admin_client()
        snapshot = await snapshot_of(await opened(wire))
        assert (snapshot["processes"], snapshot["requests"], snapshot["clients"]) == (2, 40, 40)
        assert snapshot["endpoints"][0]["outcomes"]["ok"] == 40
        await wire.close()
    for client in clients:
        await client.close()
