"""How long failures count against an endpoint: until it returns, until a look has shown better, or until forgotten.

All states are driven through a router, in a time that is only counted.
"""

from __future__ import annotations

from random import Random

import pytest

from policies import registry
from policies.contract import REGION, ManualClock, Trial, endpoints
from policies.endpoint.state import TRIAL_AFTER, EndpointState
from policies.facts import Outcome, OutcomeKind, RequestFacts
from policies.health.health import Health
from policies.routing.assignment import Assignment
from policies.routing.router import Router
from policies.stats.latency import FORGET_AFTER

ILL = f"{REGION}-0"


class One:
    """A router with one endpoint, and the requests that are out."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        rng = Random(1)
        self.router = Router(
            endpoints(1), registry.make("random", {}, rng), self.clock, rng, health=Health(rng)
        )
        self.state = self.router.find(ILL)
        self.out: list[Assignment] = []

    def send(self, number: int = 1) -> None:
        self.out += [self.router.route(RequestFacts()) for _ in range(number)]

    def end(self, kind: OutcomeKind, number: int = 1) -> None:
        """The oldest of those that are out end like this."""
        for _ in range(number):
            assignment, now = self.out.pop(0), self.clock.time
            self.router.settle(assignment, Outcome(kind, None, assignment.routed_at, now, now))

    def ends(self, *kinds: OutcomeKind) -> None:
        for kind in kinds:
            self.send()
            self.end(kind)

    @property
    def failure_penalty(self) -> float:
        return self.state.failure_penalty(self.clock.time)


OK, RESET, ABANDONED = OutcomeKind.OK, OutcomeKind.RESET, OutcomeKind.ABANDONED


def test_who_never_failed_is_not_to_blame() -> None:
    """Nor is who was never asked."""
    one = One()
    assert one.failure_penalty == 0.0
    one.ends(OK)
    assert one.failure_penalty == 0.0


def test_blame_is_the_share_of_failures_until_a_look_is_due() -> None:
    """One of four; and nothing at the instant at which a request may look."""
    one = One()
    one.ends(OK, OK, OK, RESET)
    assert one.failure_penalty == 0.25
    one.clock.time = TRIAL_AFTER - 0.01
    assert one.failure_penalty == 0.25
    one.clock.time = TRIAL_AFTER
    assert one.failure_penalty == 0.0


def test_only_one_looks_at_a_time() -> None:
    """While the look is out, be it for long, there is a penalty; and none once nothing was heard for FORGET_AFTER."""
    one = One()
    one.ends(RESET)
    one.clock.time = TRIAL_AFTER
    one.send()
    assert one.failure_penalty == 1.0
    one.clock.time = FORGET_AFTER - 0.01
    assert one.failure_penalty == 1.0
    one.clock.time = FORGET_AFTER
    assert one.failure_penalty == 0.0


def test_a_look_that_fails_begins_the_wait_anew() -> None:
    """So who fails always costs one request each time."""
    one = One()
    one.ends(RESET)
    one.clock.time = TRIAL_AFTER
    one.ends(RESET)
    assert one.failure_penalty == 1.0
    one.clock.time = 2 * TRIAL_AFTER - 0.01
    assert one.failure_penalty == 1.0


def test_a_look_whose_client_left_is_followed_by_another() -> None:
    """It has told nothing, and must not hold the place for ever."""
    one = One()
    one.ends(RESET)
    one.clock.time = TRIAL_AFTER
    one.ends(ABANDONED)
    assert one.failure_penalty == 0.0


def test_trust_doubles() -> None:
    """Each success allows one more to be out, so each round has twice as many as the one before."""
    one = One()
    one.ends(*[RESET] * 20)
    one.clock.time = TRIAL_AFTER
    rounds = []
    for _ in range(5):
        number = 0
        while one.failure_penalty == 0.0:
            one.send()
            number += 1
        one.end(OK, number)
        rounds.append(number)
    assert rounds == [1, 2, 4, 8, 16]


def test_requests_that_last_stand_in_nobodys_way() -> None:
    """Streams that were open when it failed are no looks."""
    one = One()
    one.send(50)
    one.send()
    one.out = one.out[-1:] + one.out[:-1]
    one.end(RESET)
    assert one.failure_penalty == 1.0
    one.clock.time = TRIAL_AFTER
    assert one.failure_penalty == 0.0
    one.send()
    assert one.failure_penalty == 1.0


def test_a_check_that_passes_again_ends_the_blame_at_once() -> None:
    """And what it did well before is forgotten too: its next failure counts whole."""
    one = One()
    one.ends(*[OK] * 100, RESET)
    one.router.set_healthy(ILL, False)
    assert one.failure_penalty > 0.0
    one.router.set_healthy(ILL, True)
    assert one.failure_penalty == 0.0
    one.send()
    one.end(RESET)
    assert one.failure_penalty == 1.0


def test_a_check_that_passes_as_ever_forgives_nothing() -> None:
    """Checks may not see what befalls requests: only the change of their mind counts."""
    one = One()
    one.ends(RESET)
    one.router.set_healthy(ILL, True)
    assert one.failure_penalty == 1.0


@pytest.mark.no_cover
@pytest.mark.parametrize(
    ("name", "most"), [("least-in-flight", 19), ("region-aware", 19), ("latency-weighted", 30)]
)
@pytest.mark.parametrize("kind", [RESET, OutcomeKind.TIMEOUT])
def test_who_fails_for_good_gets_one_request_per_look(name: str, most: int, kind: OutcomeKind) -> None:
    """Nobody checks it and nobody ejects it, and however quick its failures are, it draws nothing more, but for what
    drawing by weights leaves everybody."""

    def answer(state: EndpointState, now: float) -> tuple[float, OutcomeKind]:
        return (0.002 if kind is RESET else 0.5, kind) if state.id == ILL else (0.02, OK)

    options = (
        {"explore": 0.0} if name == "latency-weighted" else {}
    )  # exploring is asked for, and comes on top
    trial = Trial(lambda rng: registry.make(name, options, rng), endpoints(*[1] * 6), answer)
    trial.open_loop(500, 20)
    assert 5 <= trial.picked(since=1)[ILL] <= most
