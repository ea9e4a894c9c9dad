"""TLS with several processes: session tickets of one are taken by the other, certificates reload in both."""

from __future__ import annotations

import asyncio
import signal
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.support.certificates import Shelf
from tests.support.programs import PATIENCE, TWO_PROCESSES, Program, Start
from tests.support.stage import Stage
from tests.support.wire import ScriptedWorker, response

pytestmark = pytest.mark.second_tier

CLIENTS = 24


def write(folder: Path, pair: dict[str, str], worker: ScriptedWorker, minimum: str = "1.2") -> Path:
    """Write the configuration file."""
    path = folder / "balancer.toml"
    tls = "\n".join(f'{key} = "{value}"' for key, value in pair.items())
    path.write_text(
        f'[tls]\n{tls}\nmin_version = "{minimum}"\n'
        f'[[endpoints]]\nid = "w"\naddress = "http://127.0.0.1:{worker.port}"\nregion = "r"\n'
    )
    return path


def greet(port: int, context: ssl.SSLContext, session: ssl.SSLSession | None = None) -> ssl.SSLSocket:
    """Connect and get one response, and with it a ticket; the connection stays open."""
    plain: socket.socket = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)
    try:
        plain = client = context.wrap_socket(plain, server_hostname="localhost", session=session)
        client.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        answer = b""
        while b"\r\n\r\n" not in answer:
            answer += (received := client.recv(4096))
            if not received:
                raise ConnectionResetError("the connection ended before the response")
    except BaseException:
        plain.close()
        raise
    assert answer.startswith(b"HTTP/1.1 200 ")
    return client


@asynccontextmanager
async def greetings(
    program: Program, context: ssl.SSLContext, session: ssl.SSLSession | None = None, count: int = CLIENTS
) -> AsyncIterator[list[ssl.SSLSocket]]:
    """Greet `count` times and keep all connections, so that both processes have some."""
    clients: list[ssl.SSLSocket] = []
    try:
        for _ in range(count):
            clients.append(await asyncio.to_thread(greet, program.port, context, session))
        yield clients
    finally:
        for client in clients:
            client.close()


async def shown(program: Program, context: ssl.SSLContext) -> set[bytes | None]:
    """The certificates that the processes show."""
    async with greetings(program, context) as clients:
        return {client.getpeercert(binary_form=True) for client in clients}


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_ticket_of_one_process_resumes_at_the_other(
    start: Start, stage: Stage, tmp_path: Path, version: ssl.TLSVersion
) -> None:
    shelf, worker = Shelf(tmp_path), await stage.worker(response())
    program = await start(
        *TWO_PROCESSES, "--config", str(write(tmp_path, shelf.pair("localhost"), worker)), "--port", "0"
    )
    context = shelf.client()
    context.maximum_version = version
    async with greetings(program, context, count=1) as (first,):
        assert not first.session_reused
        async with greetings(program, context, first.session) as clients:
            assert [client.session_reused for client in clients] == [True] * CLIENTS


async def test_reload_changes_certificates_and_keeps_ticket_keys(
    start: Start, stage: Stage, tmp_path: Path
) -> None:
    shelf, worker = Shelf(tmp_path), await stage.worker(response())
    program = await start(
        *TWO_PROCESSES, "--config", str(write(tmp_path, shelf.pair("localhost"), worker)), "--port", "0"
    )
    context = shelf.client()
    (before,) = await shown(program, context)
    write(tmp_path, shelf.pair("localhost", "other.example"), worker)
    program.signal(signal.SIGHUP)
    async with asyncio.timeout(PATIENCE):
        while before in (after := await shown(program, context)):  # each process reloads on its own
            continue
    assert len(after) == 1
    async with (
        greetings(program, context, count=1) as (first,),
        greetings(program, context, first.session) as clients,
    ):
        assert [client.session_reused for client in clients] == [True] * CLIENTS


async def test_reload_changes_the_minimum_version(start: Start, stage: Stage, tmp_path: Path) -> None:
    """A client with TLS 1.2 only is refused after `tls.min_version = "1.3"`."""
    shelf, worker = Shelf(tmp_path), await stage.worker(response())
    pair = shelf.pair("localhost")
    program = await start(*TWO_PROCESSES, "--config", str(write(tmp_path, pair, worker)), "--port", "0")
    old = shelf.client()
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    assert len(await shown(program, old)) == 1
    write(tmp_path, pair, worker, minimum="1.3")
    program.signal(signal.SIGHUP)
    await program.line("reloaded")
    with pytest.raises(ssl.SSLError, match=r"(?i)version"):
        await shown(program, old)
    assert len(await shown(program, shelf.client())) == 1


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_session_of_a_replaced_client_authority_is_refused(
    start: Start, stage: Stage, tmp_path: Path, version: ssl.TLSVersion
) -> None:
    """The file of `client_ca` keeps its name, as a rotated secret does; both processes refuse the session."""
    shelf, worker = Shelf(tmp_path), await stage.worker(response())
    keys = {**shelf.pair("localhost"), "client_ca": str(tmp_path / "clients.pem")}
    (tmp_path / "clients.pem").write_bytes(shelf.ca.read_bytes())
    program = await start(*TWO_PROCESSES, "--config", str(write(tmp_path, keys, worker)), "--port", "0")
    context = shelf.client(shelf.pair("client"))
    context.maximum_version = version
    async with greetings(program, context, count=1) as (first,):
        session = first.session
    (tmp_path / "other").mkdir()
    (tmp_path / "clients.pem").write_bytes(Shelf(tmp_path / "other").ca.read_bytes())
    program.signal(signal.SIGHUP)
    await program.line("reloaded")
    refused = 0
    async with asyncio.timeout(PATIENCE):
        while refused < CLIENTS:  # each process reloads on its own
            try:
                (await asyncio.to_thread(greet, program.port, context, session)).close()
                refused = 0
            except (ssl.SSLError, ConnectionError):
                refused += 1
