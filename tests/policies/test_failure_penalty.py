"""The failure penalty: until the endpoint returns, until a trial request succeeds, or until it is forgotten.

All requests pass through a router, in virtual time.
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

FAILING = f"{REGION}-0"


class OneEndpoint:
    """A router with one endpoint, and its requests in flight."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        rng = Random(1)
        self.router = Router(
            endpoints(1), registry.make("random", {}, rng), self.clock, rng, health=Health(rng)
        )
        self.state = self.router.find(FAILING)
        self.out: list[Assignment] = []

    def send(self, number: int = 1) -> None:
        self.out += [self.router.route(RequestFacts()) for _ in range(number)]

    def end(self, kind: OutcomeKind, number: int = 1) -> None:
        """End the oldest requests in flight so."""
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


def test_no_penalty_without_failures() -> None:
    """With successes or without any request."""
    one = OneEndpoint()
    assert one.failure_penalty == 0.0
    one.ends(OK)
    assert one.failure_penalty == 0.0


def test_penalty_is_the_share_of_failures_until_a_trial_is_due() -> None:
    """One of four; zero from the instant at which a trial request may be sent."""
    one = OneEndpoint()
    one.ends(OK, OK, OK, RESET)
    assert one.failure_penalty == 0.25
    one.clock.time = TRIAL_AFTER - 0.01
    assert one.failure_penalty == 0.25
    one.clock.time = TRIAL_AFTER
    assert one.failure_penalty == 0.0


def test_only_one_trial_request_at_a_time() -> None:
    """The penalty holds while a trial is in flight, and ends when no outcome has been seen for FORGET_AFTER."""
    one = OneEndpoint()
    one.ends(RESET)
    one.clock.time = TRIAL_AFTER
    one.send()
    assert one.failure_penalty == 1.0
    one.clock.time = FORGET_AFTER - 0.01
    assert one.failure_penalty == 1.0
    one.clock.time = FORGET_AFTER
    assert one.failure_penalty == 0.0


def test_failed_trial_restarts_the_wait() -> None:
    """A failing endpoint costs one request per wait."""
    one = OneEndpoint()
    one.ends(RESET)
    one.clock.time = TRIAL_AFTER
    one.ends(RESET)
    assert one.failure_penalty == 1.0
    one.clock.time = 2 * TRIAL_AFTER - 0.01
    assert one.failure_penalty == 1.0


def test_abandoned_trial_is_followed_by_another() -> None:
    """It says nothing of the endpoint and must not block further trials."""
    one = OneEndpoint()
    one.ends(RESET)
    one.clock.time = TRIAL_AFTER
    one.ends(ABANDONED)
    assert one.failure_penalty == 0.0


def test_allowed_requests_double_with_successes() -> None:
    """Each success allows one more in flight, so each round has twice as many as the last."""
    one = OneEndpoint()
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


def test_long_requests_do_not_block_trials() -> None:
    """Streams that were open when the endpoint failed are no trials."""
    one = OneEndpoint()
    one.send(50)
    one.send()
    one.out = one.out[-1:] + one.out[:-1]
    one.end(RESET)
    assert one.failure_penalty == 1.0
    one.clock.time = TRIAL_AFTER
    assert one.failure_penalty == 0.0
    one.send()
    assert one.failure_penalty == 1.0


def test_recovered_check_clears_the_penalty() -> None:
    """Earlier successes are forgotten too: the next failure counts in full."""
    one = OneEndpoint()
    one.ends(*[OK] * 100, RESET)
    one.router.set_healthy(FAILING, False)
    assert one.failure_penalty > 0.0
    one.router.set_healthy(FAILING, True)
    assert one.failure_penalty == 0.0
    one.send()
    one.end(RESET)
    assert one.failure_penalty == 1.0


def test_check_that_kept_passing_leaves_the_penalty() -> None:
    """Checks may not see what happens to requests: only a change of their result counts."""
    one = OneEndpoint()
    one.ends(RESET)
    one.router.set_healthy(FAILING, True)
    assert one.failure_penalty == 1.0


@pytest.mark.no_cover
@pytest.mark.parametrize(
    ("name", "most"), [("least-in-flight", 19), ("region-aware", 19), ("latency-weighted", 30)]
)
@pytest.mark.parametrize("kind", [RESET, OutcomeKind.TIMEOUT])
def test_endpoint_that_always_fails_gets_one_request_per_trial(
    name: str, most: int, kind: OutcomeKind
) -> None:
    """Without checks and ejection, at any speed of failing; a policy that draws by weights leaves it a little more."""

    def answer(state: EndpointState, now: float) -> tuple[float, OutcomeKind]:
        return (0.002 if kind is RESET else 0.5, kind) if state.id == FAILING else (0.02, OK)

    options = (
        {"explore": 0.0} if name == "latency-weighted" else {}
    )  # exploration is a separate option and adds to it
    trial = Trial(lambda rng: registry.make(name, options, rng), endpoints(*[1] * 6), answer)
    trial.open_loop(500, 20)
    assert 5 <= trial.picked(since=1)[FAILING] <= most
