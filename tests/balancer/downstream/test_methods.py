"""Methods: one rule for HTTP/1.1, HTTP/2 and the sidecar."""

from __future__ import annotations

import pytest

from balancer.http.h1.request_reader import takes_method
from tests.support.http2_client import http2_client
from tests.support.sidecars import StagedSidecar, request_for, url_of
from tests.support.stage import Stage
from tests.support.wire import get, response

SERVED = [
    "GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH", "PROPFIND", "PROPPATCH", "MKCOL", "COPY", "MOVE",
    "LOCK", "UNLOCK", "REPORT", "SEARCH", "M-SEARCH", "PURGE", "NOTIFY", "SUBSCRIBE", "MKCALENDAR", "LINK",
]  # fmt: skip
OF_NEW_PARSERS = ["QUERY", "SOURCE", "BIND", "FLUSH"]
"""Depends on the version of llhttp."""

REFUSED = [
    "FOO", "GETX", "GE", "PRI", "BREW", "X-GET", "DESCRIBE", "SETUP", "get", "Get", "POSTGET", "A" * 40,
    "G3T", "GET_", "GET!",
]  # fmt: skip


@pytest.mark.parametrize("method", [*SERVED, *REFUSED, *OF_NEW_PARSERS])
async def test_methods_over_both_protocols(stage: Stage, method: str) -> None:
    await stage.serve(await stage.worker(response(b"")))
    answer = await (await stage.client()).ask(get(method=method.encode()), to_head=method == "HEAD")
    over_http2 = (await (await http2_client(stage)).ask(method=method.encode())).status
    assert answer.status == over_http2
    assert method in OF_NEW_PARSERS or over_http2 == (200 if method in SERVED else 400)


@pytest.mark.parametrize("method", [*SERVED, *REFUSED])
async def test_methods_of_the_sidecar(stage: Stage, method: str) -> None:
    worker = await stage.worker(response(b""))
    await StagedSidecar(stage).serve({"name": "a", "url": url_of(worker), "host": "a.example"})
    request = request_for(b"a.example", method=method.encode())
    answer = await (await stage.client()).ask(request, to_head=method == "HEAD")
    assert answer.status == (200 if method in SERVED else 400)


def test_every_capital_word_is_judged_by_the_parser_of_http1() -> None:
    assert [takes_method(method.encode()) for method in SERVED] == [True] * len(SERVED)
    assert not takes_method(b"FOO")
