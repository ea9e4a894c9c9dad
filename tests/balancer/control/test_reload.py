"""Reload under traffic: every reloadable key takes effect, a bad configuration changes nothing, no request is lost."""

from __future__ import annotations

import asyncio
import json
import signal
from math import inf
from pathlib import Path
from typing import Any

import pytest

from balancer.config.problems import ConfigError
from balancer.configuration import load
from tests.support.admin_requests import local, put_policy, status
from tests.support.config_files import table
from tests.support.programs import Start
from tests.support.scripts import holding, patient
from tests.support.stage import Stage, endpoint, traffic
from tests.support.wire import (
    Wire,
    get,
    post,
    response,
)

RELOAD = local(b"/-/reload", method=b"POST")


async def test_reload_of_endpoints(stage: Stage) -> None:
    """New ones are used, unchanged ones keep their statistics, removed ones finish their requests."""
    go = asyncio.Event()
    old, stays = await holding(stage, go), await stage.worker(response(b"stays"))
    await stage.serve(old, stays)
    first, second = await stage.client(), await stage.client()
    await first.send(get())
    await stage.eventually(lambda: old.requests)
    assert (await second.ask(get())).body == b"stays"
    fresh = await stage.worker(response(b"fresh"))
    await stage.reload(endpoints=[endpoint(stays, "w1", weight=2), endpoint(fresh, "w2")])
    assert sorted([(await second.ask(get())).body for _ in range(3)]) == [b"fresh", b"stays", b"stays"]
    assert stage.outcomes("w1") == {"ok": 3}
    document = await status(stage)
    assert [each["id"] for each in document["endpoints"]] == ["w1", "w2"]
    assert document["leaving"] == [{"id": "w0", "address": f"http://127.0.0.1:{old.port}", "in_flight": 1}]
    go.set()
    assert (await first.response()).body == b"held"
    assert (await status(stage))["leaving"] == []


async def test_reload_of_policy_timeouts_and_limits(stage: Stage) -> None:
    """Unchanged objects such as the policy are kept with their state."""
    await stage.serve(await stage.worker(response()))
    policy = stage.cluster.router.policy
    await stage.reload(retries=0, home_region="r", timeouts={"first_byte": 7}, pool={"idle_timeout": 1})
    cluster = stage.cluster
    assert (
        cluster.retries.limit,
        cluster.home_region,
        cluster.timeouts.first_byte,
        cluster.pools.settings.pool.idle_timeout,
    ) == (
        0,
        "r",
        7,
        1,
    )
    assert cluster.router.policy is policy
    await stage.reload(policy="random")
    assert cluster.router.policy is not policy
    assert (await status(stage))["policy"]["name"] == "random"


async def test_policy_set_by_command_lasts_until_reload(stage: Stage) -> None:
    """The configuration overrides it."""
    await stage.serve(await stage.worker(response()))
    assert (await stage.ask(put_policy("random"))).status == 200
    await stage.reload()
    assert (await status(stage))["policy"]["name"] == "round-robin"


async def test_higher_limits_serve_waiting_requests(stage: Stage) -> None:
    """A higher limit of the process or of one endpoint."""
    go = asyncio.Event()
    worker = await holding(stage, go)
    await stage.serve(worker, limits={"in_flight": 1})
    clients = [await stage.client() for _ in range(3)]
    for client in clients:
        await client.send(get())
    await stage.eventually(lambda: len(stage.cluster.queue) == 2)
    await stage.reload(limits={"in_flight": 2})
    await stage.eventually(lambda: len(worker.requests) == 2)
    assert len(stage.cluster.queue) == 1
    await stage.reload(limits={}, endpoints=[endpoint(worker, max_in_flight=3)])
    await stage.eventually(lambda: len(worker.requests) == 3)
    go.set()
    assert [(await client.response()).status for client in clients] == [200] * 3


async def test_smaller_queue_rejects_only_new_requests(stage: Stage) -> None:
    go = asyncio.Event()
    worker = await holding(stage, go)
    await stage.serve(worker, max_in_flight=1)
    clients = [await stage.client() for _ in range(2)]
    for client in clients:
        await client.send(get())
    await stage.eventually(lambda: len(stage.cluster.queue) == 1)
    await stage.reload(limits={"queue": 0})
    assert (await stage.ask(get())).status == 503
    go.set()
    assert [(await client.response()).status for client in clients] == [200] * 2


