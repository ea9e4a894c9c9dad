"""Errors of the worker program; each has its exit code."""

from __future__ import annotations


class WorkersError(Exception):
    """Ends the program with one line on standard error."""

    exit_code = 1


class CannotListen(WorkersError):
    """The address is in use, invalid, or not of this machine."""

    exit_code = 2

    def __init__(self, host: str, port: int, reason: str) -> None:
        super().__init__(
            f"--host/--port: cannot listen on {host}:{port}: {reason}; choose a free port, or 0 for any"
        )


class CannotCertify(WorkersError):
    """No certificate is available for TLS."""

    exit_code = 2

    def __init__(self, reason: str) -> None:
        super().__init__(f"--tls: no certificate: {reason}")


class Unreachable(WorkersError):
    """The worker at the given URL did not answer, or answered with an error."""
