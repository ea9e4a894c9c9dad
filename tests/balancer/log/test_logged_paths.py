"""Targets in the access log: as received, and as sent to a worker where a route has rewritten them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.http2_client import http2_client
from tests.support.stage import Stage, pool_of
from tests.support.wire import get, response


@pytest.mark.parametrize("version", [1, 2])
async def test_log_has_the_target_received_and_the_one_sent(
    stage: Stage, tmp_path: Path, version: int
) -> None:
    """Whatever answers: a worker, a rate limit, a fixed answer, nobody; `sent_path` only where a worker got another."""
    log = tmp_path / "log"
    routes: list[dict[str, Any]] = [
        {"prefix": "/api", "cluster": "api", "strip_prefix": True},
        {"prefix": "/few", "cluster": "api", "strip_prefix": True, "rate_limit": "few"},
        {"prefix": "/dead", "cluster": "dead", "replace_prefix": "/v1"},
        {"prefix": "/keep", "cluster": "api"},
        {"path": "/fixed", "answer": {}},
    ]
    pools = {"api": pool_of(await stage.worker(response())), "dead": pool_of(stage.dead_port())}
    limits = [{"name": "few", "requests": 1, "period": 60}]
    main = await stage.worker(response(b"main"))
    logged = {"access": "json", "path": str(log)}
    decode = {"encoded_slash": "decode"}
    await stage.serve(main, routes=routes, clusters=pools, rate_limits=limits, log=logged, normalise=decode)
    targets = [b"/api/x?q=1", b"/few/x", b"/few/x", b"/dead/x", b"/keep/x", b"/fixed", b"/none"]
    sent: list[str | None] = ["/x?q=1", "/x", None, "/v1/x", None, None, None]
    targets += [b"/x/..%2Fapi/y?q=%2F", b"/keep/%2e/%7a?q", b"/keep/%7a//", b"//keep", b"/keep/..%2Ffixed"]
    sent += ["/y?q=%2F", "/keep/z?q", None, "/keep", None]
    targets.append(b"/keep/../n%2F")
    sent.append("/n/")
    if version == 1:
        targets.append(b"http://example.org/keep")
        sent.append("/keep")
        client = await stage.client()
        for target in targets:
            await client.ask(get(target))
    else:
        http2 = await http2_client(stage)
        for target in targets:
            await http2.ask(path=target)
    await stage.eventually(lambda: log.read_bytes().count(b"\n") == len(targets))
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [line["path"].encode() for line in lines] == targets
    assert [line.get("sent_path") for line in lines] == sent
