"""The interface of a policy.

A policy only chooses among the endpoints it is given, all of which are eligible. It reads no clock, does no I/O and
uses no randomness but the `random.Random` it was made with.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Protocol

from policies.endpoint.available import Available
from policies.endpoint.state import EndpointState
from policies.facts import RequestFacts


class Policy(Protocol):
    """A load-balancing policy: `pick` is required, the other hooks are optional and cost nothing where absent.

    - `observe(state, outcome, now)` after a request has been settled;
    - `members_changed(states, now)` when the policy is installed, and when endpoints are added, removed or change
      weight; `states` are all endpoints, available or not;
    - `tick(now)` about once a second;
    - `probes(now)` after each pick: returns the endpoints to probe out of band, possibly none;
    - `observe_probe(state, load, latency, now)` when a probe is answered: the load that the worker reports, and the
      seconds from sending the probe to its answer. Failed probes are not reported. Where probing is not available,
      neither probe hook is called, so a policy must work without them;
    - `doubts(state)` after a pick, where hedging is on: whether the endpoint may be slow or fail. An idempotent request
      is then sent to a second one as well, within the hedging budget, so that a trial costs its client nothing.

    An attribute `reads_prompts` of the class, if true, asks for `facts.prompt` of requests for inference, which is None
    for a body that is none. More hooks then account for its tokens, and `outcome` has `prompt` and `answer`:

    - `assigned(state, facts, now)` when a request has been counted in at `state`, picked by the policy or its fallback;
    - `first_token(state, prompt, now)` when the first token of the answer has come: the prompt waits no more;
    - `share_prompts(memory)` before the first request, where a server has several processes, which all have it.

    Two hooks let units, which share no memory, know each other's prompts; `members` are the endpoints by their keys:

    - `report_prompts(members, is_whole, now)` returns a `PromptReport`, or None for none; None also where nothing has
      changed since the last one, unless `is_whole`;
    - `hear_prompts(members, report, age, now)` when another unit's report has come, which was made `age` seconds ago.

    An attribute `trace`, None at first, is set while explanations are recorded: see `explanation.py`. A policy that
    compares costs may give their parts there, and what those mean in an attribute `cost_parts` of the class.

    An attribute `keeps_to_regions`, if true, says that the policy sends a region its share however few endpoints are
    left there; panic is then decided per region.

    An attribute `reads_reports` of the class says whether the policy uses the load that workers report in responses
    (`outcome.reported_load`). Without it, only policies of other packages and files count as such; the simulator leaves
    the reports out where nothing reads them.
    """

    def pick(self, facts: RequestFacts, available: Available, now: float) -> EndpointState:
        """Return one of `available`, which is never empty. `now` is in seconds of the router's clock.

        Raises Overloaded to reject the request: the client gets 503. Any other error makes the fallback pick."""
        ...


PolicyMaker = Callable[[Random], Policy]
"""Makes a policy. The type of an option that names another policy, so that one can be made per region."""
