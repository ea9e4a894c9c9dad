"""The balancer as a program in a cluster, under load: pods come, go and are not ready, and the API server is gone.

The API server is a replaying one, or etcd and kube-apiserver as processes; workers are the pods. A real API server
refuses loopback addresses in EndpointSlices, so its pods have addresses of a network namespace that the tests must be
started in:

    STEELYARD_KUBERNETES=FOLDER unshare --net .venv/bin/python -P -m pytest -k test_kubernetes_program tests/balancer

FOLDER has the programs `etcd` and `kube-apiserver`, which a Go module builds whose two `main` functions call
`k8s.io/kubernetes/cmd/kube-apiserver/app.NewAPIServerCommand` and `go.etcd.io/etcd/server/v3/etcdmain.Main`.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

import pytest
import yaml
from aiohttp import ClientConnectionError, ClientSession, TCPConnector

from tests.support.certificates import Shelf
from tests.support.kubernetes_api import ApiServer, Document, endpoint_slice, leaving, pod
from tests.support.programs import PATIENCE, Load, Program, starting
from tests.support.root import ROOT
from tests.support.shared_stores import free_port
from tests.support.wire import ScriptedWorker, get

PROGRAMS = os.environ.get("STEELYARD_KUBERNETES")
ADMIN = "admin-token"


class Cluster(Protocol):
    """An API server whose Service `workers` in the namespace `shop` is watched with the keys of `configuration`."""

    addresses: tuple[str, ...]
    configuration: dict[str, str]

    async def start(self) -> None: ...
    async def stop(self) -> None:
        """End the API server at once; its port refuses connections."""

    async def put(self, name: str, *pods: Document, **more: Any) -> None:
        """Add or change a slice."""


class ReplayedCluster:
    """`ApiServer` in the test's process."""

    addresses: tuple[str, ...] = ("127.0.0.11", "127.0.0.12", "127.0.0.13")

    def __init__(self, folder: Path) -> None:
        self.api = ApiServer()
        self.configuration: dict[str, str] = {}
        self._server = ScriptedWorker(self.api.script)
        self._token = folder / "token"
        self._token.write_text(self.api.token)

    async def start(self) -> None:
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(("127.0.0.1", self._server.port))
        await self._server.start(sock)
        server = f"http://127.0.0.1:{self._server.port}"
        self.configuration = {"server": server, "token_file": str(self._token)}

    async def stop(self) -> None:
        await self._server.stop()

    async def put(self, name: str, *pods: Document, **more: Any) -> None:
        self.api.put(name, *pods, **more)


