"""Admin sockets: where the balancer creates its own, where a client on this machine looks for it, and how they are
opened: before the supervisor forks. All processes share them, and a hot restart (SIGUSR2) passes them on.

An admin socket is named after the port that the balancer serves, in a directory that only its user may enter.
"""

from __future__ import annotations

import os
import socket
import stat
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from balancer.config.schema.admin import AdminConfig
from balancer.config.schema.listen import ListenAddress
from balancer.downstream.listening_sockets import bind, bind_unix, is_listening
from balancer.errors import ListenFailed
from balancer.syntax.networks import is_this_machine

SYSTEM_DIRECTORY = Path("/run/steelyard")
"""`RuntimeDirectory=steelyard` of the systemd unit."""


def socket_name(port: int) -> str:
    """Return the file name of the admin socket of the balancer that serves `port`."""
    return f"{port}.sock"


def own_directory() -> Path:
    """Return the directory for this user's admin sockets: systemd's runtime directory, the session's, or one below the
    directory for temporary files.
    """
    if runtime := os.environ.get("RUNTIME_DIRECTORY"):  # systemd.exec(5): a list separated by colons
        return Path(runtime.partition(":")[0])
    return next(_user_directories())


def made_directory() -> Path:
    """Return `own_directory`, created if missing. Raises OSError, also if another user could enter it."""
    directory = own_directory()
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not is_private(directory):
        raise PermissionError(0, f"{directory} must be a directory of this user with mode 0700")
    return directory


def is_private(directory: Path) -> bool:
    """Return whether `directory` belongs to this user and is closed to other users.

    systemd creates its runtime directory with mode 0755; then it must not be writable by others, and the mode of the
    socket keeps them out.
    """
    found = os.lstat(directory)
    forbidden = 0o022 if os.environ.get("RUNTIME_DIRECTORY") else 0o077
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & forbidden


def found_socket(url: str) -> str | None:
    """Return the path of the admin socket of the balancer on this machine that serves `url`; None if there is none.

    The file of a killed balancer does not count: another program may serve its port by now.
    """
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError:
        return None
    if not is_this_machine(host) and host not in ("0.0.0.0", "::"):
        return None
    for directory in (*_user_directories(), SYSTEM_DIRECTORY):
        path = directory / socket_name(port)
        if _is_trusted(directory) and path.is_socket() and is_listening(str(path)):
            return str(path)
    return None


def running() -> dict[str, str]:
    """Return the admin sockets of the balancers that run for this user, by the port that each serves."""
    return {
        path.stem: str(path)
        for directory in {*_user_directories(), own_directory()}
        if _is_trusted(directory)
        for path in directory.glob("*.sock")
        if path.is_socket() and is_listening(str(path))
    }


def _user_directories() -> Iterator[Path]:
    if runtime := os.environ.get("XDG_RUNTIME_DIR"):
        yield Path(runtime) / "steelyard"
    yield Path(tempfile.gettempdir()) / f"steelyard-{os.getuid()}"


def _is_trusted(directory: Path) -> bool:
    """Return whether `directory` is private to this user or is the system directory, which an administrator
    controls.
    """
    try:
        return directory == SYSTEM_DIRECTORY or is_private(directory)
    except OSError:
        return False


UNIX_LABEL = "admin.socket"
TCP_LABEL = "admin.listen"
"""Labels under which the sockets are passed on at a hot restart."""

BACKLOG = 64

Inherited = Callable[[str], socket.socket | None]
"""Callable that returns the inherited socket with a label, or None."""


@dataclass(slots=True)
class AdminSockets:
    """Sockets of the admin interface; `path` is the Unix socket's path, `inode` its inode number."""

    unix: socket.socket | None = None
    path: str = ""
    inode: int = 0
    tcp: socket.socket | None = None

    def labelled(self, listen: str | None) -> list[tuple[str, socket.socket]]:
        """Return label and socket of each open socket, for a hot restart; `listen` is the configured TCP address."""
        found = ((UNIX_LABEL, self.unix), (f"{TCP_LABEL} {listen}", self.tcp))
        return [(label, sock) for label, sock in found if sock is not None and sock.fileno() >= 0]

    def close(self) -> None:
        """Close both sockets."""
        for sock in (self.unix, self.tcp):
            if sock is not None:
                sock.close()


def open_admin_sockets(
    config: AdminConfig,
    port: int,
    complain: Callable[[str], None],
    inherited: Inherited = lambda label: None,
) -> AdminSockets:
    """Open the sockets that `config` asks for; `port` is the traffic port.

    A problem with the default path is only reported, to `complain`. Raises `ListenFailed` for an address or a path that
    the configuration names.
    """
    sockets = AdminSockets()
    try:
        if config.listen is not None:
            address = ListenAddress.parse(config.listen)
            passed = inherited(f"{TCP_LABEL} {config.listen}")
            sockets.tcp = passed or bind(address.host, address.port, TCP_LABEL)
        if config.socket != "off":
            sockets.unix = inherited(UNIX_LABEL) or _open_unix(config.socket, port, complain)
        if sockets.unix is not None:
            sockets.path = sockets.unix.getsockname()
            sockets.inode = os.stat(sockets.path).st_ino
    except ListenFailed:
        sockets.close()
        raise
    return sockets


def _open_unix(wanted: str, port: int, complain: Callable[[str], None]) -> socket.socket | None:
    path = wanted
    try:
        if wanted == "auto":
            path = str(made_directory() / socket_name(port))
        return bind_unix(path, backlog=BACKLOG)
    except OSError as error:
        problem = f"admin.socket: cannot listen on {path}: {error.strerror or error}"
        if wanted != "auto":
            raise ListenFailed(problem) from None
        complain(problem)
        return None
