"""TLS with other programs as clients: curl, openssl, requests, httpx."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tests.support.certificates import Shelf
from tests.support.peers import output_of
from tests.support.stage import Stage
from tests.support.wire import get, response

pytestmark = pytest.mark.second_tier

Ask = Callable[[str, Path], Awaitable[bytes]]
BODY = b"0123456789abcdef" * 20_000


async def by_curl(url: str, ca: Path) -> bytes:
    return await output_of("curl", "-sS", "--cacert", str(ca), url)


async def by_curl_with_tls_1_2(url: str, ca: Path) -> bytes:
    return await output_of("curl", "-sS", "--tls-max", "1.2", "--cacert", str(ca), url)


async def by_requests(url: str, ca: Path) -> bytes:
    requests = pytest.importorskip("requests", reason="requests is not installed")
    answer = await asyncio.to_thread(requests.get, url, verify=str(ca), timeout=10)
    return bytes(answer.content)


async def by_httpx(url: str, ca: Path) -> bytes:
    httpx = pytest.importorskip("httpx", reason="httpx is not installed")
    async with httpx.AsyncClient(verify=ssl.create_default_context(cafile=str(ca))) as client:
        return bytes((await client.get(url)).content)


async def by_openssl(url: str, ca: Path) -> bytes:
    """openssl reads its whole input and ends with the server's close_notify."""
    authority = url.removeprefix("https://").rstrip("/")
    arguments = ("s_client", "-connect", authority, "-CAfile", str(ca), "-quiet", "-verify_return_error")
    printed = await output_of("openssl", *arguments, data=get(b"/", b"Connection: close"))
    return printed.partition(b"\r\n\r\n")[2]


CLIENTS: dict[str, Ask] = {
    "curl": by_curl,
    "curl-1.2": by_curl_with_tls_1_2,
    "httpx": by_httpx,
    "openssl": by_openssl,
    "requests": by_requests,
}


@pytest.mark.peer
@pytest.mark.parametrize("client", CLIENTS)
async def test_body_of_many_records(stage: Stage, tmp_path: Path, client: str) -> None:
    shelf = Shelf(tmp_path)
    worker = await stage.worker(response(BODY))
    server = await stage.serve(worker, tls=shelf.pair("localhost", "127.0.0.1"))
    assert await CLIENTS[client](f"https://{server.address}/", shelf.ca) == BODY
    assert stage.cluster.process.counts.failed_arrivals == 0
    await stage.close()
