"""What a policy is.

Rule of this file: a policy chooses among what it is given, and does nothing else. It reads no clock, does
no I/O, owns no randomness but the `random.Random` it was made with, and never asks whether a state is
healthy: what it is given is.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Protocol

from policies.routing.available import Available
from policies.routing.endpoint_state import EndpointState
from policies.routing.facts import RequestFacts


class Policy(Protocol):
    """One method. More are optional, and cost nothing where they are absent:

    - `observe(state, outcome, now)` after a request has been settled;
    - `members_changed(states, now)` when the policy is installed, and when endpoints come, go or change their weight;
      `states` are all, available or not;
    - `tick(now)` about once a second;
    - `probes(now)` after each pick: whom to probe out of band, possibly nobody;
    - `observe_probe(state, load, latency, now)` when a probe is answered: what the worker says of itself, and the
      seconds from sending the probe to its answer. One that fails is never heard of. Where nobody probes, neither is
      called, so a policy must do without.

    An attribute `trace`, None at first, is set while somebody asks for reasons: see `explanation.py`.

    An attribute `keeps_to_regions`, true where it is given as such, says that the policy sends its share to a region
    however few are left there; panic then looks at each region by itself.
    """

    def pick(self, facts: RequestFacts, available: Available, now: float) -> EndpointState:
        """Choose one of `available`, which is never empty. `now` is in seconds of the router's clock."""
        ...


PolicyMaker = Callable[[Random], Policy]
"""How to make a policy: what an option is that names another policy, so that one can be made per region."""
