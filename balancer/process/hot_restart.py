"""A process that is alone and is to be replaced by a newer program (SIGUSR2): it starts it, and goes when it serves.

Rule of this file: until the new one says that it serves, nothing changes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from balancer.process.listening import Listening
from balancer.process.socket_handover import TOLD_IN_VAIN, Successor, told_replaced


class HotRestart:
    """`on_ready` is called when the successor serves."""

    def __init__(
        self, listening: Listening, say: Callable[[str], None], on_ready: Callable[[], None]
    ) -> None:
        self._listening = listening
        self._say = say
        self._on_ready = on_ready
        self._successor: Successor | None = None

    def begin(self) -> None:
        """Start it, unless one is on its way already or we are ending ourselves."""
        if self._successor is not None or self._listening.traffic.fileno() < 0:
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
            self._say(told_replaced(successor))
            self._on_ready()
        else:
            self._say(TOLD_IN_VAIN)
            self._successor = None
