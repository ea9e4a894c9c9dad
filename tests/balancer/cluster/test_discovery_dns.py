"""Endpoint discovery by DNS: TTLs, SRV records, failures that keep the known endpoints."""

from __future__ import annotations

import asyncio

import pytest

from balancer.cluster.discovery.dns_source import endpoint_id
from balancer.config.schema.discovery import is_server, split_server
from balancer.upstream.dial.resolver import MAX_QUERIES
from tests.support.admin_requests import local, metrics, status
from tests.support.dns_discovery import NAME, dns, known, only_source, pass_time, serve_names
from tests.support.name_server import SERVFAIL, NameServer
from tests.support.stage import Stage
from tests.support.wire import get, response


async def test_address_records(stage: Stage, names: NameServer) -> None:
    """IPv4 and IPv6 addresses, resolved before the first client is served, with the configured keys."""
    worker = await stage.worker(response(b"found"))
    names.address(NAME, "127.0.0.1", "::1")
    await serve_names(stage, names, port=worker.port, region="emea", weight=2, max_in_flight=5)
    assert (await stage.ask(get())).body == b"found"
    four, six = (await status(stage))["endpoints"]
    assert (four["id"], four["address"]) == (f"127.0.0.1-{worker.port}", f"http://127.0.0.1:{worker.port}")
    assert (six["id"], six["address"]) == (f"ip6---1-{worker.port}", f"http://[::1]:{worker.port}")
    for each in (four, six):
        assert (each["region"], each["weight"], each["max_in_flight"]) == ("emea", 2, 5)
        assert each["source"] == f"dns {NAME}:{worker.port}"


async def test_unchanged_endpoint_keeps_its_state(stage: Stage, names: NameServer) -> None:
    """An address is added, one is removed; the state of the one that stays is kept."""
    worker = await stage.worker(response())
    names.address(NAME, "127.0.0.1", "127.0.0.2")
    await serve_names(stage, names, port=worker.port)
    state = stage.state(f"127.0.0.1-{worker.port}")
    names.address(NAME, "127.0.0.3", "127.0.0.1")
    await pass_time(stage, 1)
    assert known(stage) == [f"127.0.0.1-{worker.port}", f"127.0.0.3-{worker.port}"]
    assert stage.state(f"127.0.0.1-{worker.port}") is state


async def test_ttl(stage: Stage, names: NameServer) -> None:
    """The smallest TTL of all records on the way, aliases included."""
    names.alias(NAME, "pool.test", ttl=7)
    names.address("pool.test", "127.0.0.1", ttl=30)
    await serve_names(stage, names, port=80)
    assert known(stage) == ["127.0.0.1-80"]
    await pass_time(stage, 6.9)
    assert only_source(stage).lookups == 1
    await pass_time(stage, 0.2)
    assert only_source(stage).lookups == 2


@pytest.mark.parametrize(("ttl", "max_ttl", "pause"), [(0, 20, 1.0), (86_400, 20, 20.0), (5, 0.001, 1.0)])
async def test_ttl_is_bounded(
    stage: Stage, names: NameServer, ttl: int, max_ttl: float, pause: float
) -> None:
    """A TTL of 0 waits a second, one of a day waits `max_ttl`, but also a second."""
    names.address(NAME, "127.0.0.1", ttl=ttl)
    await serve_names(stage, names, port=80, max_ttl=max_ttl)
    for _ in range(8):
        await pass_time(stage, pause / 16)
    assert only_source(stage).lookups == 1
    await pass_time(stage, pause / 2)
    assert only_source(stage).lookups == 2


