"""Peers do comparable work: their files say so, and so does a worker that sees what arrives."""

from __future__ import annotations

import asyncio
import json
import tomllib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from aiohttp import ClientSession, web

from experiments import bench_config, bench_cpu, peers
from experiments.bench_load import CASES
from experiments.bench_runs import Plan, free_ports, order_of, serving
from experiments.errors import BadInputError
from experiments.peers import PEERS, Peer, Site, ours

FORWARDED = ("X-Forwarded-For", "X-Forwarded-Proto", "X-Forwarded-Host", "X-Request-ID", "Via")
UNITS = [ours("least-in-flight"), *(peer for name, peer in PEERS.items() if name != "relay")]


def here(peer: Peer) -> Peer:
    """Skip, with the reason, what is absent."""
    if peer.absence:
        pytest.skip(peer.absence)
    return peer


@asynccontextmanager
async def mirror() -> AsyncIterator[int]:
    """A worker that answers with what it got: its headers, its body's length, the client's port."""

    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        body = await request.read()
        assert request.transport is not None
        port = request.transport.get_extra_info("peername")[1]
        return web.json_response({"headers": dict(request.headers), "body": len(body), "port": port})

    runner = web.ServerRunner(web.Server(answer))
    await runner.setup()
    port = next(free_ports(1))
    await web.TCPSite(runner, "127.0.0.1", port).start()
    try:
        yield port
    finally:
        await runner.cleanup()


async def posted(client: ClientSession, url: str) -> Any:
    """What the mirror says of one POST."""
    async with client.post(url, data=b"x" * 20_000) as response:
        assert response.status == 200
        return await response.json()


@pytest.mark.peer
@pytest.mark.skipif(not bench_cpu.is_known_here(), reason="peers are pinned, on Linux only")
@pytest.mark.parametrize("peer", UNITS, ids=lambda peer: peer.name)
async def test_every_peer_adds_the_same_and_keeps_its_connection(peer: Peer, tmp_path: Path) -> None:
    """Forwarding headers, a fresh id for each request, bodies whole, one upstream connection for all of them."""
    here(peer)
    async with mirror() as worker:
        site = Site(next(free_ports(1)), (worker,), tmp_path)
        url = f"http://127.0.0.1:{site.port}/"
        async with (
            serving(peer.name, peer.argv(site), site.port, CASES["get"], bench_cpu.cores()[0]),
            ClientSession() as client,
        ):
            seen = [await posted(client, url) for _ in range(3)]
    headers = [{name.lower(): value for name, value in one["headers"].items()} for one in seen]
    assert all(name.lower() in one for one in headers for name in FORWARDED)
    assert {one["x-forwarded-for"] for one in headers} == {"127.0.0.1"}
    assert {one["x-forwarded-host"] for one in headers} == {f"127.0.0.1:{site.port}"}
    assert len({one["x-request-id"] for one in headers}) == 3
    assert {one["body"] for one in seen} == {20_000}
    assert len({one["port"] for one in seen}) == 1


def test_our_file_is_one_that_the_unit_reads() -> None:
    found = tomllib.loads(bench_config.steelyard(8080, (9001, 9002), "random"))
    assert found["listen"] == "127.0.0.1:8080"
    assert found["policy"] == "random"
    assert [one["address"] for one in found["endpoints"]] == [
        "http://127.0.0.1:9001",
        "http://127.0.0.1:9002",
    ]


def test_files_of_the_others_name_every_worker_and_only_the_loopback(tmp_path: Path) -> None:
    texts = {
        "nginx": bench_config.nginx(8080, (9001, 9002), tmp_path),
        "haproxy": bench_config.haproxy(8080, (9001, 9002)),
        "envoy": bench_config.envoy(8080, (9001, 9002)),
    }
    for text in texts.values():
        assert all(port in text for port in ("8080", "9001", "9002"))
        assert text.count("127.0.0.1") == 3
        assert "X-Forwarded-Host" in text
    assert "access_log off" in texts["nginx"]
    assert "access_log" not in texts["envoy"]
    assert json.loads(texts["envoy"])["static_resources"]["clusters"][0]["lb_policy"] == "LEAST_REQUEST"


def test_absent_peers_are_known_to_be() -> None:
    missing = Peer("x", lambda _: [], program="no-such-program-anywhere")
    assert missing.absence == "no program 'no-such-program-anywhere' on the PATH"
    assert ours("random").absence == ""


def test_names_of_peers() -> None:
    assert peers.chosen(["none"]) == ()
    assert peers.chosen(["relay", "nginx", "relay"]) == (PEERS["relay"], PEERS["nginx"])
    with pytest.raises(BadInputError, match="unknown 'apache'"):
        peers.chosen(["apache"])


def test_blocks_hold_everybody_once_in_an_order_of_the_seed() -> None:
    units = (ours("random"), *PEERS.values())
    plan = Plan(units, CASES["get"], 1, 1.0, 20, seed=7, proxy_core=0, rest_core=0, wrk=None)
    blocks = order_of(plan)
    assert all(sorted(unit.name for unit in block) == sorted(unit.name for unit in units) for block in blocks)
    assert blocks == order_of(plan)
    assert blocks != order_of(replace(plan, seed=8))
    assert len({tuple(unit.name for unit in block) for block in blocks}) > 1


async def test_a_loopback_port_is_free_and_its_own() -> None:
    ports = list(free_ports(4))
    assert len(set(ports)) == 4
    server = await asyncio.start_server(lambda *_: None, "127.0.0.1", Random(0).choice(ports))
    server.close()
    await server.wait_closed()
