"""What was sent, received, executed and answered, and the invariants of it.

Requests are known by their numbers, connections not at all. `Violation` is raised at the moment at which an invariant
breaks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tests.faultsim.plan import Plan, PlannedRequest
from tests.faultsim.reading import Violation

if TYPE_CHECKING:
    from tests.faultsim.messages import Arrival


class Ledger:
    """The accounts of a run. `ends`: how each request ended for its client."""

    def __init__(self, plan: Plan) -> None:
        self.requests = {request.number: request for request in plan.requests}
        self.tries: dict[tuple[int, int], Arrival] = {}
        self.ends: dict[int, str] = {}
        self.answered = 0
        self.logged: list[object] = []
        self.note: Callable[[str], None] | None = None
        self._is_calm = plan.is_calm
        is_hedged = plan.settings.get("hedging", {}).get("enabled", False)
        self._most_sent = 1 + plan.settings["retries"] + is_hedged
        self._sent: dict[int, int] = {}
        self._arrived: dict[int, int] = {}
        self._executed: dict[int, int] = {}

    def sent(self, number: int) -> None:
        """The balancer has written the beginning of a request to a worker."""
        self._sent[number] = times = self._sent.get(number, 0) + 1
        request = self.requests[number]
        if times > 1 and not request.is_idempotent:
            raise Violation(f"{request} was sent again after it may have been received")
        if times > self._most_sent:
            raise Violation(f"{request} was sent {times} times")

    def unprocessed(self, request: PlannedRequest) -> None:
        """A worker says that it has not processed a request, which may be sent once more."""
        self._sent[request.number] -= 1

    def check_unsent(self, request: PlannedRequest) -> None:
        """The balancer says that it has not processed a request."""
        if self._sent.get(request.number):
            raise Violation(f"{request} was refused after it had been sent")

    def arrived(self, number: int) -> int:
        """A worker has the head; return how many times that had happened before."""
        times = self._arrived.get(number, 0)
        self._arrived[number] = times + 1
        return times

    def executed(self, request: PlannedRequest) -> None:
        """A worker has the whole request and executes it."""
        self._executed[request.number] = times = self._executed.get(request.number, 0) + 1
        if times > 1 and not request.is_idempotent:
            raise Violation(f"{request} was executed twice")

    def tried(self, arrival: Arrival) -> None:
        """A worker begins to respond."""
        self.tries[arrival.request.number, arrival.turn] = arrival

    def check(self, request: PlannedRequest, number: int, turn: int, status: int) -> Arrival:
        """A client has the head of a response that names its request; return what the worker has answered."""
        if number != request.number:
            raise Violation(f"{request} got the answer to {self.requests[number]}")
        arrival = self.tries.get((number, turn))
        if arrival is None or arrival.request.reply.status != status:
            said = arrival and arrival.request.reply.status
            raise Violation(f"{request} got {status}, and that time the worker said {said}")
        return arrival

    def refused(self, request: PlannedRequest, status: int, body: bytes) -> None:
        """A client has a response of the balancer's own."""
        if self._is_calm:
            raise Violation(f"nothing went wrong, and {request} got {status}: {body!r}")
        if status not in (400, 408, 413, 502, 503, 504):
            raise Violation(f"{request} got {status}, which no worker sent")
        if request.method != b"HEAD" and b'"error": "' not in body:
            raise Violation(f"{request} got {status} that does not say why: {body!r}")
        self.over(request, f"{status} of our own, {body.decode()}")

    def refused_rpc(self, request: PlannedRequest, fields: dict[bytes, bytes]) -> None:
        """A client has an error of the balancer's own that ends an RPC."""
        code, text = int(fields[b"grpc-status"]), fields.get(b"grpc-message", b"").decode()
        if self._is_calm or not code or ": " not in text:
            raise Violation(f"{request} got grpc-status {code} of our own: {text}")
        self.over(request, f"grpc-status {code} of our own, {text}")

    def over(self, request: PlannedRequest, how: str) -> None:
        """The request has ended so for its client."""
        if request.number in self.ends:
            raise Violation(f"{request} ended twice: {self.ends[request.number]}, then {how}")
        if self._is_calm and how in ("cut", "no answer"):
            raise Violation(f"nothing went wrong, and {request} ended with: {how}")
        self.ends[request.number] = how
        self.say(f"{request} ended: {how}")

    def say(self, what: str) -> None:
        """Write a line of the journal."""
        if self.note is not None:
            self.note(what)

    def left(self) -> list[PlannedRequest]:
        return [request for request in self.requests.values() if request.number not in self.ends]
