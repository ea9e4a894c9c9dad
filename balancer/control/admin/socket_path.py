"""Paths of admin sockets: where the balancer creates its own, and where a client on this machine looks for it.

An admin socket is named after the port that the balancer serves, in a directory that only its user may enter.
"""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

from balancer.downstream.listening_sockets import is_listening
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
