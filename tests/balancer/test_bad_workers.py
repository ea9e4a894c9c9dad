"""Workers that nobody can trust, find or understand, by every transport: what the client is told, what is counted, and
what becomes of the request.

Rule of this file: nothing was sent to a worker that is not believed or not found, so even a POST goes elsewhere. Of
what a worker did with a request before it spoke nonsense nobody knows, so only what may be repeated is.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.balancer.certificates import Shelf, self_signed
from tests.balancer.conftest import Message, ScriptedWorker, Stage, Wire, get, post, response
from tests.balancer.talkers import over_http1, over_http2
from tests.balancer.test_transports import TRANSPORTS, echo

STATUS = b"GET /-/status HTTP/1.1\r\nHost: localhost\r\n\r\n"
METRICS = b"GET /-/metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"


@dataclass(frozen=True)
class Untrusted:
    """How a worker's certificate is wrong, and what that is counted by."""

    kind: str
    names: tuple[str, ...] = ("127.0.0.1",)
    is_expired: bool = False
    is_of_another: bool = False
    is_self_signed: bool = False


UNTRUSTED = [
    Untrusted("certificate_expired", is_expired=True),
    Untrusted("certificate_name", names=("other.example.org",)),
    Untrusted("certificate_self_signed", is_self_signed=True),
    Untrusted("certificate_authority", is_of_another=True),
]


