"""Client-Cert and Client-Cert-Chain for workers (RFC 9440), and the removal of the client's own."""

from __future__ import annotations

import asyncio
import ssl
from base64 import b64encode
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from balancer.http.h1.chunks import passing_trailers
from tests.support.certificates import Shelf, request_and_session
from tests.support.http2_client import http2_client
from tests.support.stage import Stage
from tests.support.wire import Message, ScriptedWorker, get, response

NAME = "localhost"
OWN = (
    b"Client-Cert: :AA==:",
    b"client_cert: :AA==:",
    b"CLIENT-CERT-CHAIN: :AA==:",
    b"client-cert_chain: :AA==:",
)
"""Fields of a client that workers could take for ours."""

NO_CHECK_TIME = 0x200000
"""X509_V_FLAG_NO_CHECK_TIME of OpenSSL's x509_vfy.h."""


def items(*paths: Path | str) -> list[bytes]:
    """The certificates of PEM files as the fields have them."""
    text = "".join(Path(path).read_text(encoding="ascii") for path in paths)
    pem = text[text.index("-----BEGIN CERTIFICATE") :]
    ends = [part + "-----END CERTIFICATE-----" for part in pem.split("-----END CERTIFICATE-----")[:-1]]
    return [b":%b:" % b64encode(ssl.PEM_cert_to_DER_cert(part.strip())) for part in ends]


def certificates(request: Message) -> list[tuple[bytes, bytes]]:
    """All fields that an application may take for those of the RFC."""
    return [
        (name, value)
        for name, value in request.fields
        if name.lower().replace(b"_", b"-").startswith(b"client-cert")
    ]


@pytest.fixture
async def worker(stage: Stage) -> ScriptedWorker:
    return await stage.worker(response())


async def serve(stage: Stage, shelf: Shelf, worker: ScriptedWorker, fields: str, **more: Any) -> None:
    tls = {"client_ca": str(shelf.ca), "client_certificate": "optional", "client_certificate_fields": fields}
    await stage.serve(worker, tls=shelf.pair(NAME) | tls, **more)


async def test_certificate_in_both_protocols(stage: Stage, shelf: Shelf, worker: ScriptedWorker) -> None:
    """Workers get that of the connection, however the client writes its own."""
    await serve(stage, shelf, worker, "leaf", headers={"internal": ["x-internal-*"]})
    pair = shelf.pair("me")
    [leaf] = items(pair["certificate"])
    http1 = await stage.client(tls=shelf.client(pair), name=NAME)
    for own in ((), OWN, (*OWN, b"Connection: client-cert")):
        await http1.ask(get(b"/", *own))
    tls = shelf.client(pair)
    tls.set_alpn_protocols(["h2"])
    http2 = await http2_client(stage, tls=tls, name=NAME)
    assert (await http2.ask((b"client-cert", b":AA==:"), (b"client_cert-chain", b":AA==:"))).status == 200
    assert [certificates(request) for request in worker.requests] == [[(b"Client-Cert", leaf)]] * 4


async def test_client_without_a_certificate(stage: Stage, shelf: Shelf, worker: ScriptedWorker) -> None:
    """The fields of a trusted proxy are removed, too, where the option is on."""
    await serve(stage, shelf, worker, "leaf", trusted_proxies=["127.0.0.1"])
    client = await stage.client(tls=shelf.client(), name=NAME)
    await client.ask(get(b"/", *OWN))
    await client.ask(get(b"/", b"X-Forwarded-For: 192.0.2.1"))
    assert [certificates(request) for request in worker.requests] == [[], []]


async def test_chain(stage: Stage, shelf: Shelf, worker: ScriptedWorker, tmp_path: Path) -> None:
    """Of a client whose authority is an intermediate one; in order, without the client's own certificate."""
    await serve(stage, shelf, worker, "chain")
    between = shelf.authority.create_child_ca()
    leaf = between.issue_cert("me")
    path = tmp_path / "with-chain.pem"
    leaf.private_key_and_cert_chain_pem.write_to_path(str(path))
    client = await stage.client(tls=shelf.client({"certificate": str(path), "key": str(path)}), name=NAME)
    await client.ask(get())
    first, *others = items(path, shelf.ca)
    assert certificates(worker.requests[0]) == [
        (b"Client-Cert", first),
        (b"Client-Cert-Chain", b", ".join(others)),
    ]
    assert len(others) == 2


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize("fields", ["leaf", "chain"])
async def test_resumed_session_keeps_the_certificate(
    stage: Stage, shelf: Shelf, worker: ScriptedWorker, fields: str, version: ssl.TLSVersion
) -> None:
    """Over TLS 1.3 a session without its chain is not resumed."""
    await serve(stage, shelf, worker, fields)
    context = shelf.client(shelf.pair("me"))
    context.maximum_version = version

    ask = partial(request_and_session, stage.running.address.port, context, NAME)
    _, session, _ = await asyncio.to_thread(ask)
    is_offered = session is not None and (session.has_ticket or version is ssl.TLSVersion.TLSv1_2)
    _, _, is_reused = await asyncio.to_thread(ask, session if is_offered else None)
    assert is_reused == (fields == "leaf" or version is ssl.TLSVersion.TLSv1_2)
    first, second = (certificates(request) for request in worker.requests)
    assert first == second
    assert [name for name, _ in first] == [b"Client-Cert", b"Client-Cert-Chain"][: 1 + (fields == "chain")]


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_session_of_an_expired_certificate_is_refused(
    stage: Stage, shelf: Shelf, worker: ScriptedWorker, version: ssl.TLSVersion
) -> None:
    """It has begun while the certificate was valid: here, OpenSSL does not look at the time."""
    await serve(stage, shelf, worker, "leaf")
    handshake = stage.running.arrivals.tls
    assert handshake is not None
    handshake.context.verify_flags |= NO_CHECK_TIME
    context = shelf.client(shelf.pair("me", is_expired=True))
    context.maximum_version = version
    ask = partial(request_and_session, stage.running.address.port, context, NAME)
    answer, session, _ = await asyncio.to_thread(ask)
    assert answer.startswith(b"HTTP/1.1 200")
    answer, _, is_reused = await asyncio.to_thread(ask, session)
    assert (answer, is_reused, len(worker.requests)) == (b"", True, 1)
    assert stage.cluster.process.counts.failed_arrivals == 1
    answer, _, is_reused = await asyncio.to_thread(ask)
    assert (answer[:12], is_reused) == (b"HTTP/1.1 200", False)


@pytest.mark.parametrize("trusted", [[], ["127.0.0.1"]])
async def test_fields_of_clients_where_the_option_is_off(
    stage: Stage, worker: ScriptedWorker, trusted: list[str]
) -> None:
    """Only a trusted proxy may state them, under their own names."""
    await stage.serve(worker, trusted_proxies=trusted)
    await (await stage.client()).ask(get(b"/", *OWN))
    passed = [(b"Client-Cert", b":AA==:"), (b"CLIENT-CERT-CHAIN", b":AA==:")] if trusted else []
    assert certificates(worker.requests[0]) == passed


def test_trailers_cannot_state_them() -> None:
    assert passing_trailers(b"\r\n" + b"".join(b"%b\r\n" % line for line in OWN)) == b""
