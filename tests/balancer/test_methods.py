"""Methods: one rule for HTTP/1.1, HTTP/2 and the sidecar."""

from __future__ import annotations

import pytest

from balancer.http1.request_reader import takes_method
from tests.balancer.conftest import Stage, get, response
from tests.balancer.http2_client import http2_client
from tests.balancer.test_sidecar import StagedSidecar, request_for, url_of

SERVED = (
    *(
        "GET",
        "HEAD",
        "POST",
        "PUT",
        "DELETE",
        "OPTIONS",
        "PATCH",
        "PROPFIND",
        "PROPPATCH",
        "MKCOL",
        "COPY",
        "MOVE",
    ),
    *("LOCK", "UNLOCK", "REPORT", "SEARCH", "M-SEARCH", "PURGE", "NOTIFY", "SUBSCRIBE", "MKCALENDAR", "LINK"),
)
OF_NEW_PARSERS = ("QUERY", "SOURCE", "BIND", "FLUSH")
"""Depends on the version of llhttp."""

REFUSED = (
    *("FOO", "GETX", "GE", "PRI", "BREW", "X-GET", "DESCRIBE", "SETUP", "get", "Get", "POSTGET", "A" * 40),
    *("G3T", "GET_", "GET!"),
)


@pytest.fixture
def sidecar(stage: Stage) -> StagedSidecar:
    return StagedSidecar(stage)


async def status_over_http1(stage: Stage, method: bytes) -> int:
    client = await stage.client()
    await client.send(get(method=method))
    return (await client.response(to_head=method == b"HEAD")).status


@pytest.mark.parametrize("method", [*SERVED, *REFUSED, *OF_NEW_PARSERS])
async def test_methods_over_both_protocols(stage: Stage, method: str) -> None:
    await stage.serve(await stage.worker(response(b"")))
    over_http1 = await status_over_http1(stage, method.encode())
    over_http2 = (await (await http2_client(stage)).ask(method=method.encode())).status
    assert over_http1 == over_http2
    assert method in OF_NEW_PARSERS or over_http1 == (200 if method in SERVED else 400)


@pytest.mark.parametrize("method", [*SERVED, *REFUSED])
async def test_methods_of_the_sidecar(sidecar: StagedSidecar, stage: Stage, method: str) -> None:
    worker = await stage.worker(response(b""))
    await sidecar.serve({"name": "a", "url": url_of(worker), "host": "a.example"})
    client = await stage.client()
    await client.send(request_for(b"a.example", method=method.encode()))
    answer = await client.response(to_head=method == "HEAD")
    assert answer.status == (200 if method in SERVED else 400)


def test_every_capital_word_is_judged_by_the_parser_of_http1() -> None:
    assert [takes_method(method.encode()) for method in SERVED] == [True] * len(SERVED)
    assert not takes_method(b"FOO")
