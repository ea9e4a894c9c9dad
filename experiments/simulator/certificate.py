"""The certificate: placeholder until the theory's cases stand here."""

from __future__ import annotations


def present_certificate(samples: float) -> int:
    """Print the table."""
    return 0
