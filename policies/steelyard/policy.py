"""Steelyard, the default policy: the endpoint at which the request is expected to cost the cluster least.

One sum in seconds decides, over endpoints of all regions alike; `costs.py` names and derives its parts. What is known
of an endpoint is in `estimate.py`: its usual service time (`service_time.py`), and how its answers compare with that at
present (`pace.py`). `least_cost.py` compares.

Once requests fail because they wait, a request that would wait everywhere is rejected (`overload/shedding.py`).

Among endpoints of a region that cost about the same, the fewest requests in flight per weight decide, then the longest
time since the last pick: both are known exactly. Where all are alike and seldom busy, that is round-robin, which is
optimal there. No published policy takes into account whether a connection is open. A new one costs two or three round
trips: from afar that is more than any queue that a balancer would let grow.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from random import Random
from typing import Annotated

from policies.algorithms.region_aware import MARGIN, Explore, Margin
from policies.errors import BadPolicyOption
from policies.insight.explanation import Trace
from policies.options import at_least, between
from policies.stats.shared_latency import LONGEST_LATENCY
from policies.steelyard.costs import DEVIATIONS, LOAD, PARTS, Prices
from policies.steelyard.least_cost import CHOICES, EXPLORE, LeastCost


class Steelyard:
    """Least expected cost: connecting, distance, service, wait and failures, each as measured, over all regions.

    `objective` is what is minimised: `tail` (p99), `mean`, or `{ deadline = SECONDS }`, the share of answers that are
    later. `load` is the utilisation for which requests are priced, `prices` are seconds that a request to a region
    costs more. Up to `choices` endpoints of every region are compared. Capacities and distances are not configured.
    With `shed`, requests that would wait are rejected once others have failed because they waited.
    """

    cost_parts = PARTS

    def __init__(
        self,
        rng: Random,
        *,
        objective: Annotated[
            str | Mapping[str, float], "what is minimised: tail, mean, or { deadline = SECONDS }"
        ] = "tail",
        load: Annotated[float, "utilisation for which requests are priced", between(0, 0.99)] = LOAD,
        choices: Annotated[int, "number of endpoints compared of each region", at_least(2)] = CHOICES,
        prices: Annotated[
            Mapping[str, float] | None, "seconds that a request to a region costs more, by region"
        ] = None,
        margin: Margin = MARGIN,
        explore: Explore = EXPLORE,
        shed: Annotated[
            bool, "reject requests that would wait, once others have failed because they waited"
        ] = True,
    ) -> None:
        self._least_cost = LeastCost(
            rng.random,
            choices,
            Prices(*_loss(objective), load, margin, {} if prices is None else _seconds(prices)),
            explore,
            shed,
        )
        # The compiled methods themselves: a pick costs no further call.
        self.pick = self._least_cost.pick
        self.observe = self._least_cost.observe
        self.doubts = self._least_cost.doubts
        self.members_changed = self._least_cost.members_changed

    def __del__(self) -> None:
        """Break the cycle of regions and their endpoints: no garbage collector runs while requests are served."""
        least_cost = getattr(self, "_least_cost", None)  # none was made of bad options
        if least_cost is not None:
            least_cost.members_changed((), 0.0)

    @property
    def trace(self) -> Trace | None:
        """Where explanations are recorded; None if they are not."""
        return self._least_cost.trace

    @trace.setter
    def trace(self, trace: Trace | None) -> None:
        self._least_cost.trace = trace


def _loss(objective: object) -> tuple[float, float]:
    """Return the standard deviations and the deadline of an objective. Raises BadPolicyOption."""
    if objective in ("tail", "mean"):
        return (DEVIATIONS if objective == "tail" else 0.0), inf
    if isinstance(objective, Mapping) and list(objective) == ["deadline"]:
        deadline = objective["deadline"]
        if _is_number(deadline) and 0.0 < deadline <= LONGEST_LATENCY:
            return 0.0, float(deadline)
    allowed = f"'tail', 'mean' or {{ deadline = SECONDS }}, above 0 and up to {LONGEST_LATENCY:g}"
    raise BadPolicyOption("objective", f"must be {allowed}, got {objective!r:.60}")


def _seconds(prices: object) -> dict[str, float]:
    """Return a table of seconds by region. Raises BadPolicyOption."""
    if isinstance(prices, Mapping) and all(
        _is_number(seconds) and abs(seconds) <= LONGEST_LATENCY for seconds in prices.values()
    ):
        return {str(region): float(seconds) for region, seconds in prices.items()}
    raise BadPolicyOption(
        "prices",
        f"must be a table of seconds from -{LONGEST_LATENCY:g} to {LONGEST_LATENCY:g}, got {prices!r:.60}",
    )


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