@pytest.mark.parametrize("failure", ["no such name", "no addresses", "server failure", "silence", "half"])
async def test_failed_look_up_keeps_the_endpoints(stage: Stage, names: NameServer, failure: str) -> None:
    """Retries back off, one message, the problem is in the status; a later answer is applied."""
    worker = await stage.worker(response(b"still"))
    names.address(NAME, "127.0.0.1")
    await serve_names(stage, names, port=worker.port, timeout=0.2 if failure == "silence" else 2.0)
    problems: list[str] = []
    stage.control_plane.discovery.say = problems.append
    await inject_failure(names, failure)
    for _ in range(4):
        await pass_time(stage, 1)
    assert known(stage) == [f"127.0.0.1-{worker.port}"]
    assert (await stage.ask(get())).body == b"still"
    assert only_source(stage).lookups == 1 + 3  # after 1, 1 and 2 s
    (report,) = (await status(stage))["discovery"]
    assert report["problem"].startswith(f"discovery.dns: {NAME}: ")
    assert len(problems) == 1
    assert "steelyard_discovery_good" in await metrics(stage)
    names.is_silent, names.code = False, 0
    names.failing_kinds.clear()
    names.records.clear()
    names.address(NAME, "127.0.0.2")
    await pass_time(stage, 10)
    assert known(stage) == [f"127.0.0.2-{worker.port}"]
    assert (await status(stage))["discovery"][0]["problem"] is None


async def inject_failure(names: NameServer, failure: str) -> None:
    if failure == "no such name":
        names.records.clear()
    elif failure == "no addresses":
        names.address(NAME)
    elif failure == "server failure":
        names.code = SERVFAIL
    elif failure == "silence":
        names.is_silent = True
    else:
        names.failing_kinds.add(28)


async def test_start_without_an_answer(stage: Stage, names: NameServer) -> None:
    """The balancer starts without endpoints and takes them from the first answer."""
    worker = await stage.worker(response())
    await serve_names(stage, names, port=worker.port)
    assert (await stage.ask(local(b"/-/health"))).status == 503
    assert (await stage.ask(get())).status == 503
    names.address(NAME, "127.0.0.1")
    await pass_time(stage, 1)
    assert (await stage.ask(local(b"/-/health"))).status == 200
    assert (await stage.ask(get())).status == 200


async def test_slow_start_of_discovered_endpoints(stage: Stage, names: NameServer) -> None:
    """None is new at the start of the balancer, a later one is."""
    names.address(NAME, "127.0.0.1")
    discovery = {"dns": [dns(names, port=80)]}
    await stage.serve(await stage.worker(response()), discovery=discovery, slow_start={"window": 60})
    names.address(NAME, "127.0.0.1", "127.0.0.2")
    await pass_time(stage, 1)
    assert [state.share for state in stage.cluster.router.states] == [1.0, 1.0, 0.1]


async def test_srv_records(stage: Stage, names: NameServer) -> None:
    """Ports and weights come from the SRV records of the lowest priority."""
    one, two = await stage.worker(response(b"1")), await stage.worker(response(b"2"))
    names.service(NAME, (1, 3, one.port, "a.test"), (1, 0, two.port, "b.test"), (2, 9, 9, "c.test"))
    names.address("a.test", "127.0.0.1")
    names.address("b.test", "127.0.0.1")
    await serve_names(stage, names, record="srv")
    report = (await status(stage))["endpoints"]
    assert [(each["id"], each["weight"]) for each in report] == [
        (f"127.0.0.1-{one.port}", 3),
        (f"127.0.0.1-{two.port}", 1),
    ]
    assert sorted([(await stage.ask(get())).body for _ in range(4)]) == [b"1", b"1", b"1", b"2"]
    assert ("c.test", 1) not in names.asked


async def test_srv_target_without_addresses(stage: Stage, names: NameServer) -> None:
    """An incomplete answer changes nothing."""
    names.service(NAME, (0, 0, 80, "a.test"))
    names.address("a.test", "127.0.0.1")
    await serve_names(stage, names, record="srv")
    names.service(NAME, (0, 0, 80, "a.test"), (0, 0, 80, "b.test"))
    await pass_time(stage, 1)
    assert known(stage) == ["127.0.0.1-80"]
    assert "b.test: has no addresses" in (only_source(stage).problem or "")


