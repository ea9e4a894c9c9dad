"""Endpoints by DNS, from a name server on loopback: answers hold for as long as they say, and none is no answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from balancer.config.discovery import is_server, split_server
from balancer.membership.dns_source import DnsSource, endpoint_id
from tests.balancer.certificates import Shelf
from tests.balancer.conftest import Stage, get, response
from tests.balancer.name_server import SERVFAIL, NameServer
from tests.balancer.test_admin import local, status

NAME = "workers.test"


@pytest.fixture
async def names(stage: Stage) -> AsyncIterator[NameServer]:
    server = NameServer()
    await server.start()
    yield server
    server.stop()


def dns(names: NameServer, **keys: Any) -> dict[str, Any]:
    """The configuration of one name."""
    return {"name": NAME, "servers": [f"127.0.0.1:{names.port}"], "timeout": 2.0, **keys}


def only(stage: Stage) -> DnsSource:
    (source,) = stage.control_plane.discovery.sources
    assert isinstance(source, DnsSource)
    return source


def known(stage: Stage) -> list[str]:
    return list(stage.control_plane.registry.members)


async def looked(stage: Stage, seconds: float) -> None:
    """Time passes, and whoever is looked up then has been."""
    stage.clock.at += seconds
    before = stage.control_plane.discovery
    before.tick(stage.clock.at)
    await stage.eventually(lambda: not before.is_looking)


async def serve(stage: Stage, names: NameServer, *workers: Any, **keys: Any) -> None:
    await stage.serve(*workers, discovery={"dns": [dns(names, **keys)]})


async def test_addresses(stage: Stage, names: NameServer) -> None:
    """Both kinds, known before the first client is served, with the keys of the configuration."""
    worker = await stage.worker(response(b"found"))
    names.address(NAME, "127.0.0.1", "::1")
    await serve(stage, names, port=worker.port, region="emea", weight=2, max_in_flight=5)
    assert (await stage.ask(get())).body == b"found"
    four, six = (await status(stage))["endpoints"]
    assert (four["id"], four["address"]) == (f"127.0.0.1-{worker.port}", f"http://127.0.0.1:{worker.port}")
    assert (six["id"], six["address"]) == (f"ip6---1-{worker.port}", f"http://[::1]:{worker.port}")
    for each in (four, six):
        assert (each["region"], each["weight"], each["max_in_flight"]) == ("emea", 2, 5)
        assert each["source"] == f"dns {NAME}:{worker.port}"


async def test_who_stays_keeps_what_is_known(stage: Stage, names: NameServer) -> None:
    """One comes, one goes; in flight, latency and connections of those that stay are untouched."""
    worker = await stage.worker(response())
    names.address(NAME, "127.0.0.1", "127.0.0.2")
    await serve(stage, names, port=worker.port)
    state = stage.state(f"127.0.0.1-{worker.port}")
    names.address(NAME, "127.0.0.3", "127.0.0.1")
    await looked(stage, 1)
    assert known(stage) == [f"127.0.0.1-{worker.port}", f"127.0.0.3-{worker.port}"]
    assert stage.state(f"127.0.0.1-{worker.port}") is state


async def test_an_answer_holds_for_its_ttl(stage: Stage, names: NameServer) -> None:
    """The least of all records on the way, aliases included; not sooner, and not later."""
    names.alias(NAME, "pool.test", ttl=7)
    names.address("pool.test", "127.0.0.1", ttl=30)
    await serve(stage, names, port=80)
    assert known(stage) == ["127.0.0.1-80"]
    await looked(stage, 6.9)
    assert only(stage).lookups == 1
    await looked(stage, 0.2)
    assert only(stage).lookups == 2


@pytest.mark.parametrize(("ttl", "pause"), [(0, 1.0), (86_400, 20.0)])
async def test_pauses_are_bounded(stage: Stage, names: NameServer, ttl: int, pause: float) -> None:
    """A TTL of none does not make us ask without end, one of a day does not blind us for a day."""
    names.address(NAME, "127.0.0.1", ttl=ttl)
    await serve(stage, names, port=80, max_ttl=20)
    for _ in range(8):
        await looked(stage, pause / 16)
    assert only(stage).lookups == 1
    await looked(stage, pause / 2)
    assert only(stage).lookups == 2


@pytest.mark.parametrize("failure", ["no such name", "no addresses", "server failure", "silence", "half"])
async def test_no_answer_keeps_what_was_known(stage: Stage, names: NameServer, failure: str) -> None:
    """It is asked for again, ever less often, said once, and seen in the status; then all is as it was."""
    worker = await stage.worker(response(b"still"))
    names.address(NAME, "127.0.0.1")
    await serve(stage, names, port=worker.port, timeout=0.2 if failure == "silence" else 2.0)
    said: list[str] = []
    stage.control_plane.discovery.say = said.append
    await break_it(names, failure)
    for _ in range(4):
        await looked(stage, 1)
    assert known(stage) == [f"127.0.0.1-{worker.port}"]
    assert (await stage.ask(get())).body == b"still"
    assert only(stage).lookups == 1 + 3  # after 1, 1 and 2 s
    (told,) = (await status(stage))["discovery"]
    assert told["problem"].startswith(f"discovery.dns: {NAME}: ")
    assert len(said) == 1
    assert b"steelyard_discovery_good" in (await stage.ask(local(b"/-/metrics"))).body
    names.is_silent, names.code = False, 0
    names.failing_kinds.clear()
    names.records.clear()
    names.address(NAME, "127.0.0.2")
    await looked(stage, 10)
    assert known(stage) == [f"127.0.0.2-{worker.port}"]
    assert (await status(stage))["discovery"][0]["problem"] is None


async def break_it(names: NameServer, failure: str) -> None:
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


async def test_a_start_without_an_answer(stage: Stage, names: NameServer) -> None:
    """It starts, and says that it has nobody; the first answer changes that."""
    worker = await stage.worker(response())
    await serve(stage, names, port=worker.port)
    assert (await stage.ask(local(b"/-/health"))).status == 503
    assert (await stage.ask(get())).status == 503
    names.address(NAME, "127.0.0.1")
    await looked(stage, 1)
    assert (await stage.ask(local(b"/-/health"))).status == 200
    assert (await stage.ask(get())).status == 200


async def test_services(stage: Stage, names: NameServer) -> None:
    """SRV: ports and weights of their own, of the first priority alone."""
    one, two = await stage.worker(response(b"1")), await stage.worker(response(b"2"))
    names.service(NAME, (1, 3, one.port, "a.test"), (1, 0, two.port, "b.test"), (2, 9, 9, "c.test"))
    names.address("a.test", "127.0.0.1")
    names.address("b.test", "127.0.0.1")
    await serve(stage, names, record="srv")
    told = (await status(stage))["endpoints"]
    assert [(each["id"], each["weight"]) for each in told] == [
        (f"127.0.0.1-{one.port}", 3),
        (f"127.0.0.1-{two.port}", 1),
    ]
    assert sorted([(await stage.ask(get())).body for _ in range(4)]) == [b"1", b"1", b"1", b"2"]
    assert ("c.test", 1) not in names.asked


async def test_a_service_whose_name_has_no_address(stage: Stage, names: NameServer) -> None:
    """Half of an answer is none: what was known stays."""
    names.service(NAME, (0, 0, 80, "a.test"))
    names.address("a.test", "127.0.0.1")
    await serve(stage, names, record="srv")
    names.service(NAME, (0, 0, 80, "a.test"), (0, 0, 80, "b.test"))
    await looked(stage, 1)
    assert known(stage) == ["127.0.0.1-80"]
    assert "b.test: has no addresses" in (only(stage).problem or "")


async def test_beside_those_of_the_configuration(stage: Stage, names: NameServer) -> None:
    """Both take requests; where both name an id, the configuration's counts."""
    worker = await stage.worker(response())
    names.address(NAME, "127.0.0.1", "127.0.0.2")
    ours = {"id": f"127.0.0.2-{worker.port}", "address": f"http://127.0.0.1:{worker.port}", "weight": 7}
    await stage.serve(endpoints=[ours], discovery={"dns": [dns(names, port=worker.port)]})
    assert known(stage) == [f"127.0.0.2-{worker.port}", f"127.0.0.1-{worker.port}"]
    assert stage.state(f"127.0.0.2-{worker.port}").weight == 7