@pytest.fixture(params=TRANSPORTS)
def transport(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def speaker(transport: str) -> ScriptedWorker:
    """A worker that echoes, in what the transport speaks."""
    return over_http2(echo, []) if transport == "http2" else over_http1(echo, [])


async def listening(stage: Stage, worker: ScriptedWorker, transport: str) -> int:
    """The port where it does; https where it has a context."""
    if worker.tls is not None:
        worker.tls.set_alpn_protocols(["h2" if transport == "http2" else "http/1.1"])
    await worker.start()
    stage._workers.append(worker)
    return worker.port


def bad_and_good(transport: str, bad: str, good: str | None = None) -> list[dict[str, Any]]:
    """The first endpoint is the one that a round begins with."""
    both = [{"id": "bad", "address": bad, "region": "r", "transport": transport}]
    if good is not None:
        both.append({"id": "good", "address": good, "region": "r", "transport": transport})
    return both


async def faults_of(stage: Stage) -> dict[str, int]:
    """What the status counts of the bad one; the metrics must say the same."""
    status = json.loads((await stage.ask(STATUS)).body)
    (bad,) = (one for one in status["endpoints"] if one["id"] == "bad")
    faults: dict[str, int] = bad["route"]["faults"]
    text = (await stage.ask(METRICS)).body.decode()
    for kind, number in faults.items():
        sample = f'steelyard_endpoint_connect_faults_total{{endpoint="bad",kind="{kind}",region="r"}}'
        assert f"{sample} {float(number)}" in text
    return faults


def error_of(answer: Message) -> tuple[int, str]:
    """Status and reason of an answer of the unit's own, whose detail is one line."""
    told = json.loads(answer.body)
    assert "\n" not in told["detail"]
    assert told["detail"]
    return answer.status, told["error"]


def context_of(shelf: Shelf, folder: Path, case: Untrusted) -> Any:
    if case.is_self_signed:
        return self_signed(folder, *case.names)
    if case.is_of_another:
        folder.mkdir()
        shelf = Shelf(folder)
    return shelf.worker(*case.names, is_expired=case.is_expired)


@pytest.mark.parametrize("case", UNTRUSTED, ids=lambda case: case.kind)
async def test_a_certificate_that_is_wrong(
    stage: Stage, transport: str, case: Untrusted, tmp_path: Path
) -> None:
    """Nothing is sent; each kind has a count of its own, and a POST goes to who is believed."""
    shelf = Shelf(tmp_path)
    bad, good = speaker(transport), speaker(transport)
    bad.tls, good.tls = context_of(shelf, tmp_path / "another", case), shelf.worker("127.0.0.1")
    addresses = [f"https://127.0.0.1:{await listening(stage, worker, transport)}" for worker in (bad, good)]
    trust = {"ca": str(shelf.ca)}
    await stage.serve(endpoints=bad_and_good(transport, *addresses), upstream_tls=trust, retries=1)
    for _ in range(3):
        answer = await stage.ask(post(b"secret"))
        assert (answer.status, answer.body) == (200, b"secret")
    assert b"secret" not in bad.received
    faults = await faults_of(stage)
    assert set(faults) == {case.kind}
    assert faults[case.kind] == stage.outcomes("bad")["refused"] > 0


@pytest.mark.parametrize("case", UNTRUSTED, ids=lambda case: case.kind)
async def test_nobody_else_to_ask(stage: Stage, transport: str, case: Untrusted, tmp_path: Path) -> None:
    """The client is told that there is no TLS; why stands in the status."""
    shelf, bad = Shelf(tmp_path), speaker(transport)
    bad.tls = context_of(shelf, tmp_path / "another", case)
    address = f"https://127.0.0.1:{await listening(stage, bad, transport)}"
    await stage.serve(
        endpoints=bad_and_good(transport, address), upstream_tls={"ca": str(shelf.ca)}, retries=0
    )
    assert error_of(await stage.ask(get())) == (502, "tls_failed")
    status = json.loads((await stage.ask(STATUS)).body)
    assert "certificate" in status["endpoints"][0]["connections"]["last_fault"]


async def test_a_name_that_does_not_resolve(stage: Stage, transport: str) -> None:
    """By a name that never does (RFC 6761 § 6.4)."""
    port = await listening(stage, speaker(transport), transport)
    endpoints = bad_and_good(transport, "http://nobody.invalid:80", f"http://127.0.0.1:{port}")
    await stage.serve(endpoints=endpoints, retries=1)
    for _ in range(3):
        assert (await stage.ask(post(b"x"))).body == b"x"
    assert set(await faults_of(stage)) == {"name"}
    await stage.reload(endpoints=endpoints[:1], retries=0)
    assert error_of(await stage.ask(post(b"x"))) == (502, "name_unresolved")


async def test_nobody_listens(stage: Stage, transport: str) -> None:
    """Refused."""
    port = await listening(stage, speaker(transport), transport)
    addresses = (f"http://127.0.0.1:{stage.dead_port()}", f"http://127.0.0.1:{port}")
    await stage.serve(endpoints=bad_and_good(transport, *addresses), retries=1)
    for _ in range(3):
        assert (await stage.ask(post(b"x"))).body == b"x"
    assert set(await faults_of(stage)) == {"refused"}


async def noise(wire: Wire) -> None:
    """Not a word of HTTP, whatever was asked."""
    await wire.some()
    await wire.send(b"\x15\x03\x01\x00\x02\x02\x46" * 20)


async def ssh(wire: Wire) -> None:
    """Somebody else's protocol, before anything was asked."""
    await wire.send(b"SSH-2.0-OpenSSH_9.6\r\n")
    await wire.closed()


@pytest.mark.parametrize("script", [noise, ssh])
async def test_garbage(stage: Stage, transport: str, script: Callable[[Wire], Any]) -> None:
    """A GET is asked again elsewhere; a POST that went out is not, and its client is told in one line."""
    bad = await stage.worker(script)
    port = await listening(stage, speaker(transport), transport)
    addresses = (f"http://127.0.0.1:{bad.port}", f"http://127.0.0.1:{port}")
    await stage.serve(endpoints=bad_and_good(transport, *addresses), retries=1)
    answers = [await stage.ask(get()) for _ in range(4)]
    assert [answer.status for answer in answers] == [200] * 4
    await stage.reload(endpoints=bad_and_good(transport, addresses[0]))
    status, reason = error_of(await stage.ask(post(b"once")))
    assert (status, reason) in {
        (502, "malformed_response"),
        (502, "connection_broken"),
        (502, "connect_failed"),
    }
    errors = json.loads((await stage.ask(STATUS)).body)["errors"]
    assert errors == {reason: 1}


async def test_an_end_instead_of_an_answer(stage: Stage, transport: str) -> None:
    """It closes whatever it is asked."""

    async def script(wire: Wire) -> None:
        await wire.some()

    bad = await stage.worker(script)
    port = await listening(stage, speaker(transport), transport)
    addresses = (f"http://127.0.0.1:{bad.port}", f"http://127.0.0.1:{port}")
    await stage.serve(endpoints=bad_and_good(transport, *addresses), retries=1)
    assert [(await stage.ask(get())).status for _ in range(4)] == [200] * 4


async def test_http1_where_http2_is_expected(stage: Stage) -> None:
    """A good worker of the wrong protocol is named."""
    worker = await stage.worker(response(b"old"))
    await stage.serve(endpoints=bad_and_good("http2", f"http://127.0.0.1:{worker.port}"), retries=0)
    answer = await stage.ask(get())
    assert error_of(answer) == (502, "malformed_response")
    assert "HTTP/1" in json.loads(answer.body)["detail"]
