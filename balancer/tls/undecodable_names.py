"""Suppress the traceback that the `ssl` module prints for a server name (SNI) that is not ASCII.

`ssl` decodes the name before it calls `SSLContext.sni_callback`. If that fails, the error goes to
`sys.unraisablehook`, which prints it, and the handshake fails with the reason CALLBACK_FAILED. Any client can cause it,
as often as it connects. `TlsTransport` handles the failure.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any


class _Hook:
    """A `sys.unraisablehook` that drops these errors and passes all others to `following`."""

    def __init__(self, following: Callable[[Any], Any]) -> None:
        self._following = following

    def __call__(self, problem: sys.UnraisableHookArgs) -> None:
        if not _is_server_name(problem):
            self._following(problem)


def mute_undecodable_names() -> None:
    """Install the hook; a further call changes nothing."""
    if not isinstance(sys.unraisablehook, _Hook):
        sys.unraisablehook = _Hook(sys.unraisablehook)


def _is_server_name(problem: sys.UnraisableHookArgs) -> bool:
    """Python 3.14 names the callback in `err_msg`; earlier versions give the name's bytes as `object`."""
    if not isinstance(problem.exc_value, UnicodeDecodeError):
        return False
    return isinstance(problem.object, bytes) or "servername" in (problem.err_msg or "")
