"""Listening sockets: TCP addresses and Unix sockets, bound with the permissions that the configuration gives."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from pathlib import Path

from balancer.errors import ListenFailed

BACKLOG = 4096
"""Maximum connections in the kernel's accept queue; net.core.somaxconn caps it."""

OWNER = 0o600
"""Permissions of a Unix socket that only this user may connect to."""


def bind(host: str, port: int, key: str = "listen") -> socket.socket:
    """Return a listening socket. Raises `ListenFailed`, whose message names the configuration's `key`."""
    sock: socket.socket | None = None
    try:
        name = host.encode() if host.isascii() else host  # of bytes, no tables of Unicode are loaded
        found = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, _, _, _, address = found[0]
        sock = socket.socket(family, socket.SOCK_STREAM)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        sock.listen(BACKLOG)
    except OSError as error:
        if sock is not None:
            sock.close()
        raise ListenFailed(f"{key}: cannot use {host}:{port}: {error.strerror}") from None
    sock.setblocking(False)
    return sock


def bind_unix(path: str, mode: int = OWNER, backlog: int = BACKLOG) -> socket.socket:
    """Return a listening Unix socket with these permissions. Raises OSError.

    A stale socket file that nothing listens on, left by a killed program, is replaced.
    """
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _remove_stale(path)
        umask = os.umask(0o777 & ~mode)
        try:
            sock.bind(path)
        finally:
            os.umask(umask)
        sock.listen(backlog)
    except OSError:
        sock.close()
        raise
    sock.setblocking(False)
    return sock


def _remove_stale(path: str) -> None:
    if not Path(path).is_socket():
        return
    if is_listening(path):
        raise OSError(0, "another program listens on it")
    os.unlink(path)


def is_listening(path: str) -> bool:
    """Return whether a program listens on the Unix socket `path`."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(path)
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except OSError:  # many clients wait there, or it is another user's
            return True
    return True


def remove_unix(path: str, inode: int) -> None:
    """Unlink a Unix socket, unless another program has bound its own there."""
    with suppress(OSError):
        if path and os.stat(path).st_ino == inode:
            os.unlink(path)


def bound_unsent(sock: socket.socket, size: int) -> None:
    """Limit the unsent bytes that the kernel buffers to about `size` for each connection accepted from `sock`.

    Send buffers grow to megabytes each. With a thousand slow readers they fill the memory shared by all sockets of the
    machine (tcp_mem in tcp(7)); then the kernel drops segments of all connections, and they are resent after 200 ms.
    """
    if hasattr(socket, "TCP_NOTSENT_LOWAT") and sock.family != socket.AF_UNIX:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, size)
