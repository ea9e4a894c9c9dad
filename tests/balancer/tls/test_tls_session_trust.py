"""A session of TLS is resumed only while the balancer trusts what it trusted when the session began."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from balancer.config.schema.sections import TlsConfig
from balancer.tls.contexts import ServerTls, SharedContext
from tests.support.certificates import Shelf

Change = Callable[[Shelf, dict[str, str]], dict[str, str]]


def exchange(server: ssl.SSLContext, client: ssl.SSLContext, session: ssl.SSLSession | None) -> ssl.SSLObject:
    """Shake hands and pass a byte, so that the client has a ticket. Raises `ssl.SSLError` as either side does."""
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    served = server.wrap_bio(up, down, server_side=True)
    asking = client.wrap_bio(down, up, server_hostname="localhost", session=session)
    for step in (asking.do_handshake, served.do_handshake) * 4:
        with suppress(ssl.SSLWantReadError):
            step()
    served.write(b"x")
    assert asking.read(1) == b"x"
    return asking


def other_authority(shelf: Shelf) -> bytes:
    folder = shelf.folder / "other"
    folder.mkdir()
    return Shelf(folder).ca.read_bytes()


def rewritten(contents: bytes, tls: dict[str, str]) -> dict[str, str]:
    """Settings that are unchanged, with other authorities in the file."""
    Path(tls["client_ca"]).write_bytes(contents)
    return tls


def renamed(shelf: Shelf, tls: dict[str, str]) -> dict[str, str]:
    """Another file with the same authorities, as a mounted secret is."""
    same = shelf.folder / "same.pem"
    same.write_bytes(shelf.ca.read_bytes())
    return {**tls, "client_ca": str(same)}


CHANGES: dict[str, tuple[Change, bool]] = {  # and whether a session may be resumed after it
    "nothing": (lambda _, tls: tls, True),
    "certificate": (lambda shelf, tls: tls | shelf.pair("localhost"), True),
    "name of the file": (renamed, True),
    "authority replaced": (lambda shelf, tls: rewritten(other_authority(shelf), tls), False),
    "authority added": (
        lambda shelf, tls: rewritten(shelf.ca.read_bytes() + other_authority(shelf), tls),
        False,
    ),
    "authority removed": (lambda _, tls: {key: tls[key] for key in ("certificate", "key")}, False),
    "certificate required": (lambda _, tls: tls | {"client_certificate": "required"}, False),
    "minimum version": (lambda _, tls: tls | {"min_version": "1.3"}, False),
}


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize("start", ["without", "same", "restarted"])
@pytest.mark.parametrize("change", CHANGES)
def test_session_does_not_outlive_trust(
    tmp_path: Path, change: str, start: str, version: ssl.TLSVersion
) -> None:
    """A reload of a listener without TLS at the start, and of one with it, whose context a hot restart makes anew."""
    shelf = Shelf(tmp_path)
    tls = {**shelf.pair("localhost"), "client_ca": str(shelf.ca), "client_certificate": "optional"}
    client = shelf.client(shelf.pair("client"))
    client.maximum_version = version

    def server(tls: dict[str, str], front: SharedContext | None) -> ssl.SSLContext:
        return ServerTls(TlsConfig.model_validate(tls)).handshake(front).context

    front = None if start == "without" else SharedContext(TlsConfig.model_validate(tls))
    first = exchange(server(tls, front), client, None)
    session = first.session
    assert session is not None
    alter, is_kept = CHANGES[change]
    tls = alter(shelf, tls)
    if start == "restarted":
        front = SharedContext(TlsConfig.model_validate(tls))
    try:
        second = exchange(server(tls, front), client, session)
    except ssl.SSLError:  # refused: its certificate is of no trusted authority, or its version too old
        assert change in ("authority replaced", "minimum version")
        return
    assert second.session_reused is (is_kept and start == "same")
