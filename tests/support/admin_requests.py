"""Requests to the balancer's admin server, and its reports."""

from __future__ import annotations

import json
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from tests.support.stage import Stage

LOCAL = b"Host: localhost"
TOKEN = "a-token-of-some-length"


def local(
    target: bytes, *fields: bytes, method: bytes = b"GET", body: bytes = b"", host: bytes = LOCAL
) -> bytes:
    length = b"Content-Length: %d" % len(body)
    return b"\r\n".join((b"%b %b HTTP/1.1" % (method, target), host, length, *fields)) + b"\r\n\r\n" + body


async def command(stage: Stage, method: str, target: str, body: Any = None) -> tuple[int, Any]:
    """Send an admin request; a body that is not bytes becomes JSON. Returns the status and the document."""
    sent = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    answer = await stage.ask(local(target.encode(), method=method.encode(), body=sent))
    return answer.status, json.loads(answer.body)


def put_policy(document: Any, *fields: bytes) -> bytes:
    """A request for another policy, of a name or a table, or with these bytes as its body."""
    body = document if isinstance(document, bytes) else json.dumps(document).encode()
    return local(b"/-/policy", *fields, method=b"PUT", body=body)


async def status(stage: Stage) -> dict[str, Any]:
    answer = await stage.ask(local(b"/-/status"))
    assert answer.status == 200
    report: dict[str, Any] = json.loads(answer.body)
    return report


def samples_of(text: str) -> dict[tuple[str, ...], float]:
    """Samples of metrics by their name and the values of their labels, in the order of the labels' names."""
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def metrics(stage: Stage) -> str:
    return (await stage.ask(local(b"/-/metrics"))).body.decode()