@pytest.mark.parametrize("failure", ["no such name", "server failure"])
async def test_other_srv_targets_are_used(stage: Stage, names: NameServer, failure: str) -> None:
    """A target that fails is left out, or keeps its addresses if they are known, and is the problem."""
    names.service(NAME, (0, 0, 80, "a.test"), (0, 0, 80, "b.test"))
    names.address("a.test", "127.0.0.1")
    await serve_names(stage, names, record="srv")
    assert known(stage) == ["127.0.0.1-80"]
    assert only_source(stage).problem == "discovery.dns: b.test: has no addresses"
    names.address("b.test", "127.0.0.2")
    await pass_time(stage, 1)
    assert (known(stage), only_source(stage).problem) == (["127.0.0.1-80", "127.0.0.2-80"], None)
    names.service(NAME, (0, 0, 80, "b.test"), (0, 0, 80, "c.test"))
    names.address("c.test", "127.0.0.3", "127.0.0.4")
    if failure == "no such name":
        names.address("b.test")
    else:
        names.failing_names.add("b.test")
    await pass_time(stage, 1)
    assert known(stage) == ["127.0.0.2-80", "127.0.0.3-80", "127.0.0.4-80"]
    assert (only_source(stage).problem or "").startswith("discovery.dns: b.test: ")


async def test_one_failing_family(stage: Stage, names: NameServer) -> None:
    """The other one is used; addresses that are known of the failing one stay."""
    names.address(NAME, "127.0.0.1", "::1")
    names.failing_kinds.add(28)
    await serve_names(stage, names, port=80)
    assert known(stage) == ["127.0.0.1-80"]
    assert (only_source(stage).problem or "").startswith(f"discovery.dns: {NAME}: ")
    names.failing_kinds.clear()
    await pass_time(stage, 1)
    assert known(stage) == ["127.0.0.1-80", "ip6---1-80"]
    names.address(NAME, "127.0.0.2")
    names.failing_kinds.add(28)
    await pass_time(stage, 1)
    assert known(stage) == ["127.0.0.2-80", "ip6---1-80"]
    await stage.reload(discovery={"dns": [dns(names, port=80, region="other")]})
    assert known(stage) == ["127.0.0.2-80", "ip6---1-80"]
    assert {state.region for state in stage.cluster.router.states} == {"other"}


def many_targets(names: NameServer, number: int) -> None:
    targets = [f"p{at}.test" for at in range(number)]
    names.service(NAME, *((0, 0, 80 + at, target) for at, target in enumerate(targets)))
    for target in targets:
        names.address(target, "127.0.0.1")


async def test_many_srv_targets_take_longer_than_the_timeout(stage: Stage, names: NameServer) -> None:
    """The timeout is that of a query from when it is sent."""
    many_targets(names, 64)
    names.delay = 0.15
    await serve_names(stage, names, record="srv", timeout=0.9)
    assert (len(known(stage)), only_source(stage).problem) == (64, None)


async def test_no_queries_are_sent_to_a_silent_server(stage: Stage, names: NameServer) -> None:
    """Beyond those of the first timeout."""
    many_targets(names, 64)
    names.silent_kinds = {1, 28}
    await serve_names(stage, names, record="srv", timeout=0.2)
    assert "no answer within 0.2 s" in (only_source(stage).problem or "")
    assert len(set(names.asked)) == 1 + MAX_QUERIES


async def test_first_source_defines_an_endpoint(stage: Stage, names: NameServer) -> None:
    """That of the configuration, whichever has answered first."""
    names.address("two.test", "127.0.0.1")
    both = [dns(names, name=f"{name}.test", port=80, region=name) for name in ("one", "two")]
    await stage.serve(discovery={"dns": both})
    assert stage.state("127.0.0.1-80").region == "two"
    names.address("one.test", "127.0.0.1")
    stage.clock.at += 1
    stage.control_plane.discovery.tick(stage.clock.at)
    await stage.eventually(lambda: stage.state("127.0.0.1-80").region == "one")
    await stage.reload(discovery={"dns": both[::-1]})
    assert stage.state("127.0.0.1-80").region == "two"


