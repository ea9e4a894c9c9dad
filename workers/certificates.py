"""Self-signed certificate for the loopback address, made by the `openssl` program when the worker starts.

Nothing is kept. `openssl` is available wherever Python's `ssl` is; a library that makes certificates would be a
dependency of every installation, for one line that a worker needs at its start.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

from workers.errors import CannotCertify

PROGRAM = "openssl"
PATIENCE = 30.0  # seconds

_REQUEST = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"]
_SUBJECT = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost"]


def certificate_in(folder: Path) -> Path:
    """Write a new P-256 key and a self-signed certificate for 127.0.0.1 to one PEM file. Raises CannotCertify."""
    key, certificate, both = (folder / f"{name}.pem" for name in ("key", "certificate", "both"))
    argv = [PROGRAM, *_REQUEST, *_SUBJECT, "-keyout", str(key), "-out", str(certificate)]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=PATIENCE)
    except (OSError, subprocess.TimeoutExpired):
        raise CannotCertify(f"no program '{PROGRAM}' that makes one; give one with --certificate") from None
    if done.returncode:
        raise CannotCertify(done.stderr.strip()[-200:])
    both.write_text(
        certificate.read_text(encoding="ascii") + key.read_text(encoding="ascii"), encoding="ascii"
    )
    return both
