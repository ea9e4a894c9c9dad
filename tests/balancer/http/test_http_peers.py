"""Every row of the HTTP table through nginx and HAProxy: same verdict, or a documented difference.

The worker's listening socket lasts for the session, so that a proxy is started once.
"""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.balancer.http.http_rows.page import PAGE, differences, reasons, replaced
from tests.balancer.http.http_rows.peers import PEERS, Peer, running
from tests.balancer.http.http_rows.player import Client
from tests.balancer.http.http_rows.recorder import Recorder
from tests.balancer.http.http_rows.row import Row
from tests.balancer.http.http_rows.table import ROWS
from tests.balancer.http.http_rows.verdicts import observed, wanted
from tests.support.stage import Stage
from tests.support.wire import PATIENCE, ScriptedWorker, Wire

pytestmark = pytest.mark.second_tier

WAITS = 0.2
"""Seconds after which a peer that is known to wait is considered waiting."""


class RunningPeer:
    """A running peer: `port`, `known` differences, and whether they were recorded with its version."""

    def __init__(self, peer: Peer, port: int, sock: socket.socket) -> None:
        self.port = port
        self.known = differences(peer.name)
        self.is_the_known_one = peer.installed_version() == peer.version
        self._sock = sock

    def worker_socket(self) -> socket.socket:
        """A duplicate, because each worker closes its own."""
        return self._sock.dup()


def port_of(sock: socket.socket) -> int:
    port: int = sock.getsockname()[1]
    return port


@pytest.fixture(scope="session", params=PEERS, ids=lambda peer: peer.name)
def proxy(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningPeer]:
    """One peer process for all rows."""
    peer: Peer = request.param
    if peer.path is None:
        pytest.skip(f"{peer.name} is not on PATH")
    folder = tmp_path_factory.mktemp(peer.name)
    with socket.create_server(("127.0.0.1", 0)) as sock, running(peer, folder, worker=port_of(sock)) as port:
        yield RunningPeer(peer, port, sock)


@pytest.mark.peer
@pytest.mark.parametrize("row", ROWS, ids=str)
async def test_row_through_a_peer(stage: Stage, proxy: RunningPeer, row: Row) -> None:
    """The balancer's verdict or the recorded one; with another version of the peer, any for a recorded row."""
    recorder = Recorder()
    worker = ScriptedWorker(recorder)
    await worker.start(proxy.worker_socket())
    known = proxy.known.get(row.name)
    wire = Wire(*await asyncio.open_connection("127.0.0.1", proxy.port, limit=1 << 20))
    wire.patience = WAITS if known is not None and "waits" in known else PATIENCE
    try:
        seen = await Client(row, wire, 0, is_ahead=False).play(recorder)
        await stage.turn()
        seen.begun, seen.whole = recorder.begun, recorder.whole
    finally:
        await wire.close()
        await worker.stop()
    if known is None or proxy.is_the_known_one:
        assert observed(row, seen) in (known or wanted(row)).split(" or "), seen


def test_differences_are_explained() -> None:
    """Differences name existing rows and are real."""
    rows = {row.name: row for row in ROWS}
    for peer in PEERS:
        names = Counter(name for because in reasons() for name in because.verdicts.get(peer.name, {}))
        assert [name for name, times in names.items() if times > 1 or name not in rows] == []
        assert [n for n, verdict in differences(peer.name).items() if verdict == wanted(rows[n])] == []


def test_documentation_is_up_to_date() -> None:
    """`python -m tests.support.tables` rewrites it."""
    page = PAGE.read_text(encoding="utf-8")
    assert page == replaced(page)
