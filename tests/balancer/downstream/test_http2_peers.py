"""HTTP/2 from other programs: curl, h2load, httpx, h2spec; and a lot of data on many streams at once."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import ssl
from pathlib import Path
from typing import Any

import pytest

from tests.support.certificates import Shelf
from tests.support.peers import output_of
from tests.support.stage import Stage
from tests.support.wire import response

pytestmark = [pytest.mark.second_tier, pytest.mark.peer]

BODY = b"0123456789abcdef" * 20_000
GO = Path(os.environ.get("GOBIN") or Path.home() / "go" / "bin")

OF_THE_LIBRARY = {
    "closed: Sends a DATA frame after sending RST_STREAM frame",
    "closed: Sends a HEADERS frame after sending RST_STREAM frame",
    "closed: Sends a DATA frame",
    "half closed (remote): Sends a DATA frame",  # if the response has closed the stream before
    "half closed (remote): Sends a HEADERS frame",
    "closed: Sends a HEADERS frame",
    "Sends stream identifier that is numerically smaller than previous",
    "Sends PRIORITY frame that depend on itself",
    "Sends a PRIORITY frame with 0x0 stream identifier",
    "Sends multiple WINDOW_UPDATE frames increasing the flow control window to above 2^31-1 on a stream",
}
"""Tests of h2spec that libnghttp2 fails, in nginx, Apache and curl's test servers alike. It ignores frames on closed
streams, as RFC 9113 § 5.1 allows for a time; it does not look into PRIORITY, which § 5.3 has taken out of use; it ends
the stream instead of the connection where a stream's window overflows. None lets anything through."""

OURS = {"Sends invalid connection preface"}
"""In clear text the port speaks HTTP/1.1 too, so what is no preface is answered 400 in HTTP/1.1, and closed."""


@pytest.mark.parametrize("is_tls", [False, True])
async def test_curl(stage: Stage, tmp_path: Path, is_tls: bool) -> None:
    shelf = Shelf(tmp_path)
    tls: dict[str, Any] = {"tls": shelf.pair("localhost", "127.0.0.1")} if is_tls else {}
    worker = await stage.worker(response(BODY))
    server = await stage.serve(worker, **tls)
    how = ["--http2", "--cacert", str(shelf.ca)] if is_tls else ["--http2-prior-knowledge"]
    url = f"http{'s' if is_tls else ''}://{server.address}/"
    assert await output_of("curl", "-sS", *how, "--data-binary", "@-", url, data=BODY) == BODY
    assert worker.requests[0].body == BODY
    assert stage.cluster.process.counts.http2_streams == 1
    await stage.close()


async def test_httpx(stage: Stage, tmp_path: Path) -> None:
    httpx = pytest.importorskip("httpx", reason="httpx is not installed")
    pytest.importorskip("h2", reason="h2, which httpx needs for HTTP/2, is not installed")
    shelf = Shelf(tmp_path)
    server = await stage.serve(await stage.worker(response(BODY)), tls=shelf.pair("localhost", "127.0.0.1"))
    context = ssl.create_default_context(cafile=str(shelf.ca))
    async with httpx.AsyncClient(http2=True, http1=False, verify=context) as client:
        answers = await asyncio.gather(*(client.get(f"https://{server.address}/") for _ in range(20)))
    assert {(answer.http_version, answer.content) for answer in answers} == {("HTTP/2", BODY)}
    await stage.close()


async def test_h2load(stage: Stage) -> None:
    server = await stage.serve(await stage.worker(response()))
    report = await output_of("h2load", "-n", "5000", "-c", "10", "-m", "20", f"http://{server.address}/")
    assert b"5000 succeeded, 0 failed" in report


@pytest.mark.parametrize("is_tls", [False, True])
async def test_h2spec_strict(
    stage: Stage, tmp_path: Path, is_tls: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`go install github.com/summerwind/h2spec/cmd/h2spec@latest` installs it."""
    monkeypatch.setenv("PATH", f"{GO}{os.pathsep}{os.environ['PATH']}")
    tls: dict[str, Any] = {"tls": Shelf(tmp_path).pair("localhost", "127.0.0.1")} if is_tls else {}
    server = await stage.serve(await stage.worker(response()), **tls)
    of_tls = ["-t", "-k"] if is_tls else []
    port = str(server.address.port)
    report = (await failing_output_of("h2spec", "-S", "-h", "127.0.0.1", "-p", port, *of_tls)).decode()
    assert re.search(r"14\d tests, ", report), report
    failed = {match.strip() for match in re.findall(r"× \d+: (.*)", report)}
    assert failed <= OF_THE_LIBRARY | (set() if is_tls else OURS)
    await stage.close()


async def failing_output_of(program: str, *arguments: str) -> bytes:
    """As `output_of`, of a program that fails if a test of it does."""
    path = shutil.which(program)
    if path is None:
        pytest.skip(f"{program} is not on PATH")
    return await output_of("sh", "-c", '"$@" || true', "sh", path, *arguments)
