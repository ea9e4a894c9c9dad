"""A request before it has an endpoint: admission control and the wait queue.

A disabled feature costs one attribute test. This is the part of an exchange before the router; `forwarding.py` and
`exchange.py` hold the rest.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from balancer.errors import ForwardingError, Unserved
from balancer.exchange.wait_queue import Waiter
from balancer.http1.request_head import Request
from policies.overload.wait_queue import Ticket

if TYPE_CHECKING:
    from balancer.exchange.admission import Admission
    from balancer.proxy import Proxy


class WaitingExchange:
    """Base of an exchange: admission and waiting.

    `level` is the request's priority level and `deadline` the instant after which its response is useless, where
    admission control is on. `queued_at` is when the request first entered the wait queue, `place` its current ticket
    there.
    """

    level = 0
    deadline = inf
    queued_at = 0.0
    place: Ticket[Waiter] | None = None
    _proxy: Proxy
    _request: Request

    def attempt(self) -> None:
        """Choose an endpoint and a connection to it."""
        raise NotImplementedError

    def _answer(self, error: ForwardingError) -> None:
        raise NotImplementedError

    def _is_admitted(self, gate: Admission) -> bool:
        """Return whether admission control accepts the request; if not, send the error response."""
        try:
            self.level, self.deadline = gate.admit(self._request.fields.stated)
        except ForwardingError as error:
            self._answer(error)
            return False
        return True

    def _wait_for_room(self) -> None:
        proxy = self._proxy
        self.queued_at = self.queued_at or proxy.now()
        try:
            proxy.queue.join(self)
        except ForwardingError as error:
            self._answer(error)

    def decline(self, error: Unserved) -> None:
        """Reject the request after it waited in vain (`Waiter`)."""
        self._answer(error)

    def _check_wait(self, now: float) -> None:
        """Enforce the deadline of a waiting request; `now` is the cached time."""
        if self.place is not None:
            self._proxy.queue.check(self, now)

    def _leave_queue(self) -> None:
        """Leave the wait queue, if the request is in it."""
        if self.place is not None:
            self._proxy.queue.leave(self)
