"""ALPN with clients: what is agreed on, and the alert where there is nothing to agree on (RFC 7301 § 3.2)."""

from __future__ import annotations

import asyncio
import socket
import ssl
from pathlib import Path

import pytest

from balancer.tls.client_hello import offered_protocols
from tests.support.certificates import Shelf
from tests.support.stage import Stage
from tests.support.wire import response

NAME = "shop.example.org"
REFUSED = "no application protocol"

OFFERS: dict[tuple[str, ...], tuple[str | None, str | None]] = {  # with HTTP/2, and without
    (): (None, None),
    ("h2",): ("h2", REFUSED),
    ("http/1.1",): ("http/1.1", "http/1.1"),
    ("h2", "http/1.1"): ("h2", "http/1.1"),
    ("http/1.1", "h2"): ("h2", "http/1.1"),
    ("foo",): (REFUSED, REFUSED),
    ("foo", "h2"): ("h2", REFUSED),
    ("h", "h22", "xh2", "http/1.0"): (REFUSED, REFUSED),
}


def hello_of(client: ssl.SSLContext, *offer: str) -> tuple[ssl.SSLObject, ssl.MemoryBIO, ssl.MemoryBIO]:
    client.set_alpn_protocols(list(offer))
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = client.wrap_bio(to_client, to_server, server_hostname=NAME)
    with pytest.raises(ssl.SSLWantReadError):
        tls.do_handshake()
    return tls, to_client, to_server


def agreed(port: int, client: ssl.SSLContext, offer: tuple[str, ...], piece: int) -> str | None:
    """Do a handshake, with a hello in pieces of that size; return the protocol, or the failure."""
    tls, to_client, to_server = hello_of(client, *offer)
    with socket.create_connection(("127.0.0.1", port), timeout=20) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        hello = to_server.read()
        for at in range(0, len(hello), piece):
            sock.sendall(hello[at : at + piece])
        while True:
            to_client.write(sock.recv(65536))
            try:
                tls.do_handshake()
                return tls.selected_alpn_protocol()
            except ssl.SSLWantReadError:
                sock.sendall(to_server.read())
            except ssl.SSLError as error:
                return REFUSED if REFUSED in str(error) else str(error)


@pytest.mark.parametrize("piece", [1 << 20, 7])
@pytest.mark.parametrize("certificates", [1, 2])
@pytest.mark.parametrize("is_on", [True, False], ids=["http2", "http1"])
async def test_alpn(stage: Stage, tmp_path: Path, is_on: bool, certificates: int, piece: int) -> None:
    """Every offer, in TLS 1.2 and 1.3, with one certificate and several, and with a hello in pieces."""
    shelf = Shelf(tmp_path)
    more = [shelf.pair("other.example.org")] * (certificates - 1)
    await stage.serve(
        await stage.worker(response()),
        tls={**shelf.pair(NAME), "certificates": more},
        http2={"enabled": is_on},
    )
    port = stage.running.address.port
    for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
        found = {}
        for offer in OFFERS:
            client = shelf.client()
            client.maximum_version = version
            found[offer] = await asyncio.to_thread(agreed, port, client, offer, piece)
        assert found == {offer: wanted[not is_on] for offer, wanted in OFFERS.items()}


def test_hello_that_is_cut_or_broken_offers_nothing(tmp_path: Path) -> None:
    """Any byte missing at the end, and any one changed, is for OpenSSL to judge, and never an exception."""
    hello = hello_of(Shelf(tmp_path).client(), "foo", "h2")[2].read()
    assert offered_protocols(hello) == [b"foo", b"h2"]
    assert not any(offered_protocols(hello[:size]) for size in range(len(hello)))
    for at in range(len(hello)):
        for value in (0, 1, 127, 255):
            offered_protocols(hello[:at] + bytes([value]) + hello[at + 1 :])