async def test_existing_connections_use_the_new_configuration(stage: Stage) -> None:
    """Trusted proxies, internal fields and the body limit."""
    worker = await stage.serve_worker(response())
    client = await stage.client()
    request_with_fields = get(b"/", b"X-Forwarded-For: 192.0.2.1", b"X-Internal: 1")
    await client.ask(request_with_fields)
    await stage.reload(
        trusted_proxies=["127.0.0.0/8"], headers={"internal": ["x-internal"]}, limits={"body": 10}
    )
    await client.ask(request_with_fields)
    before, after = worker.requests
    assert (before.value(b"X-Forwarded-For"), before.value(b"X-Internal")) == (b"127.0.0.1", b"1")
    assert (after.value(b"X-Forwarded-For"), after.value(b"X-Internal")) == (b"192.0.2.1, 127.0.0.1", None)
    assert (await client.ask(post(b"x" * 11))).status == 413


async def test_request_with_a_partial_head_survives_reload(stage: Stage) -> None:
    """The new configuration applies to it."""
    worker = await stage.serve_worker(response())
    client = await stage.client()
    request = get(b"/", b"X-Internal: 1")
    await client.send(request[:30])
    await stage.eventually(lambda: any(stage.heads_begun()))
    await stage.reload(headers={"internal": ["x-internal"]})
    assert (await client.ask(request[30:])).status == 200
    assert worker.requests[0].value(b"X-Internal") is None


async def test_lower_client_limit(stage: Stage) -> None:
    """Existing clients are closed after their next response."""
    await stage.serve(await stage.worker(response()))
    first, second = await stage.client(), await stage.client()
    for client in (first, second):
        assert (await client.ask(get())).status == 200
    await stage.reload(limits={"clients": 1})
    third = await stage.sending(get())
    assert (await first.ask(get())).value(b"Connection") == b"close"
    assert (await second.ask(get())).value(b"Connection") == b"close"
    assert (await third.response()).status == 200


async def test_reload_of_the_access_log(stage: Stage, tmp_path: Path) -> None:
    """Turn it on, move it to another file and turn it off, with a request in flight."""
    go = asyncio.Event()
    worker = await holding(stage, go)
    await stage.serve(worker)
    one, two = tmp_path / "one", tmp_path / "two"
    await stage.reload(log={"access": "json", "path": str(one)})
    client = await stage.asking(worker, get(b"/first"))
    await stage.reload(log={"access": "text", "path": str(two)})
    go.set()
    await client.response()
    await stage.eventually(lambda: two.exists() and two.read_bytes())
    assert b"path=/first" in two.read_bytes().replace(b'"', b"")
    assert one.read_bytes() == b""
    log = stage.cluster.process.access_log
    assert log is not None
    await stage.eventually(lambda: log.counts.written)  # counted by the writing thread, after the write
    assert log.counts.written == 1
    await stage.reload(log={"access": "off"})
    await client.ask(get(b"/second"))
    assert stage.cluster.process.access_log is None
    assert b"/second" not in two.read_bytes()


async def test_bad_configuration_changes_nothing(stage: Stage, tmp_path: Path) -> None:
    """The response and status give the reason in one line until a reload succeeds."""
    await stage.serve(await stage.worker(response(b"still here")))
    path, good = tmp_path / "balancer.toml", stage.read
    path.write_text("[timeouts]\nhead = -1\n")
    stage.read = lambda: load(path, {})
    control_plane, router = stage.control_plane, stage.cluster.router
    before = (control_plane.config, router.policy, control_plane.registry.members)
    answer = await stage.ask(RELOAD)
    assert (answer.status, list(json.loads(answer.body))) == (422, ["error"])
    problem = json.loads(answer.body)["error"]
    assert "endpoints" in problem or "timeouts.head" in problem
    assert (control_plane.config, router.policy, control_plane.registry.members) == before
    assert (await status(stage))["reload"] == {"done": 0, "refused": 1, "problem": problem, "waiting": []}
    metrics = (await stage.ask(local(b"/-/metrics"))).body
    assert b"steelyard_configuration_good 0.0" in metrics
    assert b'steelyard_reloads_total{result="refused"} 1.0' in metrics
    stage.read = good
    answer = await stage.ask(RELOAD)
    document: dict[str, Any] = {"done": 1, "refused": 1, "problem": None, "waiting": [], "unanswered": []}
    assert (answer.status, json.loads(answer.body)) == (200, document)
    assert (await stage.ask(get())).body == b"still here"


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        ({"log": {"access": "json", "path": "/nowhere/at/all"}}, r"^log\.path: cannot open /nowhere/at/all"),
        ({"tls": {"certificate": "/none.pem"}}, r"^tls\.certificate: cannot read /none\.pem"),
        ({"policy": {"name": "random", "sped": 1}}, r"policy"),
    ],
)
async def test_unusable_file_changes_nothing(stage: Stage, keys: dict[str, Any], named: str) -> None:
    await stage.serve(await stage.worker(response()), timeouts={"head": 3})
    with pytest.raises(ConfigError, match=named):
        await stage.reload(timeouts={"head": 9}, **keys)
    assert stage.cluster.timeouts.head == 3
    assert (await stage.ask(get())).status == 200


