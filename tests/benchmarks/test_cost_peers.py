"""Compared proxies do comparable work: their configuration files, and what a worker behind each of them receives."""

from __future__ import annotations

import asyncio
import json
import tomllib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest
from aiohttp import ClientSession, web

from benchmarks.cost.command import peers_of
from benchmarks.harness import certificates, peer_files, peers
from benchmarks.harness.cases import CASES, Case
from benchmarks.harness.certificates import SUITE, certificate_in, client_context
from benchmarks.harness.options import known_policies
from benchmarks.harness.peer_files import Site
from benchmarks.harness.peers import PEERS, Peer, ours
from benchmarks.harness.serving import serving
from benchmarks.harness.verdicts import shuffled_blocks
from experiments.errors import BadInputError
from experiments.platform import cpu_time
from experiments.platform.instant_worker import CHUNKS, InstantConnection
from experiments.platform.ports import free_ports

FORWARDED = ("X-Forwarded-For", "X-Forwarded-Proto", "X-Forwarded-Host", "X-Request-ID", "Via")
ALL_PEERS = [ours("least-in-flight"), *(peer for name, peer in PEERS.items() if name != "relay")]
SECURE = [ours("least-in-flight"), *(PEERS[name] for name in CASES["tls"].others or ())]


def skip_if_absent(peer: Peer, case: Case = CASES["get"]) -> None:
    if reason := peer.absence_from(case):
        pytest.skip(reason)


@asynccontextmanager
async def mirror() -> AsyncIterator[int]:
    """Run a worker that responds with headers, body length and client port of the request; yields its port."""

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
    """Response of the mirror to one POST."""
    async with client.post(url, data=b"x" * 20_000, ssl=client_context()) as response:
        assert response.status == 200
        return await response.json()


async def seen_through(peer: Peer, case: Case, folder: Path) -> list[dict[str, Any]]:
    """Responses of the mirror to three POSTs through a peer on one connection."""
    certificate = certificate_in(folder) if case.is_tls else None
    async with mirror() as worker:
        site = Site(next(free_ports(1)), (worker,), folder, certificate)
        url = f"{'https' if case.is_tls else 'http'}://127.0.0.1:{site.port}/"
        async with (
            serving(peer.name, peer.argv(site), site.port, case, cpu_time.cores()[0]),
            ClientSession() as client,
        ):
            seen = [await posted(client, url) for _ in range(3)]
            if case.is_tls:
                await assert_usual_suite(site.port)
    return [
        one | {"headers": {name.lower(): value for name, value in one["headers"].items()}, "at": site.port}
        for one in seen
    ]


def assert_comparable(seen: list[dict[str, Any]], proto: str) -> None:
    """Check forwarding headers, a fresh id for each request, complete bodies, and one upstream connection."""
    headers = [one["headers"] for one in seen]
    assert all(name.lower() in one for one in headers for name in FORWARDED)
    assert {one["x-forwarded-for"] for one in headers} == {"127.0.0.1"}
    assert {one["x-forwarded-proto"] for one in headers} == {proto}
    assert {one["x-forwarded-host"] for one in headers} == {f"127.0.0.1:{seen[0]['at']}"}
    assert len({one["x-request-id"] for one in headers}) == 3
    assert {one["body"] for one in seen} == {20_000}
    assert len({one["port"] for one in seen}) == 1


@pytest.mark.peer
@pytest.mark.skipif(not cpu_time.is_known_here(), reason="peers are pinned, on Linux only")
@pytest.mark.parametrize(
    ("case", "peer"),
    [*(("get", peer) for peer in ALL_PEERS), *(("tls", peer) for peer in SECURE)],
    ids=lambda value: getattr(value, "name", value),
)
async def test_every_peer_adds_the_same_headers_and_keeps_its_connection(
    case: str, peer: Peer, tmp_path: Path
) -> None:
    """With TLS it reports https to the worker, and uses the same suite: else the benchmark would compare ciphers."""
    skip_if_absent(peer, CASES[case])
    assert_comparable(await seen_through(peer, CASES[case], tmp_path), "https" if case == "tls" else "http")


@pytest.mark.peer
@pytest.mark.skipif(not cpu_time.is_known_here(), reason="peers are pinned, on Linux only")
@pytest.mark.parametrize("peer", SECURE, ids=lambda peer: peer.name)
async def test_every_peer_of_the_stream_case_passes_chunks_on_as_they_come(
    peer: Peer, tmp_path: Path
) -> None:
    """A peer that collects them would have less to do."""
    skip_if_absent(peer)
    case, loop = CASES["stream"], asyncio.get_running_loop()
    worker = await loop.create_server(InstantConnection, "127.0.0.1", 0)
    site = Site(next(free_ports(1)), (worker.sockets[0].getsockname()[1],), tmp_path, is_streamed=True)
    async with (
        worker,
        serving(peer.name, peer.argv(site), site.port, case, None),
        ClientSession() as client,
    ):
        parts = []
        for _ in range(10):  # on a busy machine, some come together
            async with client.get(f"http://127.0.0.1:{site.port}{case.path}") as answer:
                parts.append(len([part async for part in answer.content.iter_any()]))
    assert max(parts) > CHUNKS / 5


async def assert_usual_suite(port: int) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=client_context())
    found = writer.get_extra_info("ssl_object")
    assert (found.version(), found.cipher()[0]) == ("TLSv1.3", SUITE)
    writer.transport.abort()  # a close would fail on unread session tickets


