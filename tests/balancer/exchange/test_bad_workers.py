"""Workers with invalid certificates, unknown names or garbage responses, over every transport.

A request is sent elsewhere, even a POST, if nothing of it reached the worker. After an invalid response only
idempotent requests are repeated: the worker may have executed the request.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.admin_requests import metrics, status
from tests.support.certificates import Shelf, self_signed
from tests.support.scripted_transports import TRANSPORTS, echo, over
from tests.support.stage import Stage
from tests.support.wire import Script, ScriptedWorker, Wire, fault_of, get, playing, post, response


@dataclass(frozen=True)
class Untrusted:
    """What is wrong with a certificate, and the kind of fault that is counted."""

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


def echo_worker(transport: str) -> ScriptedWorker:
    return over(transport, echo, [])


async def listening(stage: Stage, worker: ScriptedWorker, transport: str) -> int:
    """Start the worker and return its port; https if it has a context."""
    if worker.tls is not None:
        worker.tls.set_alpn_protocols(["h2" if transport == "http2" else "http/1.1"])
    await stage.start(worker)
    return worker.port


def bad_and_good(transport: str, bad: str, good: str | None = None) -> list[dict[str, Any]]:
    """Endpoints in this order; round robin begins with the first."""
    both = [{"id": "bad", "address": bad, "region": "r", "transport": transport}]
    if good is not None:
        both.append({"id": "good", "address": good, "region": "r", "transport": transport})
    return both


async def serve_bad_and_good(stage: Stage, transport: str, bad: str) -> None:
    """Serve with the address `bad` and an echo worker, and one retry."""
    port = await listening(stage, echo_worker(transport), transport)
    await stage.serve(endpoints=bad_and_good(transport, bad, f"http://127.0.0.1:{port}"), retries=1)


async def faults_of(stage: Stage) -> dict[str, int]:
    """Faults of endpoint `bad` in the status, which must equal those in the metrics."""
    (bad,) = (one for one in (await status(stage))["endpoints"] if one["id"] == "bad")
    faults: dict[str, int] = bad["route"]["faults"]
    text = await metrics(stage)
    for kind, number in faults.items():
        sample = f'steelyard_endpoint_connect_faults_total{{endpoint="bad",kind="{kind}",region="r"}}'
        assert f"{sample} {float(number)}" in text
    return faults


def context_of(shelf: Shelf, folder: Path, case: Untrusted) -> Any:
    if case.is_self_signed:
        return self_signed(folder, *case.names)
    if case.is_of_another:
        folder.mkdir()
        shelf = Shelf(folder)
    return shelf.worker(*case.names, is_expired=case.is_expired)


@pytest.mark.parametrize("case", UNTRUSTED, ids=lambda case: case.kind)
async def test_invalid_certificate(stage: Stage, transport: str, case: Untrusted, tmp_path: Path) -> None:
    """Nothing is sent; each kind is counted separately, and a POST goes to the other endpoint.

    Without another one the client gets 502 `tls_failed`; the status has the cause, which the client does not get.
    """
    shelf = Shelf(tmp_path)
    bad, good = echo_worker(transport), echo_worker(transport)
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
    await stage.reload(endpoints=bad_and_good(transport, addresses[0]), retries=0)
    answer = await stage.ask(get())
    assert fault_of(answer)[:2] == (502, "tls_failed")
    assert b"certificate" not in answer.body
    assert "certificate" in (await status(stage))["endpoints"][0]["connections"]["last_fault"]


@pytest.mark.parametrize(("kind", "error"), [("name", "name_unresolved"), ("refused", "connect_failed")])
async def test_no_connection(stage: Stage, transport: str, kind: str, error: str) -> None:
    """To a name under `.invalid` (RFC 6761 § 6.4), and to a port where nothing listens."""
    address = "http://worker.invalid:80" if kind == "name" else f"http://127.0.0.1:{stage.dead_port()}"
    await serve_bad_and_good(stage, transport, address)
    for _ in range(3):
        assert (await stage.ask(post(b"x"))).body == b"x"
    assert set(await faults_of(stage)) == {kind}
    await stage.reload(endpoints=bad_and_good(transport, address), retries=0)
    assert fault_of(await stage.ask(post(b"x")))[:2] == (502, error)


GARBAGE = b"\x15\x03\x01\x00\x02\x02\x46" * 20
BAD = {
    "answers_garbage": playing(Wire.some, GARBAGE),
    "sends_ssh_banner_at_once": playing(b"SSH-2.0-OpenSSH_9.6\r\n", Wire.closed),
    "closes_after_bytes": playing(Wire.some),
}


@pytest.mark.parametrize("script", BAD.values(), ids=BAD)
async def test_garbage_or_no_response(stage: Stage, transport: str, script: Script) -> None:
    """A GET is retried elsewhere; a POST that was sent is not, and its client gets a one-line error."""
    address = f"http://127.0.0.1:{(await stage.worker(script)).port}"
    await serve_bad_and_good(stage, transport, address)
    answers = [await stage.ask(get()) for _ in range(4)]
    assert [answer.status for answer in answers] == [200] * 4
    await stage.reload(endpoints=bad_and_good(transport, address))
    code, reason, _ = fault_of(await stage.ask(post(b"once")))
    assert (code, reason) in {
        (502, "malformed_response"),
        (502, "connection_broken"),
        (502, "connect_failed"),
        (502, "stream_refused"),  # garbage before the request was sent
    }
    assert (await status(stage))["errors"] == {reason: 1}


async def test_http1_where_http2_is_expected(stage: Stage) -> None:
    """The error's detail names the protocol."""
    worker = await stage.worker(response(b"old"))
    await stage.serve(endpoints=bad_and_good("http2", f"http://127.0.0.1:{worker.port}"), retries=0)
    code, reason, detail = fault_of(await stage.ask(get()))
    assert (code, reason, "HTTP/1" in detail) == (502, "malformed_response", True)