async def test_reload_of_hedging(stage: Stage) -> None:
    """A reload keeps what was learned and the budget as long as hedging is on."""
    await stage.serve(await stage.worker(response()))
    assert stage.cluster.hedges is None
    await stage.reload(hedging={"enabled": True, "minimum": 0.5})
    hedges = stage.cluster.hedges
    assert hedges is not None
    assert (await stage.ask(get())).status == 200
    hedges.turn(stage.clock.at + 60)
    learned = hedges.hedging.usual["r"]
    assert learned >= 0.5
    await stage.reload(hedging={"enabled": True, "minimum": 0.02, "share": 0.1})
    assert stage.cluster.hedges is hedges
    assert hedges.hedging.usual["r"] == learned
    for _ in range(200):
        assert (await stage.ask(get())).status == 200
        stage.jump(0.2)
        hedges.turn(stage.clock.at + 60)
    assert hedges.hedging.usual["r"] < 0.5
    await stage.reload(hedging={"enabled": False})
    assert stage.cluster.hedges is None
    assert (await stage.ask(get())).status == 200


async def test_hedged_request_survives_the_end_of_hedging(stage: Stage) -> None:
    """The first response wins, and the other attempt ends."""
    go = asyncio.Event()
    workers = [await holding(stage, go), await holding(stage, go)]
    await stage.serve(*workers, hedging={"enabled": True}, policy="round-robin")
    client = await stage.sending(get())
    await stage.eventually(lambda: stage.cluster.router.in_flight == 1)
    hedges = stage.cluster.hedges
    assert hedges is not None
    stage.clock.at += 20  # less than the timeout of a request, which the sweep also checks
    hedges.turn(stage.clock.at)
    await stage.eventually(lambda: stage.cluster.router.in_flight == 2)
    await stage.reload(hedging={"enabled": False})
    go.set()
    assert (await client.response()).status == 200
    await stage.eventually(lambda: stage.cluster.router.in_flight == 0)
    assert stage.cluster.counts.hedged == 1


async def test_reload_of_adaptive_concurrency(stage: Stage) -> None:
    """A limit starts at `initial`, restarts under other rules and is kept under the same."""
    await stage.serve(await stage.worker(response()))
    (state,) = stage.cluster.router.states
    await stage.reload(concurrency={"adaptive": True, "initial": 7})
    assert state.limit == 7
    found = state.concurrency
    await stage.reload(concurrency={"adaptive": True, "initial": 7}, retries=1)
    assert state.concurrency is found
    await stage.reload(concurrency={"adaptive": True, "initial": 9})
    assert state.limit == 9
    await stage.reload(concurrency={})
    assert (state.limit, state.concurrency) == (inf, None)