async def test_https_by_name(stage: Stage, names: NameServer, tmp_path: Any) -> None:
    """A certificate is for the name that was looked up, not for the address that it led to."""
    shelf = Shelf(tmp_path)
    worker = await stage.worker(response(b"secure"), tls=shelf.worker(NAME))
    names.address(NAME, "127.0.0.1")
    keys = dns(names, port=worker.port, scheme="https")
    await stage.serve(discovery={"dns": [keys]}, upstream_tls={"ca": str(shelf.ca)})
    assert (await stage.ask(get())).body == b"secure"


async def test_reload(stage: Stage, names: NameServer) -> None:
    """A name that stays goes on with what it knows; one that is gone takes its endpoints along."""
    names.address(NAME, "127.0.0.1", ttl=100)
    names.address("other.test", "127.0.0.2", ttl=100)
    await serve(stage, names, port=80)
    first = only(stage)
    both = [dns(names, port=80), dns(names, name="other.test", port=81)]
    await stage.reload(discovery={"dns": both}, retries=0)
    await stage.eventually(lambda: len(known(stage)) == 2)
    assert known(stage) == ["127.0.0.1-80", "127.0.0.2-81"]
    assert first in stage.control_plane.discovery.sources
    assert first.lookups == 1
    await stage.reload(discovery={"dns": both[1:]})
    assert known(stage) == ["127.0.0.2-81"]


