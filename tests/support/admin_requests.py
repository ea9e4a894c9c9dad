"""Requests to the balancer's admin server, and its reports."""

from __future__ import annotations

import json
from typing import Any

from tests.support.stage import Stage

LOCAL = b"Host: localhost"
TOKEN = "a-token-of-some-length"


def local(
    target: bytes, *fields: bytes, method: bytes = b"GET", body: bytes = b"", host: bytes = LOCAL
) -> bytes:
    length = b"Content-Length: %d" % len(body)
    return b"\r\n".join((b"%b %b HTTP/1.1" % (method, target), host, length, *fields)) + b"\r\n\r\n" + body


async def status(stage: Stage) -> dict[str, Any]:
    answer = await stage.ask(local(b"/-/status"))
    assert answer.status == 200
    report: dict[str, Any] = json.loads(answer.body)
    return report


async def metrics(stage: Stage) -> str:
    return (await stage.ask(local(b"/-/metrics"))).body.decode()
