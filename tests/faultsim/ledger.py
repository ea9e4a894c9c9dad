"""What was sent, received, executed and answered, and what must hold of it whatever goes wrong.

Rule of this file: it knows the requests by their numbers and nothing of connections. It raises `Wrong` at the moment at
which something ceases to hold.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.faultsim.plan import Ask, Plan
from tests.faultsim.reading import Wrong


@dataclass(slots=True)
class Try:
    """What a worker answered the n-th time that a request came to one: so much of a body, if it was whole."""

    status: int
    size: int


class Ledger:
    """The accounts of a run. `ends`: how each request ended for who had asked."""

    def __init__(self, plan: Plan) -> None:
        self.asks = {ask.number: ask for ask in plan.asks}
        self.tries: dict[tuple[int, int], Try] = {}
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
        """The unit has written the beginning of a request to a worker."""
        self._sent[number] = times = self._sent.get(number, 0) + 1
        ask = self.asks[number]
        if times > 1 and not ask.is_idempotent:
            raise Wrong(f"{ask} was sent again after it may have been received")
        if times > self._most_sent:
            raise Wrong(f"{ask} was sent {times} times")

    def arrived(self, number: int) -> int:
        """A worker has its head; returns how many times that had happened before."""
        times = self._arrived.get(number, 0)
        self._arrived[number] = times + 1
        return times

    def executed(self, ask: Ask) -> None:
        """A worker has all of it, and does what it asks for."""
        self._executed[ask.number] = times = self._executed.get(ask.number, 0) + 1
        if times > 1 and not ask.is_idempotent:
            raise Wrong(f"{ask} was executed twice")

    def tried(self, ask: Ask, turn: int, answer: Try) -> None:
        """A worker begins to answer."""
        self.tries[ask.number, turn] = answer

    def judge(self, ask: Ask, number: int, turn: int, status: int) -> Try:
        """A client has the head of a response that names the request it is for; returns what was answered."""
        if number != ask.number:
            raise Wrong(f"{ask} got the answer to {self.asks[number]}")
        answer = self.tries.get((number, turn))
        if answer is None or answer.status != status:
            raise Wrong(f"{ask} got {status}, and that time the worker said {answer}")
        return answer

    def refused(self, ask: Ask, status: int, body: bytes) -> None:
        """A client has an answer of the unit's own."""
        if self._is_calm:
            raise Wrong(f"nothing went wrong, and {ask} got {status}: {body!r}")
        if status not in (400, 408, 413, 502, 503, 504):
            raise Wrong(f"{ask} got {status}, which nobody said")
        if ask.method != b"HEAD" and b'"error": "' not in body:
            raise Wrong(f"{ask} got {status} that does not say why: {body!r}")
        self.over(ask, f"{status} of our own, {body.decode()}")

    def over(self, ask: Ask, how: str) -> None:
        """So it ended for who had asked."""
        if ask.number in self.ends:
            raise Wrong(f"{ask} ended twice: {self.ends[ask.number]}, then {how}")
        if self._is_calm and how in ("cut", "no answer"):
            raise Wrong(f"nothing went wrong, and {ask} ended with: {how}")
        self.ends[ask.number] = how
        if self.note is not None:
            self.note(f"{ask} ended: {how}")

    def left(self) -> list[Ask]:
        """Requests that have not come to an end."""
        return [ask for ask in self.asks.values() if ask.number not in self.ends]