@pytest.mark.peer
@pytest.mark.skipif(not cpu_time.is_known_here(), reason="peers are pinned, on Linux only")
async def test_balancer_with_many_endpoints_of_one_address(tmp_path: Path) -> None:
    proxy = ours("round-robin", 100, 8)
    assert proxy.name == "steelyard round-robin, 100 endpoints"
    async with mirror() as worker:
        site = Site(next(free_ports(1)), (worker,) * proxy.endpoints, tmp_path)
        url = f"http://127.0.0.1:{site.port}/"
        async with (
            serving(proxy.name, proxy.argv(site), site.port, CASES["endpoints"], cpu_time.cores()[0]),
            ClientSession() as client,
        ):
            seen = [await posted(client, url) for _ in range(3)]
    assert len({one["port"] for one in seen}) == 3


@pytest.mark.skipif(bool(certificates.absence()), reason="needs openssl")
def test_configurations_with_tls(tmp_path: Path) -> None:
    """HAProxy expects certificate and key in one file, the others in two."""
    made = certificate_in(tmp_path)
    site = Site(8080, (9001,), tmp_path, made)
    own = tomllib.loads(peer_files.steelyard(site, "random"))
    assert own["tls"] == {"certificate": str(made.certificate), "key": str(made.key)}
    nginx = peer_files.rendered("nginx.conf", site)
    assert "listen 127.0.0.1:8080 ssl;" in nginx
    assert f"ssl_conf_command Ciphersuites {SUITE};" in nginx
    bind = f"bind 127.0.0.1:8080 ssl crt {made.both} ssl-min-ver TLSv1.3 ciphersuites {SUITE}"
    assert bind in peer_files.rendered("haproxy.cfg", site)
    text = made.both.read_text(encoding="ascii")
    assert text.count("BEGIN CERTIFICATE") == text.count("BEGIN PRIVATE KEY") == 1
    plain = Site(8080, (9001,), tmp_path)
    assert "tls" not in tomllib.loads(peer_files.steelyard(plain, "random"))
    assert not any("ssl" in peer_files.rendered(name, plain) for name in ("nginx.conf", "haproxy.cfg"))


def test_head_timeout_in_every_configuration(tmp_path: Path) -> None:
    """Without it, each has its default."""
    sites = [Site(8080, (9001,), tmp_path, head_timeout=seconds) for seconds in (2.0, None)]
    texts = [
        peer_files.steelyard(site, "random")
        + peer_files.rendered("nginx.conf", site)
        + peer_files.rendered("haproxy.cfg", site)
        for site in sites
    ]
    for line in (
        '\ntimeouts = { "head" = 2.0 }\n',
        "\n    client_header_timeout 2s;\n",
        "\n  timeout http-request 2s\n",
    ):
        assert [line in text for text in texts] == [True, False]


def test_a_class_in_a_file_is_a_policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Relative to the working directory of the command, although the balancer starts elsewhere; named by its class."""
    text = "class Mine:\n    def pick(self, facts, available, now):\n        return available[0]\n"
    (tmp_path / "mine.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    (found,) = known_policies(["mine.py:Mine"])
    assert found == f"{tmp_path / 'mine.py'}:Mine"
    assert ours(found).name == "steelyard Mine"
    with pytest.raises(BadInputError, match=r"--policies: .*other\.py"):
        known_policies(["other.py:Mine"])


def test_configurations_name_every_worker_and_only_the_loopback(tmp_path: Path) -> None:
    site = Site(8080, (9001, 9002), tmp_path)
    texts = {
        "nginx": peer_files.rendered("nginx.conf", site),
        "haproxy": peer_files.rendered("haproxy.cfg", site),
        "envoy": peer_files.rendered("envoy.json", site),
    }
    for text in texts.values():
        assert all(port in text for port in ("8080", "9001", "9002"))
        assert text.count("127.0.0.1") == 3
        assert "X-Forwarded-Host" in text
    assert "access_log off" in texts["nginx"]
    assert "access_log" not in texts["envoy"]
    assert json.loads(texts["envoy"])["static_resources"]["clusters"][0]["lb_policy"] == "LEAST_REQUEST"


def test_peer_without_its_program_is_absent() -> None:
    missing = Peer("x", lambda _: [], program="no-such-program-anywhere")
    assert "no-such-program-anywhere" in missing.absence
    assert ours("random").absence == ""


def test_peers_are_chosen_by_name() -> None:
    assert peers.chosen(["none"]) == ()
    assert peers.chosen(["relay", "nginx", "relay"]) == (PEERS["relay"], PEERS["nginx"])
    with pytest.raises(BadInputError, match="unknown 'apache'"):
        peers.chosen(["apache"])


def test_peers_of_a_case() -> None:
    """All, proxies only, or Steelyard with each policy and size."""
    all_peers = list(PEERS.values())
    assert peers_of(CASES["get"], ["random"], all_peers)[1:] == all_peers
    assert [proxy.name for proxy in peers_of(CASES["half"], ["random"], all_peers)] == [
        "steelyard random",
        "nginx",
        "haproxy",
    ]
    sized = peers_of(CASES["endpoints"], ["random", "round-robin"], all_peers)
    assert [proxy.endpoints for proxy in sized] == [2, 10, 100, 1000] * 2
    assert [proxy.connections for proxy in sized] == [900, 900, 900, 250] * 2


def test_blocks_have_every_side_once_in_an_order_of_the_seed() -> None:
    sides = ("a", "b", "c", "d")
    blocks = shuffled_blocks(sides, 20, Random(7))
    assert all(tuple(sorted(block)) == sides for block in blocks)
    assert blocks == shuffled_blocks(sides, 20, Random(7)) != shuffled_blocks(sides, 20, Random(8))
    assert len({tuple(block) for block in blocks}) > 1


async def test_free_ports_are_different_and_free() -> None:
    ports = list(free_ports(4))
    assert len(set(ports)) == 4
    server = await asyncio.start_server(lambda *_: None, "127.0.0.1", Random(0).choice(ports))
    server.close()
    await server.wait_closed()
