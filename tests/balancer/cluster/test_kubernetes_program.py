"""The balancer as a program in a cluster, under load: pods come, go and are not ready, and the API server is gone."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tests.support.kubernetes_api import leaving, pod
from tests.support.kubernetes_clusters import (
    PROGRAMS,
    Cluster,
    RealCluster,
    ReplayedCluster,
    has_own_network,
    set_up_network,
    worker,
)
from tests.support.programs import PATIENCE, Load, Program, starting
from tests.support.shared_stores import free_port
from tests.support.wire import get

pytestmark = pytest.mark.second_tier

OUTAGE = float(os.environ.get("STEELYARD_OUTAGE", "2"))
"""Seconds without the API server."""

SOME = 500
"""Requests between two changes."""


@pytest.fixture(params=["replayed", "real"])
async def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Cluster]:
    if has_own_network():
        set_up_network(RealCluster.addresses)
    if request.param == "replayed":
        replayed = ReplayedCluster(tmp_path)
        await replayed.start()
        yield replayed
        await replayed.stop()
        return
    if PROGRAMS is None or not has_own_network():
        pytest.skip(
            "needs etcd and kube-apiserver in $STEELYARD_KUBERNETES, and a network namespace of its own"
        )
    real = RealCluster(tmp_path)
    try:
        await real.start()
        yield real
    finally:
        await real.close()


async def shows(program: Program, ids: set[str], *, problem: bool = False) -> None:
    """Wait until these are the endpoints, and until the source has a problem or none."""
    async with asyncio.timeout(PATIENCE):
        while True:
            status = await program.status()
            (source,) = status["discovery"]
            found = {endpoint["id"] for endpoint in status["endpoints"]}
            if found == ids and (source["problem"] is not None) is problem:
                return
            await asyncio.sleep(0.05)


@pytest.mark.timeout(300)
async def test_no_request_fails(cluster: Cluster, tmp_path: Path) -> None:
    """Without retries, so a request to a pod that has ended would fail."""
    one, two, three = cluster.addresses
    port = free_port()
    ports = [{"name": "http", "protocol": "TCP", "port": port}]
    ids = {address: f"{address}-{port}" for address in cluster.addresses}
    keys = {"service": "workers", "namespace": "shop", **cluster.configuration}
    path = tmp_path / "balancer.toml"
    path.write_text(
        'listen = "127.0.0.1:0"\nretries = 0\n[discovery.kubernetes]\n'
        + "".join(f"{key} = {json.dumps(value)}\n" for key, value in keys.items())
    )
    async with AsyncExitStack() as always, AsyncExitStack() as ended, starting() as start:
        await always.enter_async_context(worker(three, port))
        first = await ended.enter_async_context(AsyncExitStack())
        second = await ended.enter_async_context(AsyncExitStack())
        await first.enter_async_context(worker(one, port))
        await second.enter_async_context(worker(two, port))
        await cluster.put("workers-a", pod(one), pod(two), ports=ports)
        program = await start("--config", str(path))
        load = Load(program, request=get(b"/work"))
        await shows(program, {ids[one], ids[two]})
        await load.answers(SOME)

        await cluster.put("workers-b", pod(three), ports=ports)  # scaled up
        await shows(program, {*ids.values()})
        await load.answers(SOME)

        await cluster.put("workers-a", pod(one, ready=False, serving=False), pod(two), ports=ports)
        await shows(program, {ids[two], ids[three]})
        await first.aclose()
        await load.answers(SOME)
        await first.enter_async_context(worker(one, port))
        await cluster.put("workers-a", pod(one), pod(two), ports=ports)  # ready again
        await shows(program, {*ids.values()})
        await load.answers(SOME)

        await cluster.put("workers-a", pod(one), leaving(two), ports=ports)  # scaled down
        await shows(program, {ids[one], ids[three]})
        await second.aclose()
        await load.answers(SOME)

        await cluster.stop()
        await shows(program, {ids[one], ids[three]}, problem=True)
        await asyncio.sleep(OUTAGE)
        await load.answers(SOME)
        await cluster.start()
        await shows(program, {ids[one], ids[three]})
        await second.enter_async_context(worker(two, port))
        await cluster.put("workers-a", pod(one), pod(two), ports=ports)
        await shows(program, {*ids.values()})
        await load.answers(SOME)
        assert await load.end() == []
        print(f"{load.answered} requests answered")
