"""Certificates made at run time, as files and as contexts of clients and workers."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import trustme


class Shelf:
    """A folder with an authority's certificates; `ca` is the authority's own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.authority = trustme.CA()
        self.ca = folder / "ca.pem"
        self.authority.cert_pem.write_to_path(str(self.ca))

    def pair(self, *names: str, is_expired: bool = False) -> dict[str, str]:
        """A certificate for these names and its key, as the configuration names them."""
        past = datetime.now(UTC) - timedelta(days=1)
        leaf = self.authority.issue_cert(*names, not_after=past if is_expired else None)
        stem = f"{names[0].replace('*', 'any')}-{len(list(self.folder.iterdir()))}"
        certificate, key = self.folder / f"{stem}.pem", self.folder / f"{stem}.key"
        certificate.write_bytes(b"".join(blob.bytes() for blob in leaf.cert_chain_pems))
        leaf.private_key_pem.write_to_path(str(key))
        return {"certificate": str(certificate), "key": str(key)}

    def client(self, pair: dict[str, str] | None = None) -> ssl.SSLContext:
        """A client that trusts the authority, and shows `pair` if it is asked."""
        context = ssl.create_default_context(cafile=str(self.ca))
        if pair is not None:
            context.load_cert_chain(pair["certificate"], pair["key"])
        return context

    def worker(self, *names: str, is_expired: bool = False) -> ssl.SSLContext:
        """A worker of these names."""
        pair = self.pair(*names, is_expired=is_expired)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(pair["certificate"], pair["key"])
        return context