async def test_reload_in_the_middle_of_a_look(stage: Stage, names: NameServer) -> None:
    """The look of a name that is gone comes to nothing."""
    worker = await stage.worker(response())
    names.address(NAME, "127.0.0.1")
    await serve(stage, names, worker, port=80)
    names.is_silent = True
    stage.clock.at += 1
    stage.control_plane.discovery.tick(stage.clock.at)
    asked = len(names.asked)
    await stage.eventually(lambda: len(names.asked) > asked)
    await stage.reload(discovery={})
    assert known(stage) == ["w0"]
    assert not stage.control_plane.discovery.is_looking


async def test_a_stop_in_the_middle_of_a_look(stage: Stage, names: NameServer) -> None:
    """It does not wait for the answer."""
    names.address(NAME, "127.0.0.1")
    await serve(stage, names, port=80, timeout=60)
    names.is_silent = True
    stage.clock.at += 1
    stage.control_plane.discovery.tick(stage.clock.at)
    async with asyncio.timeout(5):
        await stage.close()
    stage.server = None


async def test_an_operator_s_word_on_a_discovered_one(stage: Stage, names: NameServer) -> None:
    """It may be drained and weighed, and that stays; removing it is its discovery's business."""
    names.address(NAME, "127.0.0.1", "127.0.0.2")
    await serve(stage, names, port=80)
    change = local(
        b"/-/endpoints/127.0.0.1-80", method=b"PATCH", body=b'{"state": "maintenance", "weight": 4}'
    )
    assert (await stage.ask(change)).status == 200
    refused = await stage.ask(local(b"/-/endpoints/127.0.0.1-80", method=b"DELETE"))
    assert (refused.status, b"dns workers.test:80" in refused.body) == (409, True)
    names.address(NAME, "127.0.0.1", "127.0.0.3")
    await looked(stage, 1)
    state = stage.state("127.0.0.1-80")
    assert (state.weight, state.available) == (4, False)
    assert known(stage) == ["127.0.0.1-80", "127.0.0.3-80"]


@pytest.mark.parametrize(
    ("host", "identity"),
    [("192.0.2.1", "192.0.2.1-8080"), ("2001:db8::1", "ip6-2001-db8--1-8080"), ("::", "ip6----8080")],
)
def test_ids(host: str, identity: str) -> None:
    """Made of the address alone, and such as ids must be."""
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
def test_servers(text: str, is_one: bool, host: str, port: str) -> None:
    assert (is_server(text), *split_server(text)) == (is_one, host, port)
