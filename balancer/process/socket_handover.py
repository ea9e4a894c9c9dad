"""The listening socket handed over: from systemd to this program, and from it to the one that takes its place.

Rule of this file: the socket stays the same one. Its queue of connections is the kernel's and passes on with it, so
nobody who is on the way in notices. A new program that does not get ready changes nothing: the old one goes on.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress

from balancer.errors import ListenFailed

LISTENING = "STEELYARD_LISTENING"
"""In the environment of a successor: a line for each socket, its descriptor and its label. The label of the socket for
traffic is the `listen` that it was bound for."""

READY = "STEELYARD_READY"
"""In the environment of a successor: the descriptor of a pipe in which it says that it serves."""

FIRST_OF_SYSTEMD = 3
"""sd_listen_fds(3): where the descriptors begin."""


class Inherited:
    """The listening sockets that this program was started with, taken from the environment. Raises `ListenFailed`."""

    def __init__(self) -> None:
        passed = [line.partition(" ") for line in os.environ.pop(LISTENING, "").splitlines()]
        self._sockets = {label: _listening(int(descriptor)) for descriptor, _, label in passed}
        self._of_systemd = None if self._sockets else _from_systemd()

    def traffic(self, listen: str) -> socket.socket | None:
        """The socket for traffic: of the program before this one, if it was bound for `listen`, or of systemd."""
        return self._sockets.pop(listen, None) or self._of_systemd

    def control(self, label: str) -> socket.socket | None:
        """The control socket with this label."""
        return self._sockets.pop(label, None)

    def close(self) -> None:
        """Close what nothing asked for; its owner still has it, and so do the clients in its queue."""
        for sock in self._sockets.values():
            sock.close()


def _from_systemd() -> socket.socket | None:
    pid, count = os.environ.pop("LISTEN_PID", ""), os.environ.pop("LISTEN_FDS", "")
    os.environ.pop("LISTEN_FDNAMES", None)
    if pid != str(os.getpid()) or not count:
        return None
    if count != "1":
        raise ListenFailed(f"LISTEN_FDS: one socket is served, got {count}")
    sock = _listening(FIRST_OF_SYSTEMD)
    if sock.family not in (socket.AF_INET, socket.AF_INET6):
        sock.close()
        raise ListenFailed(f"descriptor {FIRST_OF_SYSTEMD}: must be a TCP socket that listens")
    return sock


def _listening(descriptor: int) -> socket.socket:
    """The socket behind a descriptor. Raises `ListenFailed`."""
    try:
        sock = socket.socket(fileno=descriptor)
        is_fit = sock.type == socket.SOCK_STREAM and sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    except OSError as error:
        raise ListenFailed(f"descriptor {descriptor}: no socket to listen on: {error.strerror}") from None
    if not is_fit or sock.family not in (socket.AF_INET, socket.AF_INET6, socket.AF_UNIX):
        sock.close()
        raise ListenFailed(f"descriptor {descriptor}: must be a TCP socket that listens")
    sock.set_inheritable(False)
    sock.setblocking(False)
    return sock


def tell_ready() -> None:
    """To the program whose place this one takes, if there is one: it may go."""
    descriptor = os.environ.pop(READY, "")
    if descriptor:
        with suppress(OSError):  # it may have gone already
            os.write(int(descriptor), b"ready")
        os.close(int(descriptor))


class Successor:
    """This program started once more, by the same command line, with our listening sockets, each with its label.

    `fileno()` becomes readable when it is ready, or has ended without ever having been.
    """

    def __init__(self, sockets: Sequence[tuple[str, socket.socket]]) -> None:
        self._pipe, told = os.pipe()
        lines = "\n".join(f"{sock.fileno()} {label}" for label, sock in sockets)
        environment = os.environ | {LISTENING: lines, READY: str(told)}
        descriptors = [sock.fileno() for _, sock in sockets]
        try:
            self._process = subprocess.Popen(
                [sys.executable, *sys.orig_argv[1:]], env=environment, pass_fds=(*descriptors, told)
            )
        except OSError:
            os.close(self._pipe)
            raise
        finally:
            os.close(told)

    def fileno(self) -> int:
        return self._pipe

    def is_ready(self) -> bool:
        """Whether it serves; else it has ended. Once, when `fileno()` is readable."""
        is_ready = os.read(self._pipe, 64) == b"ready"
        os.close(self._pipe)
        if not is_ready:
            self._process.wait()
        return is_ready

    @property
    def pid(self) -> int:
        return self._process.pid


def told_replaced(successor: Successor) -> str:
    """The line for whoever runs the unit."""
    return f"balancer is replaced by process {successor.pid}"


TOLD_IN_VAIN = "balancer goes on: the program that was to replace it has ended before it served"
