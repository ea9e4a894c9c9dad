"""What a request becomes on its connection: a turn, answered when all before it have been.

Rule of this file: a forwarded request (`exchange.py`), a control request (`control.py`) and a refusal look alike to the
connection. A refusal waits for its turn like any other, and ends the connection.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from balancer.errors import RequestRejected

if TYPE_CHECKING:
    from balancer.downstream import Downstream


class Turn(Protocol):
    """A request and whatever answers it."""

    def start(self) -> None: ...
    def request_body(self, data: bytes) -> None: ...
    def request_ended(self, trailers: bytes) -> None: ...
    def pause_response(self) -> None: ...
    def resume_response(self) -> None: ...
    def abandon(self) -> None: ...
    def reject(self, error: RequestRejected) -> None: ...
    def check(self, now: float) -> None: ...


class Refusal:
    """A turn that is answered with an error as soon as it comes up; the connection closes after it."""

    def __init__(self, downstream: Downstream, error: RequestRejected, is_head: bool) -> None:
        self._downstream = downstream
        self._error = error
        self._is_head = is_head

    def start(self) -> None:
        self._downstream.count_error(self._error)
        self._downstream.write_error(self._error, b"", stays=False, is_head=self._is_head)
        self._downstream.turn_ended(stays=False)

    def request_body(self, data: bytes) -> None:
        """Read and dropped."""

    def request_ended(self, trailers: bytes) -> None:
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
