"""One request at one worker, on its way there, in it, and on its way back.

Rule of this file: an attempt is an event, the only one that most requests need. Where it is says what happens next.
What comes for an attempt that is over comes to nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from experiments.simulator.clock import Event
from policies.routing.facts import OutcomeKind, ReportedLoad

if TYPE_CHECKING:
    from experiments.simulator.post import WorkerConnections
    from policies.routing.assignment import Assignment

ARRIVING: Final = 0
SERVED: Final = 1
RETURNING: Final = 2

_OK: Final = OutcomeKind.OK


class Attempt(Event):
    """`number` is the request's, `tries` how many attempts it has had. `kind` and `status` are what will come back, at
    `due_at`, which may be put off. `is_over`: it was settled. `is_loser`: another attempt has answered the request.
    `rival` is the one that runs beside it; `is_fresh`: it had a connection of its own opened. `sent_at` is when a
    connection took it; `work` is the seconds of its service, known where workers report."""

    __slots__ = (
        "assignment",
        "due_at",
        "ended_at",
        "is_first",
        "is_fresh",
        "is_loser",
        "is_over",
        "kind",
        "number",
        "post",
        "report",
        "rival",
        "sent_at",
        "stage",
        "status",
        "tries",
        "work",
    )

    def __init__(self, post: WorkerConnections, assignment: Assignment, number: int, is_first: bool, now: float) -> None:
        self.post = post
        self.assignment = assignment
        self.number = number
        self.is_first = is_first
        self.sent_at = now
        self.due_at = self.work = self.ended_at = 0.0
        self.stage = ARRIVING
        self.tries = 1
        self.status = 200
        self.kind = _OK
        self.is_over = self.is_loser = self.is_fresh = False
        self.rival: Attempt | None = None
        self.report: ReportedLoad | None = None

    def refuse(self, now: float) -> None:
        """Nobody is there."""
        self.kind = OutcomeKind.REFUSED
        self.stage = RETURNING
        self.due_at = now
        self.post.agenda.add(now, self)

    def happen(self, now: float) -> None:
        """It has got where it was going."""
        stage = self.stage
        if self.is_over:
            return
        if stage == RETURNING:
            if self.due_at > now:
                self.post.agenda.add(self.due_at, self)
            else:
                self.post.unit.returned(self, now)
        elif stage == ARRIVING:
            self.post.worker.arrive(self, now)
        elif self.due_at > now:
            self.post.agenda.add(self.due_at, self)
        else:
            self.post.worker.served(self, now)
