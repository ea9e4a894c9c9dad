"""Certificates made at run time, as files and as contexts of clients and workers."""

from __future__ import annotations

import socket
import ssl
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.support.wire import get


class Shelf:
    """A CA that writes certificates to a folder; `ca` is the path of its own certificate."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.authority = trustme.CA()
        self.ca = folder / "ca.pem"
        self.authority.cert_pem.write_to_path(str(self.ca))

    def pair(self, *names: str, is_expired: bool = False, is_rsa: bool = False) -> dict[str, str]:
        """Issue a certificate, with a key for ECDSA or RSA; return paths by key of the configuration."""
        past = datetime.now(UTC) - timedelta(days=1)
        kind = trustme.KeyType.RSA if is_rsa else trustme.KeyType.ECDSA
        leaf = self.authority.issue_cert(*names, not_after=past if is_expired else None, key_type=kind)
        stem = f"{names[0].replace('*', 'any')}-{len(list(self.folder.iterdir()))}"
        certificate, key = self.folder / f"{stem}.pem", self.folder / f"{stem}.key"
        certificate.write_bytes(b"".join(blob.bytes() for blob in leaf.cert_chain_pems))
        leaf.private_key_pem.write_to_path(str(key))
        return {"certificate": str(certificate), "key": str(key)}

    def both(self, *names: str) -> Path:
        """Issue a certificate; return the path of a file with it and its key, as a worker takes them."""
        file = self.folder / "both.pem"
        file.write_bytes(b"".join(Path(path).read_bytes() for path in self.pair(*names).values()))
        return file

    def client(self, pair: dict[str, str] | None = None) -> ssl.SSLContext:
        """Client context that trusts the CA, with `pair` as its client certificate."""
        context = ssl.create_default_context(cafile=str(self.ca))
        if pair is not None:
            context.load_cert_chain(pair["certificate"], pair["key"])
        return context

    def worker(self, *names: str, is_expired: bool = False) -> ssl.SSLContext:
        """Server context with a certificate for these names."""
        pair = self.pair(*names, is_expired=is_expired)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(pair["certificate"], pair["key"])
        return context


def self_signed(folder: Path, *names: str) -> ssl.SSLContext:
    """Server context with a self-signed certificate."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0])])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([general_name(one) for one in names]), critical=False)
        .sign(key, hashes.SHA256())
    )
    folder.mkdir(exist_ok=True)
    pem = serialization.Encoding.PEM
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    file = folder / "self-signed.pem"
    file.write_bytes(private + certificate.public_bytes(pem))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file)
    return context


def general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def limited_to(context: ssl.SSLContext, version: ssl.TLSVersion) -> ssl.SSLContext:
    """Let the context use this version only."""
    context.minimum_version = context.maximum_version = version
    return context


def request_and_session(
    port: int, context: ssl.SSLContext, name: str, session: ssl.SSLSession | None = None
) -> tuple[bytes, ssl.SSLSession | None, bool | None]:
    """One request over blocking sockets, for a thread: the response, the session, and whether `session` was resumed."""
    with (
        socket.create_connection(("127.0.0.1", port)) as sock,
        context.wrap_socket(sock, server_hostname=name, session=session) as tls,
    ):
        tls.settimeout(5)
        tls.sendall(get(b"/", b"Connection: close"))
        received = b""
        while data := tls.recv(65536):
            received += data
        return received, tls.session, tls.session_reused
