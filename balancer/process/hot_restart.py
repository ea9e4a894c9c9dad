"""Hot restart of a single process (SIGUSR2): start the new program, and stop when that serves.

Until the new program reports that it serves, the old one must stay unchanged.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from balancer.process.listening import Listening
from balancer.process.socket_handover import SUCCESSOR_FAILED, Successor, replaced_message


class HotRestart:
    """Hot restart of a process without a supervisor; `on_ready` is called when the successor serves."""

    def __init__(
        self, listening: Listening, say: Callable[[str], None], on_ready: Callable[[], None]
    ) -> None:
        self._listening = listening
        self._say = say
        self._on_ready = on_ready
        self._successor: Successor | None = None

    def begin(self) -> None:
        """Start the successor, unless one is starting already or this process is shutting down."""
        if self._successor is not None or self._listening.is_closed:
            return
        try:
            self._successor = Successor(self._listening.labelled())
        except OSError as error:
            self._say(f"balancer goes on: cannot start the program anew: {error.strerror}")
            return
        asyncio.get_running_loop().add_reader(self._successor.fileno(), self._heard)

    def _heard(self) -> None:
        successor = self._successor
        if successor is None:
            return
        asyncio.get_running_loop().remove_reader(successor.fileno())
        if successor.is_ready():
            self._say(replaced_message(successor))
            self._on_ready()
        else:
            self._say(SUCCESSOR_FAILED)
            self._successor = None