class RealCluster:
    """etcd and kube-apiserver. The balancer has the rights of deploy/endpointslices."""

    addresses: tuple[str, ...] = ("10.77.0.1", "10.77.0.2", "10.77.0.3")

    def __init__(self, folder: Path) -> None:
        assert PROGRAMS is not None
        self._programs = Path(PROGRAMS)
        self._folder = folder
        self._shelf = Shelf(folder)
        self._serving, self._signing = self._shelf.pair("127.0.0.1"), self._shelf.pair("accounts")
        self._ports = {name: free_port() for name in ("etcd", "peer", "api")}
        self._processes: dict[str, Process] = {}
        self._known: set[str] = set()
        self._url = f"https://127.0.0.1:{self._ports['api']}"
        self.configuration = {
            "server": self._url,
            "token_file": str(folder / "token"),
            "ca_file": str(self._shelf.ca),
        }
        (folder / "tokens.csv").write_text(f'{ADMIN},admin,admin,"system:masters"\n')

    async def start(self) -> None:
        if "etcd" in self._processes:
            await self._run_api_server()
            return
        await self._run(
            "etcd",
            f"--data-dir={self._folder / 'etcd'}",
            f"--listen-client-urls=http://127.0.0.1:{self._ports['etcd']}",
            f"--advertise-client-urls=http://127.0.0.1:{self._ports['etcd']}",
            f"--listen-peer-urls=http://127.0.0.1:{self._ports['peer']}",
        )
        await self._run_api_server()
        await self._grant()

    async def stop(self) -> None:
        await self._kill("kube-apiserver")

    async def close(self) -> None:
        for name in list(self._processes):
            await self._kill(name)

    async def put(self, name: str, *pods: Document, **more: Any) -> None:
        document = endpoint_slice(name, *pods, **more)
        path = "/apis/discovery.k8s.io/v1/namespaces/shop/endpointslices"
        if name in self._known:
            await self._send("PUT", f"{path}/{name}", document)
        else:
            await self._send("POST", path, document)
        self._known.add(name)

    async def _run(self, program: str, *arguments: str) -> None:
        log = (self._folder / f"{program}.log").open("ab")
        with log:
            self._processes[program] = await asyncio.create_subprocess_exec(
                self._programs / program, *arguments, stdout=log, stderr=log
            )

    async def _kill(self, program: str) -> None:
        process = self._processes.pop(program, None)
        if process is not None:
            with suppress(ProcessLookupError):  # it has ended by itself
                process.kill()
            await process.wait()

    async def _run_api_server(self) -> None:
        await self._run(
            "kube-apiserver",
            f"--etcd-servers=http://127.0.0.1:{self._ports['etcd']}",
            f"--secure-port={self._ports['api']}",
            *("--bind-address=127.0.0.1", "--advertise-address=127.0.0.1"),
            f"--tls-cert-file={self._serving['certificate']}",
            f"--tls-private-key-file={self._serving['key']}",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={self._signing['key']}",
            f"--service-account-signing-key-file={self._signing['key']}",
            f"--token-auth-file={self._folder / 'tokens.csv'}",
            *("--authorization-mode=RBAC", "--disable-admission-plugins=ServiceAccount"),
            "--service-cluster-ip-range=10.96.0.0/24",
        )
        async with asyncio.timeout(2 * PATIENCE):
            while not await self._is_ready():  # noqa: ASYNC110 - another process becomes ready
                await asyncio.sleep(0.1)

    async def _is_ready(self) -> bool:
        try:
            async with self._session() as session, session.get(f"{self._url}/readyz") as found:
                return found.status == 200
        except ClientConnectionError:
            return False

    async def _grant(self) -> None:
        """Create what gives the balancer its rights, and a token of its service account."""
        for namespace in ("shop", "steelyard"):
            await self._send("POST", "/api/v1/namespaces", {"metadata": {"name": namespace}})
        core, rbac = "/api/v1/namespaces/steelyard", "/apis/rbac.authorization.k8s.io/v1/namespaces/shop"
        paths = {
            "ServiceAccount": f"{core}/serviceaccounts",
            "Role": f"{rbac}/roles",
            "RoleBinding": f"{rbac}/rolebindings",
        }
        manifest = (ROOT / "deploy/endpointslices/access.yaml").read_text(encoding="utf-8")
        for document in yaml.safe_load_all(manifest):
            await self._send("POST", paths[document["kind"]], document)
        request = {"spec": {"expirationSeconds": 3600}}
        token = await self._send("POST", f"{core}/serviceaccounts/balancer/token", request)
        (self._folder / "token").write_text(token["status"]["token"])

    async def _send(self, method: str, path: str, document: Document) -> Any:
        async with (
            self._session() as session,
            session.request(method, self._url + path, json=document) as found,
        ):
            body = await found.json()
            assert found.status in (200, 201), body
            return body

    def _session(self) -> ClientSession:
        connector = TCPConnector(ssl=self._shelf.client())
        return ClientSession(headers={"Authorization": f"Bearer {ADMIN}"}, connector=connector)


def set_up_network(addresses: Iterable[str]) -> None:
    """Give the loopback interface of this network namespace further addresses."""
    for command in ("link set lo up", *(f"addr replace {address}/32 dev lo" for address in addresses)):
        subprocess.run(["ip", *command.split()], check=True)


def has_own_network() -> bool:
    """Whether nothing is reached but this process's own network namespace."""
    return [name for _, name in socket.if_nameindex()] == ["lo"]


@asynccontextmanager
async def worker(address: str, port: int) -> AsyncIterator[None]:
    """A worker as a process; SIGTERM ends it, after its requests in flight."""
    options = f"--host {address} --port {port} --service fixed:2ms --slots 16".split()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "workers", "serve", *options, stdout=PIPE
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(PATIENCE):
            assert b" ready on " in await process.stdout.readline()
        yield
    finally:
        process.terminate()
        await process.communicate()


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
