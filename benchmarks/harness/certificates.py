"""Self-signed certificate for the loopback, and a client context that accepts it.

All proxies use one TLS version and one cipher suite, so that ciphers are not compared. Python's `ssl` cannot choose the
suites of TLS 1.3; it takes the first of OpenSSL's list, which is `SUITE`, so the others are configured for that.
"""

from __future__ import annotations

import shutil
import ssl
import subprocess
from dataclasses import dataclass
from pathlib import Path

from experiments.errors import FleetFailedError

SUITE = "TLS_AES_256_GCM_SHA384"
PROGRAM = "openssl"


@dataclass(frozen=True, slots=True)
class Certificate:
    """Paths of PEM files. `both` is the certificate followed by its key, as HAProxy expects it."""

    certificate: Path
    key: Path
    both: Path


def absence() -> str:
    """Reason why no certificate can be made here; empty if one can."""
    return "" if shutil.which(PROGRAM) else f"no program '{PROGRAM}' on the PATH to make a certificate with"


P256 = ("ec", "-pkeyopt", "ec_paramgen_curve:P-256")
RSA8192 = ("rsa:8192",)
"""Key types: a common one, and one whose server works thirty times as long as its client, for handshake throughput.
Generating the latter takes ten seconds, and sometimes a minute.
"""


def certificate_in(folder: Path, key: tuple[str, ...] = P256) -> Certificate:
    """Make a key and a self-signed certificate for 127.0.0.1. Raises `FleetFailedError`."""
    made = Certificate(folder / "certificate.pem", folder / "key.pem", folder / "both.pem")
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost"]
    kind = ["-newkey", *key, "-nodes", "-days", "2"]
    files = ["-keyout", str(made.key), "-out", str(made.certificate)]
    argv = [PROGRAM, "req", "-x509", *kind, *subject, *files]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=180)
    if done.returncode:
        raise FleetFailedError(f"{PROGRAM} made no certificate: {done.stderr.strip()[-200:]}")
    made.both.write_text(made.certificate.read_text() + made.key.read_text(), encoding="ascii")
    return made


def client_context() -> ssl.SSLContext:
    """Client context that accepts any certificate, with TLS 1.3 only."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    return context
