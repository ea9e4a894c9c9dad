"""Handover of listening sockets: from systemd to this program, and from it to its successor at a hot restart.

The socket stays the same, with its queue of connections in the kernel, so no connection is lost. If the new program
fails before it serves, the old one continues.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from tempfile import TemporaryFile
from typing import Any

from balancer.errors import ListenFailed

LISTENING = "STEELYARD_LISTENING"
"""Environment variable of a successor: a line for each socket with descriptor and label. The label of a traffic socket
is the `listen` that it was bound for.
"""

DISCOVERED = "STEELYARD_DISCOVERED"
"""Environment variable of a successor: process id of the predecessor, and descriptor of a JSON document, whose
`discovered` has what discovery has found (`ControlPlane.known`).
"""

READY = "STEELYARD_READY"
"""Environment variable of a successor: descriptor of the pipe to which it writes when it serves."""

FIRST_OF_SYSTEMD = 3
"""First descriptor passed by systemd, sd_listen_fds(3)."""


class Inherited:
    """Listening sockets that this program inherited, taken from the environment, and the endpoints `discovered` by its
    predecessor. Raises `ListenFailed`.

    `names` are those of the listeners beside `listen`, which systemd's sockets may have.
    """

    def __init__(self, names: Collection[str] = ()) -> None:
        passed = [line.partition(" ") for line in os.environ.pop(LISTENING, "").splitlines()]
        self.discovered = _document(os.environ.pop(DISCOVERED, ""))
        self._sockets = [(label, _listening(int(descriptor))) for descriptor, _, label in passed]
        self.of_systemd = {} if self._sockets else _from_systemd(names)
        """Sockets of systemd by listener, "" for `listen`."""

    def admin(self, label: str) -> socket.socket | None:
        """Return the inherited admin socket with this label. A program of version 0.1 passes it as `control.`."""
        return self.traffic(label) or self.traffic(label.replace("admin.", "control."))

    def traffic(self, wanted: str) -> socket.socket | None:
        """Return the first socket of the predecessor with a label: of traffic the `listen` it was bound for. Several
        listeners may have been bound for port 0."""
        for at, (label, sock) in enumerate(self._sockets):
            if label == wanted:
                del self._sockets[at]
                return sock
        return None

    def close(self) -> None:
        """Close the sockets that were not used; the predecessor still has them, and so their queued connections."""
        for sock in (*(sock for _, sock in self._sockets), *self.of_systemd.values()):
            sock.close()


def _from_systemd(names: Collection[str]) -> dict[str, socket.socket]:
    """Return the sockets by listener: one that is named after a listener is for that, the other one for `listen`."""
    pid, count = os.environ.pop("LISTEN_PID", ""), os.environ.pop("LISTEN_FDS", "")
    labels = os.environ.pop("LISTEN_FDNAMES", "").split(":")
    if pid != str(os.getpid()) or not count:
        return {}
    found: dict[str, int] = {}
    for at in range(int(count) if count.isdecimal() else 0):
        name = labels[at] if at < len(labels) and labels[at] in names else ""
        if name in found:
            raise ListenFailed(
                f"LISTEN_FDS: all sockets but one must be named after listeners by FileDescriptorName=, got {count}"
            )
        found[name] = FIRST_OF_SYSTEMD + at
    return {name: _listening(descriptor) for name, descriptor in found.items()}


def _listening(descriptor: int) -> socket.socket:
    """Return the listening socket with a descriptor. Raises `ListenFailed`."""
    try:
        sock = socket.socket(fileno=descriptor)
        is_eligible = sock.type == socket.SOCK_STREAM and sock.getsockopt(
            socket.SOL_SOCKET, socket.SO_ACCEPTCONN
        )
    except OSError as error:
        raise ListenFailed(f"descriptor {descriptor}: no socket to listen on: {error.strerror}") from None
    if not is_eligible or sock.family not in (socket.AF_INET, socket.AF_INET6, socket.AF_UNIX):
        sock.close()
        raise ListenFailed(f"descriptor {descriptor}: must be a TCP or Unix socket that listens")
    sock.set_inheritable(False)
    sock.setblocking(False)
    return sock


def _document(passed: str) -> dict[str, Any]:
    """Return the endpoints that the predecessor has discovered; none of one that does not pass them on."""
    pid, _, descriptor = passed.partition(" ")
    if pid != str(os.getppid()):
        return {}
    with open(int(descriptor), "rb") as file:
        file.seek(0)
        text = file.read()
    found: dict[str, Any] = json.loads(text)["discovered"] if text else {}
    return found


def notify(state: str) -> None:
    """Report a state of the service to systemd, if that waits for it (`Type=notify`, sd_notify(3))."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if address:
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            sock.settimeout(1.0)
            sock.sendto(state.encode(), f"\0{address[1:]}" if address.startswith("@") else address)


def tell_ready() -> None:
    """Report to the predecessor, or to systemd without one, that this program serves."""
    descriptor = os.environ.pop(READY, "")
    if not descriptor:
        notify("READY=1")
    else:
        with suppress(OSError):  # the predecessor may have exited
            os.write(int(descriptor), b"ready")
        os.close(int(descriptor))


def started(
    sockets: Sequence[tuple[str, socket.socket]], known: bytes, say: Callable[[str], None]
) -> Successor | None:
    """Start this program again; a failure is reported to `say`."""
    try:
        return Successor(sockets, known)
    except OSError as error:
        say(f"balancer goes on: cannot start the program anew: {error.strerror}")
        return None


class Successor:
    """This program started again, by the same command line, with the listening sockets and their labels, and the
    document `known` with the discovered endpoints.

    `fileno()` becomes readable when it serves, or has ended before.
    """

    def __init__(self, sockets: Sequence[tuple[str, socket.socket]], known: bytes) -> None:
        self._pipe, ready_fd = os.pipe()
        lines = "\n".join(f"{sock.fileno()} {label}" for label, sock in sockets)
        environment = os.environ | {LISTENING: lines, READY: str(ready_fd)}
        passed = [*(sock.fileno() for _, sock in sockets), ready_fd]
        command = [sys.executable, *sys.orig_argv[1:]]
        try:
            # In memory where that is possible: the file system may be read-only.
            with (
                open(os.memfd_create("known"), "w+b") if sys.platform == "linux" else TemporaryFile() as file
            ):
                file.write(known)
                file.flush()
                environment[DISCOVERED] = f"{os.getpid()} {file.fileno()}"
                passed.append(file.fileno())
                self._process = subprocess.Popen(command, env=environment, pass_fds=passed)
        except OSError:
            os.close(self._pipe)
            raise
        finally:
            os.close(ready_fd)

    def fileno(self) -> int:
        return self._pipe

    def end(self) -> None:
        """End it: this program is stopped before it serves."""
        os.close(self._pipe)
        self._process.terminate()

    def reload(self) -> None:
        """Let it reload the configuration, if it runs."""
        self._process.send_signal(signal.SIGHUP)

    def has_taken_over(self, say: Callable[[str], None], *, is_outdated: bool) -> bool:
        """Return whether it serves, and report that to the operator and to systemd; otherwise it has ended. Call once,
        when `fileno()` is readable. `is_outdated`: it has to reload, because this program has since its start."""
        is_ready = os.read(self._pipe, 64) == b"ready"
        os.close(self._pipe)
        if is_ready:
            notify(f"MAINPID={self._process.pid}")
            say(f"balancer is replaced by process {self._process.pid}")
            if is_outdated:
                self.reload()
        else:
            self._process.wait()
            say("balancer goes on: the program that was to replace it has ended before it served")
        return is_ready
