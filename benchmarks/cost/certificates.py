"""A certificate for the loopback, made for one sitting, and a client that takes it.

Rule of this file: one version and one suite for everybody, or it would be ciphers that are compared. Python's `ssl`
cannot choose the suites of TLS 1.3; it takes the first of OpenSSL's list, which is SUITE, and so the others are
told to take that.
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
    """Paths of PEM files. `both` is the certificate and its key, one after the other, as HAProxy has it."""

    certificate: Path
    key: Path
    both: Path


def absence() -> str:
    """Why no certificate can be made here; empty when it can."""
    return "" if shutil.which(PROGRAM) else f"no program '{PROGRAM}' on the PATH to make a certificate with"


P256 = ("ec", "-pkeyopt", "ec_paramgen_curve:P-256")
RSA8192 = ("rsa:8192",)
"""Keys: what everybody has today, and one whose server works thirty times as long as its client. That is what it is
for: making it takes ten seconds, and now and then a minute."""


def certificate_in(folder: Path, key: tuple[str, ...] = P256) -> Certificate:
    """A new key and a certificate for 127.0.0.1, signed by itself. Raises FleetFailedError."""
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
    """A client that takes any certificate: what is measured is the cost, not the trust."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    return context
