"""A policy in a file of its own; docs/write-a-policy.md tests and runs it."""

from random import Random

from policies import Available, EndpointState, RequestFacts


class Tempered:
    """At random, the faster the likelier."""

    def __init__(self, rng: Random, *, sharpness: float = 2.0) -> None:
        self._rng = rng
        self._sharpness = sharpness

    def pick(self, facts: RequestFacts, available: Available, now: float) -> EndpointState:
        chances = [
            state.weight / (0.001 + state.predicted_latency(now)) ** self._sharpness for state in available
        ]
        return self._rng.choices(available, chances)[0]
