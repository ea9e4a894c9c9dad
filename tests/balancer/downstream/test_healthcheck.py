"""`python -m balancer.healthcheck` against real servers: ready, alive, neither."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from balancer.healthcheck import main
from tests.support.certificates import Shelf
from tests.support.stage import Stage
from tests.support.wire import Wire, playing, response


async def healthcheck(*words: str, port: int | None = None) -> int:
    """Exit code; runs in a thread because the program blocks."""
    return await asyncio.to_thread(main, words, {} if port is None else {"PORT": str(port)})


async def test_balancer_with_available_endpoint_is_ready_and_alive(stage: Stage) -> None:
    server = await stage.serve(await stage.worker(response()))
    assert await healthcheck(port=server.address.port) == 0
    assert await healthcheck("--alive", port=server.address.port) == 0


async def test_balancer_without_available_endpoint_is_alive_but_not_ready(
    stage: Stage, capsys: pytest.CaptureFixture[str]
) -> None:
    server = await stage.serve(await stage.worker(response()))
    stage.cluster.router.set_enabled("w0", False)
    assert await healthcheck(port=server.address.port) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert f"http://127.0.0.1:{server.address.port}/-/health" in line
    assert "503" in line
    assert await healthcheck("--alive", port=server.address.port) == 0


async def test_health_of_another_program_may_have_a_query(stage: Stage) -> None:
    worker = await stage.worker(response())
    assert await healthcheck(f"{worker.url}/healthz?deep=1") == 0
    assert worker.requests[0].line == b"GET /healthz?deep=1 HTTP/1.1"


async def test_draining_balancer_is_not_ready(stage: Stage) -> None:
    server = await stage.serve(await stage.worker(response()))
    stage.cluster.process.drain()
    assert await healthcheck(port=server.address.port) == 1


async def test_refused_connection_is_not_alive(stage: Stage, capsys: pytest.CaptureFixture[str]) -> None:
    """One line, no traceback."""
    port = stage.dead_port()
    assert await healthcheck("--alive", port=port) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert f"http://127.0.0.1:{port}/-/health" in line
    assert "refused" in line


@pytest.mark.parametrize("unexpected", [b"", b"SSH-2.0-x\r\n", b"HTTP/1.1 \r\n", b"\xff" * 300])
async def test_non_http_response_is_not_alive(stage: Stage, unexpected: bytes) -> None:
    worker = await stage.worker(playing(Wire.request, unexpected))
    assert await healthcheck("--alive", port=worker.port) == 1


async def test_url_of_another_server(stage: Stage) -> None:
    """The path and the Host of the URL are sent."""
    worker = await stage.worker(response())
    assert await healthcheck(f"http://127.0.0.1:{worker.port}/healthz") == 0
    (request,) = worker.requests
    assert request.line == b"GET /healthz HTTP/1.1"
    assert request.value(b"Host") == b"127.0.0.1:%d" % worker.port


async def test_url_of_a_balancer_with_tls(stage: Stage, tmp_path: Path) -> None:
    """The certificate is not checked against the host name."""
    shelf = Shelf(tmp_path)
    server = await stage.serve(await stage.worker(response()), tls=shelf.pair("shop.example.org"))
    assert await healthcheck(f"https://127.0.0.1:{server.address.port}/-/health") == 0


@pytest.mark.parametrize("words", [("--alife",), ("http://a/", "http://b/")])
async def test_bad_arguments_exit_with_2(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert await healthcheck(*words) == 2
    assert capsys.readouterr().err.startswith("probe: ")