async def test_reload(stage: Stage, names: NameServer) -> None:
    """A name that stays keeps its state; a removed name removes its endpoints."""
    names.address(NAME, "127.0.0.1", ttl=100)
    names.address("other.test", "127.0.0.2", ttl=100)
    await serve_names(stage, names, port=80)
    first = only_source(stage)
    both = [dns(names, port=80), dns(names, name="other.test", port=81)]
    await stage.reload(discovery={"dns": both}, retries=0)
    await stage.eventually(lambda: len(known(stage)) == 2)
    assert known(stage) == ["127.0.0.1-80", "127.0.0.2-81"]
    assert first in stage.control_plane.discovery.sources
    assert first.lookups == 1
    await stage.reload(discovery={"dns": both[1:]})
    assert known(stage) == ["127.0.0.2-81"]


async def test_reload_during_a_look_up(stage: Stage, names: NameServer) -> None:
    """The result for a removed name is discarded."""
    worker = await stage.worker(response())
    names.address(NAME, "127.0.0.1")
    await serve_names(stage, names, worker, port=80)
    names.is_silent = True
    stage.clock.at += 1
    stage.control_plane.discovery.tick(stage.clock.at)
    asked = len(names.asked)
    await stage.eventually(lambda: len(names.asked) > asked)
    await stage.reload(discovery={})
    assert known(stage) == ["w0"]
    assert not stage.control_plane.discovery._tasks


async def test_problem_of_a_name_that_comes_back_is_logged_again(stage: Stage, names: NameServer) -> None:
    await serve_names(stage, names, await stage.worker(response()), port=80)
    problems: list[str] = []
    stage.control_plane.discovery.say = problems.append
    for times in (1, 2):
        await stage.reload(discovery={})
        await stage.reload(discovery={"dns": [dns(names, port=80)]})
        for _ in range(2):
            await pass_time(stage, 5)
        assert len(problems) == times


async def test_stop_during_a_look_up(stage: Stage, names: NameServer) -> None:
    """The balancer does not wait for the answer."""
    names.address(NAME, "127.0.0.1")
    await serve_names(stage, names, port=80, timeout=60)
    names.is_silent = True
    stage.clock.at += 1
    stage.control_plane.discovery.tick(stage.clock.at)
    async with asyncio.timeout(5):
        await stage.close()
    stage.server = None


async def test_commands_on_a_discovered_endpoint(stage: Stage, names: NameServer) -> None:
    """State and weight set by command stay; removal is rejected."""
    names.address(NAME, "127.0.0.1", "127.0.0.2")
    await serve_names(stage, names, port=80)
    change = local(
        b"/-/endpoints/127.0.0.1-80", method=b"PATCH", body=b'{"state": "maintenance", "weight": 4}'
    )
    assert (await stage.ask(change)).status == 200
    refused = await stage.ask(local(b"/-/endpoints/127.0.0.1-80", method=b"DELETE"))
    assert (refused.status, b"dns workers.test:80" in refused.body) == (409, True)
    names.address(NAME, "127.0.0.1", "127.0.0.3")
    await pass_time(stage, 1)
    state = stage.state("127.0.0.1-80")
    assert (state.weight, state.available) == (4, False)
    assert known(stage) == ["127.0.0.1-80", "127.0.0.3-80"]


@pytest.mark.parametrize(
    ("host", "identity"),
    [("192.0.2.1", "192.0.2.1-8080"), ("2001:db8::1", "ip6-2001-db8--1-8080"), ("::", "ip6----8080")],
)
def test_endpoint_ids(host: str, identity: str) -> None:
    """Derived from the address, in the alphabet of ids."""
    assert endpoint_id(host, 8080) == identity


@pytest.mark.parametrize(
    ("text", "is_one", "host", "port"),
    [
        ("192.0.2.1", True, "192.0.2.1", "53"),
        ("192.0.2.1:5353", True, "192.0.2.1", "5353"),
        ("::1", True, "::1", "53"),
        ("[::1]", True, "::1", "53"),
        ("[::1]:5353", True, "::1", "5353"),
        ("[::1]5353", True, "::1", "5353"),
        ("a.example", False, "a.example", "53"),
        ("192.0.2.1:0", False, "192.0.2.1", "0"),
        ("192.0.2.1:x", False, "192.0.2.1", "x"),
        ("", False, "", "53"),
    ],
)
def test_name_server_addresses(text: str, is_one: bool, host: str, port: str) -> None:
    assert (is_server(text), *split_server(text)) == (is_one, host, port)
