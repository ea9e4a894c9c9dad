"""The turn of a request that is not to be forwarded.

Rule of this file: a refusal waits for its turn like any request, and ends the connection.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from balancer.errors import RequestRejected

if TYPE_CHECKING:
    from balancer.downstream import Downstream


class Refusal:
    """A turn that is answered with an error as soon as it comes up; the connection closes after it."""

    def __init__(self, downstream: Downstream, error: RequestRejected, is_head: bool) -> None:
        self._downstream = downstream
        self._error = error
        self._is_head = is_head

    def start(self) -> None:
        self._downstream.write_error(self._error, b"", stays=False, is_head=self._is_head)
        self._downstream.turn_ended(stays=False)

    def request_body(self, data: bytes) -> None:
        """Read and dropped."""

    def request_ended(self) -> None:
        """No matter."""

    def pause_response(self) -> None:
        """It is a few hundred bytes."""

    def resume_response(self) -> None:
        """It is a few hundred bytes."""

    def abandon(self) -> None:
        """Nothing was begun."""

    def reject(self, error: RequestRejected) -> None:
        """It is rejected already."""

    def check(self, now: float) -> None:
        """It does not wait for anything but its turn."""
