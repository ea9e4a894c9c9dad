"""The probe before real servers: what it calls ready, what alive, and what neither."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from balancer.healthcheck import main
from tests.balancer.certificates import Shelf
from tests.balancer.conftest import Stage, Wire, response


async def probed(*words: str, port: int | None = None) -> int:
    """Its exit code, asked for in a thread: it blocks."""
    return await asyncio.to_thread(main, words, {} if port is None else {"PORT": str(port)})


async def test_a_unit_with_somebody_to_forward_to_is_ready_and_alive(stage: Stage) -> None:
    server = await stage.serve(await stage.worker(response()))
    assert await probed(port=server.address.port) == 0
    assert await probed("--alive", port=server.address.port) == 0


async def test_a_unit_without_is_alive_but_not_ready(
    stage: Stage, capsys: pytest.CaptureFixture[str]
) -> None:
    """A new one would not do better."""
    server = await stage.serve(await stage.worker(response()))
    stage.proxy.router.set_enabled("w0", False)
    assert await probed(port=server.address.port) == 1
    assert capsys.readouterr().err == (
        f"probe: http://127.0.0.1:{server.address.port}/-/health: status 503\n"
    )
    assert await probed("--alive", port=server.address.port) == 0


async def test_a_draining_unit_is_not_ready(stage: Stage) -> None:
    server = await stage.serve(await stage.worker(response()))
    stage.proxy.drain()
    assert await probed(port=server.address.port) == 1


async def test_nobody_there(stage: Stage, capsys: pytest.CaptureFixture[str]) -> None:
    """One line, no traceback."""
    port = stage.dead_port()
    assert await probed("--alive", port=port) == 1
    assert capsys.readouterr().err == f"probe: http://127.0.0.1:{port}/-/health: Connection refused\n"


@pytest.mark.parametrize("said", [b"", b"SSH-2.0-x\r\n", b"HTTP/1.1 \r\n", b"\xff" * 300])
async def test_what_is_not_http_is_not_alive(stage: Stage, said: bytes) -> None:
    async def script(wire: Wire) -> None:
        await wire.request()
        await wire.send(said)

    worker = await stage.worker(script)
    assert await probed("--alive", port=worker.port) == 1


async def test_another_program_is_asked_by_its_url(stage: Stage) -> None:
    """The path as it is given, and the Host that a server demands."""
    worker = await stage.worker(response())
    assert await probed(f"http://127.0.0.1:{worker.port}/healthz") == 0
    (request,) = worker.requests
    assert request.line == b"GET /healthz HTTP/1.1"
    assert request.value(b"Host") == b"127.0.0.1:%d" % worker.port


async def test_a_unit_that_speaks_tls(stage: Stage, tmp_path: Path) -> None:
    """Its certificate is for another name than that of this machine."""
    shelf = Shelf(tmp_path)
    server = await stage.serve(await stage.worker(response()), tls=shelf.pair("shop.example.org"))
    assert await probed(f"https://127.0.0.1:{server.address.port}/-/health") == 0


@pytest.mark.parametrize("words", [("--alife",), ("http://a/", "http://b/")])
async def test_usage(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert await probed(*words) == 2
    assert capsys.readouterr().err.startswith("probe: must be: python -m balancer.healthcheck")
