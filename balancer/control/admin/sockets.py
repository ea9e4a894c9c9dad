"""Listening sockets of the admin interface: a Unix socket for this user, and a TCP address if one is configured.

They are opened before the supervisor forks, shared by all processes, and passed on at a hot restart (SIGUSR2).
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from dataclasses import dataclass

from balancer.config.schema.admin import AdminConfig
from balancer.config.schema.listen import ListenAddress
from balancer.control.admin.socket_path import made_directory, socket_name
from balancer.downstream.listening_sockets import bind, bind_unix
from balancer.errors import ListenFailed

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
