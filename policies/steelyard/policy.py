"""Steelyard, the default policy: the endpoint at which the request is expected to cost the cluster least.

One sum in seconds decides, over endpoints of all regions alike, and each of its parts is measured:

    connecting     recent time to open a connection, if none is idle for the request
    distance       one round trip, from the last TCP handshake or as configured
    service        what it takes there at present (`stats/usual_service.py`, `stats/service.py`, `stats/progress.py`)
    2 × usual      service, because the request occupies the endpoint for others
    risk           2 × standard deviation of the service
    wait           requests at the endpoint, beyond its concurrency, × service / concurrency, × wait_price; up to five
                   times that while the load exceeds the capacity (`congestion.py`)
    pauses         their mean per request, beyond the region's, × wait_price
    failures       what they cost × the share that failed
    − margin       of the home region

An endpoint whose queue is full, which it shows by status 503, costs more than all of that.

Once requests fail because they wait, a request that would wait everywhere is rejected (`overload/shedding.py`).

Among endpoints of a region that cost about the same, the fewest requests in flight per weight decide, then the longest
time since the last pick: both are known exactly. Where all are alike and seldom busy, that is round-robin, which is
optimal there. No published policy takes into account whether a connection is open. A new one costs two or three round
trips: from afar that is more than any queue that a balancer would let grow.
"""

from __future__ import annotations

from random import Random
from typing import Annotated

from policies.insight.explanation import Trace
from policies.options import at_least, between
from policies.selection.trials import EXPLORE
from policies.steelyard.least_cost import CHOICES, MARGIN, WAIT_PRICE, LeastCost


class Steelyard:
    """Least expected cost: connecting, distance, wait and failures, each as measured, over all regions at once.

    Up to `choices` endpoints of every region are compared. `wait_price` weighs the wait that a request causes to
    others. Capacities and distances are not configured. With `shed`, requests that would wait are rejected once others
    have failed because they waited.
    """

    def __init__(
        self,
        rng: Random,
        *,
        choices: Annotated[int, "number of endpoints of each region that are compared"] = CHOICES,
        wait_price: Annotated[float, "weight of one second of expected wait"] = WAIT_PRICE,
        margin: Annotated[float, "seconds by which another region must be cheaper"] = MARGIN,
        explore: Annotated[
            float, "largest share of requests sent to endpoints without recent measurements"
        ] = EXPLORE,
        shed: Annotated[
            bool, "reject requests that would wait, once others have failed because they waited"
        ] = True,
    ) -> None:
        self._least_cost = LeastCost(
            rng.random,
            at_least(2, choices=choices),
            at_least(0, wait_price=wait_price),
            at_least(0, margin=margin),
            between(0, 1, explore=explore),
            shed,
        )
        # The compiled methods themselves: a pick costs no further call.
        self.pick = self._least_cost.pick
        self.observe = self._least_cost.observe
        self.doubts = self._least_cost.doubts
        self.members_changed = self._least_cost.members_changed

    @property
    def trace(self) -> Trace | None:
        """Where explanations are recorded; None if they are not."""
        return self._least_cost.trace

    @trace.setter
    def trace(self, trace: Trace | None) -> None:
        self._least_cost.trace = trace
