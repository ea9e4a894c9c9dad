"""A balancer whose endpoint leads to itself: Via shows it at the first return. Chains of different balancers work."""

from __future__ import annotations

from typing import Any

import pytest

from balancer.errors import RequestRejected
from balancer.http.h1.client import OWN_NAME as OWN
from balancer.http.h1.client import Client
from tests.support.admin_requests import status as status_of
from tests.support.http2_client import http2_client
from tests.support.outgoing import outgoing_request
from tests.support.programs import starting, workers
from tests.support.stage import Stage
from tests.support.wire import get, response


def forwarded(*lines: bytes, target: bytes = b"/", method: bytes = b"GET", version: bytes = b"1.1") -> bytes:
    """Return the head that a worker gets."""
    client = Client(b"192.0.2.7", b"127.0.0.1:8080", allowed=frozenset((b"CONNECT",)))
    raw = b"\r\n".join([b"%b %b HTTP/%b" % (method, target, version), b"Host: a.org", *lines, b"", b""])
    return outgoing_request(raw, client, b"id").head


@pytest.mark.parametrize(
    "lines",
    [
        (b"Via: 1.1 " + OWN,),
        (b"VIA:2 " + OWN + b" ",),
        (b"Via: 1.0 front", b"X-A: 1", b"via: 1.1 " + OWN),
        (b"Via: HTTP/1.1 front (gate), 1.1 " + OWN + b" (comment), 1.1 steelyard-0123456789ab",),
        (b"Connection: via", b"Via: 1.1 " + OWN),
    ],
)
@pytest.mark.parametrize(
    "form",
    [
        {},
        {"version": b"1.0"},
        {"target": b"http://a.org/"},
        {"method": b"OPTIONS", "target": b"*"},
        {"method": b"CONNECT", "target": b"a.org:443"},
    ],
)
def test_a_request_that_returns_is_refused(lines: tuple[bytes, ...], form: dict[str, bytes]) -> None:
    with pytest.raises(RequestRejected) as refused:
        forwarded(*lines, **form)
    assert (refused.value.status, refused.value.reason) == (508, "loop")


@pytest.mark.parametrize(
    "line",
    [
        b"Via: 1.1 steelyard-0123456789ab",
        b"Via: 1.1 steelyard, 1.0 fred, 1.1 " + OWN[:-1],
        b"X-Via: 1.1 " + OWN,
        b"Referer: http://" + OWN,
    ],
    ids=["another name", "a shorter name", "another field", "a URL"],
)
def test_a_request_of_another_proxy_is_passed_on(line: bytes) -> None:
    """Its Via stays as it is, before our own."""
    head = forwarded(line)
    assert head.index(b"\r\n" + line + b"\r\n") < head.index(b"\r\nVia: 1.1 " + OWN + b"\r\n")


@pytest.mark.parametrize("protocol", ["1.1", "2"])
@pytest.mark.parametrize("transport", ["native", "http2"])
async def test_a_balancer_that_is_its_own_endpoint_asks_itself_once(
    stage: Stage, protocol: str, transport: str
) -> None:
    server = await stage.serve(await stage.worker(response()))
    own = {"id": "own", "address": f"http://{server.address}", "region": "r", "transport": transport}
    await stage.reload(endpoints=[own])
    answer = await (await http2_client(stage)).ask() if protocol == "2" else await stage.ask(get())
    assert answer.status == 508
    # ends its connections
    await stage.reload(endpoints=[own | {"address": f"http://127.0.0.1:{stage.dead_port()}"}])
    document = await status_of(stage)
    assert (document["requests"], document["responses"]) == (1, {"508": 2})  # a refused head is no request


@pytest.mark.second_tier
async def test_processes_share_a_name_and_balancers_do_not(stage: Stage) -> None:
    """Two balancers in a chain serve; one in a circle finds itself, whichever of its processes gets the request."""
    worker = await stage.worker(response())
    async with starting() as start:
        behind = await start(*workers(worker), "--processes", "2")
        endpoint = f"r=http://127.0.0.1:{behind.port}"
        before = await start("--worker", endpoint, "--port", "0", "--processes", "2")
        seen: list[Any] = []
        for _ in range(12):
            client = await before.client()
            assert (await client.ask(get())).status == 200
            await client.close()
            seen.append(tuple(worker.requests[-1].values(b"Via")))
    ((first, second),) = set(seen)
    assert first != second
