"""nginx as the worker behind clients of HTTP/2, over HTTP/1.1 and over HTTP/2: bodies in both directions by hash."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from balancer.http.h2.limits import Http2Limits
from tests.support.http2_client import fields, http2_client
from tests.support.peers import body_of, digest, nginx, output_of
from tests.support.stage import Stage

pytestmark = [pytest.mark.second_tier, pytest.mark.peer]

MIB = 1 << 20
STREAMS = 40


async def serve_before_nginx(stage: Stage, port: int, transport: str) -> str:
    """Serve with nginx as the only endpoint; return the address."""
    endpoint = {"id": "w0", "address": f"http://127.0.0.1:{port}", "region": "r", "transport": transport}
    server = await stage.serve(endpoints=[endpoint])
    return str(server.address)


@pytest.fixture(params=["native", "http2"])
def transport(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def protocol_of(transport: str) -> str:
    return " http2" if transport == "http2" else ""


async def test_bodies_up_and_down_on_many_streams(stage: Stage, tmp_path: Path, transport: str) -> None:
    """Every stream puts a body of its own, with a length or without, and then gets it back."""
    bodies = [hashlib.shake_128(b"%d" % number).digest(MIB // 2 + number) for number in range(STREAMS)]
    async with nginx(tmp_path, protocol_of(transport)) as port:
        await serve_before_nginx(stage, port, transport)
        client = await http2_client(stage, Http2Limits(streams=STREAMS, stream_window=1 << 18))
        streams = []
        for number, body in enumerate(bodies):
            length = [] if number % 2 else [(b"content-length", b"%d" % len(body))]
            streams.append(client.begin(fields(b"/put/%d" % number, *length, method=b"PUT")))
            client.send(streams[-1], body, is_last=True)
        assert [(await client.answer(stream)).status for stream in streams] == [201] * STREAMS
        for number, body in enumerate(bodies):
            assert digest((tmp_path / "www" / "put" / str(number)).read_bytes()) == digest(body)
        streams = [client.begin(fields(b"/put/%d" % number), is_last=True) for number in range(STREAMS)]
        for stream, body in zip(streams, bodies, strict=True):
            answer = await client.answer(stream)
            assert (answer.status, digest(answer.body)) == (200, digest(body))
        assert stage.outcomes() == {"ok": 2 * STREAMS}
        if transport == "http2":
            assert stage.pool().counts.opened == 1
        await client.wire.close()
        await stage.close()


async def test_files_by_curl(stage: Stage, tmp_path: Path, transport: str) -> None:
    """With a length, compressed without one, HEAD, a range, and what is not there."""
    async with nginx(tmp_path, protocol_of(transport)) as port:
        url = f"http://{await serve_before_nginx(stage, port, transport)}"
        curl = ("curl", "-sS", "--http2-prior-knowledge")
        for size in (0, 1, MIB):
            assert digest(await output_of(*curl, f"{url}/{size}")) == digest(body_of(size))
            found = await output_of(*curl, "--compressed", f"{url}/chunked/{size}")
            assert digest(found) == digest(body_of(size))
        assert f"content-length: {MIB}" in (await output_of(*curl, "-I", f"{url}/{MIB}")).decode().lower()
        assert await output_of(*curl, "-r", "5-9", f"{url}/{MIB}") == body_of(MIB)[5:10]
        assert await output_of(
            *curl, "-o", "/dev/null", "-w", "%{http_version} %{http_code}", f"{url}/no"
        ) == (b"2 404")
        await stage.close()


async def test_goaway_under_load(stage: Stage, tmp_path: Path) -> None:
    """nginx ends a connection of HTTP/2 after 1000 requests: none is lost."""
    async with nginx(tmp_path, protocol_of("http2")) as port:
        url = f"http://{await serve_before_nginx(stage, port, 'http2')}/1"
        report = await output_of("h2load", "-n", "5000", "-c", "4", "-m", "10", url)
        assert b"5000 succeeded, 0 failed" in report
        assert b"status codes: 5000 2xx" in report
        assert stage.pool().counts.opened >= 5
        await stage.close()
