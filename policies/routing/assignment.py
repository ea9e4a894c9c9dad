"""The result of a routing decision. Created by the router and settled by it, exactly once."""

from __future__ import annotations

from policies.endpoint.state import EndpointState
from policies.facts import Endpoint, RequestFacts


class Assignment:
    """A request counted in at an endpoint, from `route` to `settle`. `in_flight_at_send` excludes the request.

    `number` counts the requests to the endpoint in the order in which they were sent.
    """

    __slots__ = (
        "facts",
        "in_flight_at_send",
        "is_answered",
        "is_connecting",
        "is_settled",
        "number",
        "routed_at",
        "state",
    )

    def __init__(self, state: EndpointState, facts: RequestFacts, in_flight: int, routed_at: float) -> None:
        self.state = state
        self.facts = facts
        self.in_flight_at_send = in_flight
        state.sent += 1
        self.number = state.sent
        self.routed_at = routed_at
        self.is_answered = self.is_settled = self.is_connecting = False

    def connecting(self) -> None:
        """Expect no answer until `connected`: the request waits for a new connection. Call it right after `route`."""
        self.is_connecting = True
        self.state.await_none(self.routed_at)

    def connected(self, now: float) -> None:
        """Expect an answer from now on."""
        if self.is_connecting:
            self.is_connecting = False
            self.state.sent += 1
            self.number = self.state.sent
            self.state.await_one(1, now)

    def answered(self, now: float) -> None:
        """Count the request as answered: its response head is here, or it has ended. A repeated call does nothing."""
        if not self.is_answered:
            self.is_answered = True
            if self.is_connecting:
                return
            self.state.answer(self.number, now)

    @property
    def endpoint(self) -> Endpoint:
        """The endpoint to send the request to."""
        return self.state.endpoint
