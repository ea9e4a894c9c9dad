"""What can go wrong with a worker as a program; each error knows the exit code it means."""

from __future__ import annotations


class WorkersError(Exception):
    """Ends the program with one line on standard error."""

    exit_code = 1


class CannotListen(WorkersError):
    """The address is taken, not ours, or not an address."""

    exit_code = 2

    def __init__(self, host: str, port: int, reason: str) -> None:
        super().__init__(
            f"--host/--port: cannot listen on {host}:{port}: {reason}; choose a free port, or 0 for any"
        )


class CannotCertify(WorkersError):
    """There is no certificate to speak TLS with."""

    exit_code = 2

    def __init__(self, reason: str) -> None:
        super().__init__(f"--tls: no certificate: {reason}")


class Unreachable(WorkersError):
    """The worker that a switch was meant for did not answer, or answered with an error."""
