"""Measures of how a policy distributes requests: evenly, by weight, to idle endpoints, and from the first request on.

Only `begins_anywhere` has a bound for every policy; those of the others depend on the policy.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from random import Random

from policies.contract.trial import REGION, ManualClock, Trial, endpoints, require
from policies.facts import RequestFacts
from policies.policy import PolicyMaker
from policies.routing.router import Router

BALANCERS = 300
"""Number of balancers that are rebuilt at once. Of six equals each is first for 50 of them, give or take 6.5."""


def begins_anywhere(make: PolicyMaker, weights: Sequence[float] = (1.0,) * 6, most: float = 0.35) -> None:
    """Of many balancers that start or learn of an endpoint at once, few send the first request to the same one.

    A policy that compares all endpoints picks the new one if it knows the others to be busier: for 0 to 4 requests, 29
    % do. With other weights, a heavier endpoint is first for more, up to `most`.
    """
    for name, earlier in (("started", 0), ("a new endpoint was added", 5)):
        share = most_first(make, weights, earlier)
        require(
            share <= most,
            f"{share:.0%} of the balancers that were {name} at once went to the same endpoint first",
        )


def most_first(make: PolicyMaker, weights: Sequence[float], earlier: int) -> float:
    """Return the largest share of balancers whose first request after the change goes to the same endpoint.

    Before the change each has sent up to `earlier` requests to all endpoints but the last."""
    firsts: Counter[str] = Counter()
    for seed in range(BALANCERS):
        rng = Random(seed)
        members = endpoints(*weights)
        router = Router(members[:-1] if earlier else members, make(rng), ManualClock(), Random(-seed))
        if earlier:
            for _ in range(rng.randrange(earlier)):
                router.route(RequestFacts(region=REGION))
            router.replace(members)
        firsts[router.route(RequestFacts(region=REGION)).state.id] += 1
    return max(firsts.values()) / BALANCERS


def imbalance(make: PolicyMaker) -> float:
    """Return the largest share divided by the fair one, six equal endpoints, 30 outstanding."""
    trial = Trial(make, endpoints(*[1] * 6))
    trial.closed_loop(30, 30)
    picked = trial.picked()
    return max(picked.values()) * len(picked) / picked.total()


def weight_error(make: PolicyMaker) -> float:
    """Return the largest difference of a share from weights 1 : 2 : 3, 60 outstanding."""
    trial = Trial(make, endpoints(1, 2, 3))
    trial.closed_loop(60, 20)
    picked = trial.picked(since=1)
    return max(abs(picked[f"{REGION}-{i}"] / picked.total() - (i + 1) / 6) for i in range(3))


def idle_share(make: PolicyMaker) -> float:
    """Return the share of 1000 picks that the idle one of two gets while the other holds ten requests."""
    trial = Trial(make, endpoints(1, 1))
    busy, idle = trial.router.states
    busy.in_flight = 10
    policy = trial.router.policy
    picks = [policy.pick(trial.facts, trial.router.available, 0.0) for _ in range(1000)]
    return sum(pick is idle for pick in picks) / 1000


def fullest(make: PolicyMaker) -> float:
    """Return how many of 1000 unanswered requests the fullest of 100 endpoints holds, the mean of ten runs.

    Balls into bins: at random it is 10 and some √(2·10·ln 100) more, about 19; by two choices ln ln 100/ln 2 more,
    about 12 (Azar, Broder, Karlin and Upfal 1994; Berenbrink, Czumaj, Steger and Vöcking 2000); in turn it is 10.
    """
    found = 0
    for seed in range(10):
        trial = Trial(make, endpoints(*[1] * 100), seed=seed)
        for _ in range(1000):
            trial.send()
        found += max(state.in_flight for state in trial.router.states)
    return found / 10
