"""Picks of the default policy over simple workers, as a digest: `python picks.py REQUESTS OPTIONS`, the latter in JSON.

Prints the digest and the number of requests per endpoint, and of those rejected; the build is whatever this interpreter
imports.
"""

from __future__ import annotations

import json
import sys
from hashlib import sha256
from heapq import heappop, heappush
from random import Random
from typing import Any

from policies import Endpoint, EndpointState, OutcomeKind, RequestFacts
from policies.contract.trial import Trial
from policies.steelyard.policy import Steelyard

RATE = 400.0
"""Requests per second, of which the nine endpoints can serve 600. For 15 s of each 100 it is three times as many."""

PATIENCE = 2.0
"""Seconds after which clients give up."""

DISTANCES = {"near": 0.004, "away": 0.05, "far": 0.15}


def main(requests: int, options: dict[str, Any]) -> None:
    rng = Random(1)
    members = [
        Endpoint(f"{region}-{i}", f"http://{region}-{i}", region, 1.0 + i % 2)
        for region, count in (("near", 4), ("away", 3), ("far", 2))
        for i in range(count)
    ]
    free = {endpoint.id: [0.0, 0.0] for endpoint in members}

    def answer(state: EndpointState, now: float) -> tuple[float, OutcomeKind]:
        slots, distance = free[state.id], DISTANCES[state.region]
        starts_at = max(heappop(slots), now + distance / 2)
        slow = 6.0 if state.id == "near-1" and now % 20.0 < 4.0 else 1.0
        ends_at = starts_at + slow * rng.expovariate(33.0)
        heappush(slots, ends_at)
        seconds = ends_at + distance / 2 - now
        if seconds > PATIENCE:
            return PATIENCE, OutcomeKind.ABANDONED
        return seconds, OutcomeKind.ERROR_STATUS if rng.random() < 0.01 else OutcomeKind.OK

    trial = Trial(lambda rng: Steelyard(rng, **options), members, answer)
    trial.facts = RequestFacts(region="near")
    while len(trial.log) + len(trial.rejected_at) < requests:
        trial.open_loop(RATE, 85.0)
        trial.open_loop(3 * RATE, 15.0)
    digest = sha256(repr((trial.log, trial.rejected_at)).encode()).hexdigest()
    print(json.dumps({"digest": digest, "served": trial.picked(), "rejected": len(trial.rejected_at)}))


if __name__ == "__main__":
    main(int(sys.argv[1]), json.loads(sys.argv[2]))