async def test_waiting_requests_survive_changed_levels(stage: Stage) -> None:
    """Without a level its requests join the lowest one that is left, by age."""
    go, order = asyncio.Event(), []

    async def script(wire: Wire) -> None:
        while True:
            request = await wire.request()
            await go.wait()
            order.append(request.line.split(b" ")[1])
            await wire.send(response())

    worker = await stage.worker(script)
    limited = endpoint(worker, max_in_flight=1)
    shedding = {"header": "X-Priority", "trust": "all"}
    await stage.serve(endpoints=[limited])
    await stage.reload(endpoints=[limited], admission=shedding)
    clients = []
    for number, level in enumerate((b"normal", b"bulk", b"critical", b"normal", b"bulk")):
        clients.append(await stage.client())
        await clients[-1].send(get(b"/%d" % number, b"X-Priority: " + level))
        await stage.eventually(
            lambda: stage.cluster.router.in_flight + len(stage.cluster.queue) == len(clients)
        )
        stage.clock.at += 0.001
    assert [row["waiting"] for row in (await status(stage))["levels"]] == [1, 1, 2]
    levels = [{"name": "high"}, {"name": "low"}]
    await stage.reload(endpoints=[limited], admission=shedding | {"levels": levels, "default": "low"})
    assert [row["waiting"] for row in (await status(stage))["levels"]] == [1, 3]
    await stage.reload(endpoints=[limited], admission={})
    assert len(stage.cluster.queue) == 4
    go.set()
    assert [(await client.response()).status for client in clients] == [200] * 5
    assert order == [b"/0", b"/1", b"/2", b"/3", b"/4"]


async def test_reload_of_the_timeout_header(stage: Stage) -> None:
    """Client connections that exist already use the new header, too."""
    await stage.serve(await stage.worker(response()))
    client = await stage.client()
    late = get(b"/", b"X-Timeout-Ms: 0")
    await client.send(late)
    assert (await client.response()).status == 200
    await stage.reload(queue={"timeout_header": "X-Timeout-Ms"})
    await client.send(late)
    assert (await client.response()).status == 503
    await stage.reload(queue={})
    await client.send(late)
    assert (await client.response()).status == 200


async def test_reloads_under_load_fail_no_request(stage: Stage, tmp_path: Path) -> None:
    """Each reload changes endpoints, policy, limits, log and trusted proxies, while GETs and POSTs pass."""
    workers = [await stage.worker(patient(b"%d" % number)) for number in range(3)]
    await stage.serve(*workers)
    async with traffic(stage) as (_, pass_requests):
        for turn in range(20):
            named = [endpoint(worker, f"w{n}") for n, worker in enumerate(workers) if n != turn % 3]
            await stage.reload(
                endpoints=named,
                policy=("random", "least-in-flight", "round-robin")[turn % 3],
                limits={"in_flight": 4 + turn % 8, "body": 100 + turn},
                log={"access": ("off", "text", "json")[turn % 3], "path": str(tmp_path / f"log-{turn % 2}")},
                trusted_proxies=["127.0.0.0/8"] if turn % 2 else [],
                hedging={"enabled": turn % 2 == 0},
                concurrency={"adaptive": turn % 3 == 0},
                admission={"header": "X-Priority"} if turn % 4 < 2 else {},
            )
            await pass_requests()
    assert stage.cluster.counts.errors == {}
    assert (await status(stage))["reload"]["done"] == 20


async def test_sighup_reloads(stage: Stage, start: Start, tmp_path: Path) -> None:
    """`balancer serve` reads the file again with the options of its command line, and logs each result in one line."""
    one, two = await stage.worker(response(b"one")), await stage.worker(response(b"two"))
    path = tmp_path / "balancer.toml"
    path.write_text(f'policy = "random"\n{table(one.port)}')
    program = await start("--config", str(path), "--port", "0")
    client = await program.client()
    assert (await client.ask(get())).body == b"one"
    for more, line in (
        (
            "retries = 99; limit = 1",
            f"balancer keeps the configuration that it has: {path}:2: retries: input should be less than or equal "
            f"to 10, got 99; {path}:3: limit: is not a known key; did you mean 'limits'?",
        ),
        ("listen = '127.0.0.1:1'", "balancer has reloaded"),
        ("seed = 5", "balancer has reloaded; only the next start changes: seed"),
    ):
        path.write_text("\n".join(['policy = "random"', *more.split("; "), table(two.port)]))
        program.signal(signal.SIGHUP)
        await program.line("^balancer ")
        assert program.lines[-1] == line
        assert (await client.ask(get())).body == (b"one" if "retries" in more else b"two")
    assert (await program.status())["reload"]["refused"] == 1
    await client.close()
    program.signal(signal.SIGTERM)
    assert await program.ended() == 0
